"""Each key of the config has a test that fails if the key does nothing."""

import ast
import inspect
from pathlib import Path

import pytest
from pydantic import BaseModel
from schema_keys import KEYS

TESTS = Path(__file__).parents[1]

# The tests, below the folder of all tests. Keys that several sections inherit stand here once.
TESTED = {
    "Experiment.datasets": "config/test_references.py::test_a_name_that_nothing_has_is_a_fault",
    "Experiment.models": "config/test_references.py::test_a_name_that_nothing_has_is_a_fault",
    "Experiment.defaults": "config/test_load.py::test_runs_start_from_the_defaults_and_override_them_key_by_key",
    "Experiment.runs": "config/test_load.py::test_runs_start_from_the_defaults_and_override_them_key_by_key",
    "Data.packing": "train/test_architectures.py::test_rows_of_one_document_each_train_where_they_could_be_packed",
    "Run.model": "config/test_plan.py::test_a_run_starts_from_a_base_or_from_what_another_run_made",
    "Run.dataset": "config/test_plan.py::test_runs_share_a_token_store_if_their_tokens_are_the_same",
    "RunRef.run": "config/test_plan.py::test_a_run_starts_from_a_base_or_from_what_another_run_made",
    "Sections.data": "config/test_load.py::test_runs_start_from_the_defaults_and_override_them_key_by_key",
    "Sections.train": "config/test_load.py::test_runs_start_from_the_defaults_and_override_them_key_by_key",
    "Sections.adapter": "config/test_plan.py::test_training_depends_on_its_optimisation_and_the_adapter_if_there_is_one",
    "Sections.ray": "config/test_plan.py::test_how_a_run_is_executed_is_passed_to_its_stages",
    "Sections.preference": "config/test_preference.py::test_the_loss_changes_training_and_evaluation_and_neither_tokens_nor_reference",
    "Sections.export": "config/test_plan.py::test_changing_a_result_changes_what_its_stage_depends_on",
    "Sections.evaluate": "config/test_plan.py::test_changing_a_result_changes_what_its_stage_depends_on",
    "Sections.generate": "config/test_plan.py::test_changing_a_result_changes_what_its_stage_depends_on",
    # Datasets.
    "PythonStdlib.source": "corpus/sources/test_source.py::test_the_standard_library",
    "PythonStdlib.format": "corpus/sources/test_source.py::test_the_standard_library",
    "PythonStdlib.validation_share": "stages/test_download.py::test_the_standard_library_is_split_by_module",
    "PythonStdlib.test_share": "stages/test_download.py::test_the_standard_library_is_split_by_module",
    "Synthetic.source": "corpus/sources/test_source.py::test_synthetic_text",
    "Synthetic.size_gb": "stages/test_download.py::test_synthetic_text_has_its_size",
    "Synthetic.seed": "corpus/sources/test_source.py::test_synthetic_text",
    "Synthetic.validation_share": "corpus/test_split.py::test_splits_have_their_shares",
    "Synthetic.test_share": "corpus/test_split.py::test_splits_have_their_shares",
    "_Table.format": "corpus/sources/test_source.py::test_format_columns_and_system_prompt_are_those_of_the_section",
    "_Table.columns": "corpus/sources/test_source.py::test_format_columns_and_system_prompt_are_those_of_the_section",
    "_Table.system": "corpus/sources/test_source.py::test_format_columns_and_system_prompt_are_those_of_the_section",
    "_Table.split_by": "stages/test_download.py::test_the_tail_of_a_text_is_held_out_in_order",
    "_Table.validation_share": "stages/test_download.py::test_the_tail_of_a_text_is_held_out_in_order",
    "_Table.test_share": "stages/test_download.py::test_the_tail_of_a_text_is_held_out_in_order",
    "LocalFiles.source": "corpus/sources/test_source.py::test_local_files_by_split",
    "LocalFiles.path": "config/test_plan_files.py::test_the_files_of_a_dataset_are_found",
    "BySplit.train": "config/test_plan_files.py::test_each_split_has_files_of_its_own",
    "BySplit.validation": "corpus/sources/test_source.py::test_local_files_by_split",
    "BySplit.test": "config/test_plan_files.py::test_each_split_has_files_of_its_own",
    "Url.source": "corpus/sources/test_source.py::test_urls_by_split",
    "Url.url": "corpus/sources/test_source.py::test_urls_by_split",
    "Url.sha256": "stages/test_download.py::test_of_a_file_that_is_not_fetched_nothing_is_left",
    "HubDataset.source": "corpus/sources/test_source.py::test_a_repository_of_the_hub_by_split",
    "HubDataset.repo_id": "corpus/sources/test_source.py::test_a_repository_of_the_hub_by_split",
    "HubDataset.revision": "corpus/sources/test_hub.py::test_what_a_repository_does_not_have_costs_one_line",
    "HubDataset.name": "corpus/sources/test_hub.py::test_a_split_expression_gives_its_rows",
    "HubDataset.data_dir": "corpus/sources/test_hub.py::test_a_split_expression_gives_its_rows",
    "HubDataset.split": "corpus/sources/test_source.py::test_a_repository_of_the_hub_by_split",
    "HubSplits.train": "corpus/sources/test_source.py::test_a_repository_of_the_hub_by_split",
    "HubSplits.validation": "corpus/sources/test_source.py::test_a_repository_of_the_hub_by_split",
    "HubSplits.test": "corpus/sources/test_source.py::test_a_repository_of_the_hub_by_split",
    # Models.
    "ScratchModel.source": "stages/test_base_model.py::test_a_model_from_scratch_learns_its_tokens_from_the_train_split",
    "ScratchModel.tokenizer": "stages/test_base_model.py::test_a_model_from_scratch_learns_its_tokens_from_the_train_split",
    "ScratchModel.hidden_size": "model/test_scratch.py::test_the_model_has_the_shape_asked_for",
    "ScratchModel.intermediate_size": "model/test_scratch.py::test_the_model_has_the_shape_asked_for",
    "ScratchModel.num_hidden_layers": "model/test_scratch.py::test_the_model_has_the_shape_asked_for",
    "ScratchModel.num_attention_heads": "model/test_scratch.py::test_the_model_has_the_shape_asked_for",
    "ScratchModel.num_key_value_heads": "model/test_scratch.py::test_the_model_has_the_shape_asked_for",
    "ScratchModel.max_position_embeddings": "config/test_references.py::test_a_block_has_to_fit_the_model_at_the_root_of_the_lineage",
    "ScratchModel.tie_word_embeddings": "model/test_scratch.py::test_the_model_has_the_shape_asked_for",
    "ScratchModel.seed": "model/test_scratch.py::test_the_seed_alone_decides_the_weights",
    "TrainedTokenizer.train_on": "config/test_plan.py::test_a_model_from_scratch_depends_on_the_dataset_of_its_tokenizer",
    "TrainedTokenizer.vocab_size": "model/test_scratch.py::test_the_vocabulary_has_the_size_asked_for_where_the_corpus_yields_it",
    "PathModel.source": "stages/test_base_model.py::test_a_folder_is_copied_without_what_it_does_not_need",
    "PathModel.path": "stages/test_base_model.py::test_a_folder_is_copied_without_what_it_does_not_need",
    "HubModel.source": "stages/test_base_model.py::test_a_model_of_the_hub_comes_by_its_commit",
    "HubModel.repo_id": "stages/test_base_model.py::test_a_model_of_the_hub_comes_by_its_commit",
    "HubModel.revision": "stages/test_base_model.py::test_a_model_of_the_hub_comes_by_its_commit",
    # Rows.
    "Data.block_size": "stages/test_tokenize.py::test_each_split_holds_its_documents",
    "Data.long_documents": "stages/test_tokenize.py::test_documents_that_are_dropped_are_counted_and_reported",
    "Data.chat_template": "stages/test_tokenize.py::test_of_conversations_the_store_trains_what_the_assistant_says",
    "Data.tokenize": "stages/test_tokenize.py::test_on_the_fly_the_store_keeps_what_its_rows_are_made_from",
    # Images.
    "Digits.validation_share": "stages/test_images.py::test_shares_of_train_are_held_out",
    "Digits.test_share": "stages/test_images.py::test_shares_of_train_are_held_out",
    "Idx.validation_share": "stages/test_images.py::test_shares_of_train_are_held_out",
    "Idx.test_share": "stages/test_images.py::test_shares_of_train_are_held_out",
    "ImageFolder.validation_share": "stages/test_images.py::test_shares_of_train_are_held_out",
    "ImageFolder.test_share": "stages/test_images.py::test_shares_of_train_are_held_out",
    "Digits.source": "corpus/sources/test_images.py::test_digits_are_those_of_the_library",
    "Idx.source": "corpus/sources/test_images.py::test_idx_files_compressed_or_not",
    "Idx.train": "corpus/sources/test_images.py::test_idx_files_compressed_or_not",
    "Idx.test": "corpus/sources/test_images.py::test_idx_files_of_a_test_split",
    "IdxFiles.images": "corpus/sources/test_images.py::test_idx_files_compressed_or_not",
    "IdxFiles.labels": "corpus/sources/test_images.py::test_idx_files_of_a_test_split",
    "ImageFolder.source": "corpus/sources/test_images.py::test_the_folders_of_classes_are_the_labels",
    "ImageFolder.path": "corpus/sources/test_images.py::test_the_folders_of_classes_are_the_labels",
    "ScratchVisionModel.source": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ScratchVisionModel.architecture": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ScratchVisionModel.classes_of": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ScratchVisionModel.image_size": "stages/test_images.py::test_without_a_size_images_of_different_sizes_cost_one_line",
    "ScratchVisionModel.num_channels": "stages/test_images.py::test_the_store_has_the_models_size_and_channels",
    "ScratchVisionModel.resnet": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ScratchVisionModel.vit": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ScratchVisionModel.seed": "stages/test_images.py::test_the_seed_alone_decides_the_weights",
    "ResNet.depths": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ResNet.hidden_sizes": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ResNet.embedding_size": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ViT.patch_size": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ViT.hidden_size": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ViT.intermediate_size": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ViT.num_hidden_layers": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "ViT.num_attention_heads": "stages/test_images.py::test_the_shape_of_a_model_is_that_of_the_config",
    "_Existing.classes_of": "stages/test_images.py::test_a_model_of_other_classes_gets_a_new_output_layer",
    "_Existing.seed": "stages/test_images.py::test_a_model_of_other_classes_gets_a_new_output_layer",
    "Data.augmentation": "train/images/test_layouts.py::test_augmented_images_are_the_same_on_any_number_of_workers",
    "Augmentation.shift": "tasks/images/test_augmentation.py::test_images_move_by_up_to_so_many_pixels_and_black_comes_in",
    "Augmentation.crop": "tasks/images/test_augmentation.py::test_a_part_of_an_image_is_resized_to_the_whole",
    "Augmentation.flip": "tasks/images/test_augmentation.py::test_half_of_the_images_are_mirrored",
    # Training.
    "Train.strategy": "train/test_settings.py::test_the_strategy_is_that_of_the_config",
    "Train.fsdp2": "train/engine/strategies/test_options.py::test_fsdp2_has_the_options_of_the_config",
    "Train.deepspeed": "train/engine/strategies/test_options.py::test_deepspeed_has_the_options_of_the_config",
    "Train.num_epochs": "train/test_settings.py::test_without_max_steps_a_run_has_so_many_epochs",
    "Train.max_steps": "train/test_settings.py::test_lines_evaluations_and_checkpoints_come_at_their_steps",
    "Train.global_batch_size": "train/test_settings.py::test_a_forward_pass_takes_the_rows_of_a_micro_batch",
    "Train.micro_batch_size": "train/test_settings.py::test_a_forward_pass_takes_the_rows_of_a_micro_batch",
    "Train.learning_rate": "train/test_schedule.py::test_warms_up_in_equal_parts_from_above_zero_to_the_peak",
    "Train.lr_scheduler_type": "train/test_schedule.py::test_constant_stays_at_the_peak_after_the_warm_up",
    "Train.warmup_ratio": "train/test_schedule.py::test_warms_up_in_equal_parts_from_above_zero_to_the_peak",
    "Train.decay_ratio": "train/test_schedule.py::test_wsd_stays_at_the_peak_and_goes_down_in_the_last_share_of_all_steps",
    "Train.min_lr_ratio": "train/test_schedule.py::test_cosine_passes_the_middle_and_ends_at_its_lowest",
    "Train.weight_decay": "train/engine/test_optimizer.py::test_decays_matrices_and_leaves_vectors",
    "Train.adam_beta1": "train/engine/test_optimizer.py::test_takes_the_configs_betas",
    "Train.adam_beta2": "train/engine/test_optimizer.py::test_takes_the_configs_betas",
    "Train.max_grad_norm": "train/test_loop.py::test_losses_are_those_of_plain_transformers_on_separate_documents",
    "Train.precision": "train/test_settings.py::test_the_forward_pass_is_in_the_precision_of_the_config",
    "Train.compile": "train/engine/test_build.py::test_compiled_blocks_change_nothing_but_rounding",
    "Train.gradient_checkpointing": "train/test_settings.py::test_with_gradient_checkpointing_the_backward_pass_computes_blocks_again",
    "Train.seed": "train/test_settings.py::test_the_seed_decides_the_order_of_the_samples",
    "Train.logging_steps": "train/test_settings.py::test_lines_evaluations_and_checkpoints_come_at_their_steps",
    "Train.eval_steps": "train/test_settings.py::test_lines_evaluations_and_checkpoints_come_at_their_steps",
    "Train.attention": "train/engine/test_attention.py::test_the_attention_that_the_config_names_is_taken_and_differs_by_rounding",
    "Train.deterministic": "train/engine/test_determinism.py::test_a_run_computes_so_if_the_config_asks_for_it",
    "Train.eval_rows": "train/test_loop.py::test_the_held_out_loss_is_a_mean_over_the_tokens_of_a_sample",
    "Train.early_stopping_patience": "train/test_loop.py::test_a_run_stops_early_and_exports_its_best_model",
    "Train.load_best_model_at_end": "train/test_loop.py::test_a_run_stops_early_and_exports_its_best_model",
    "Train.stall_timeout": "faults/test_workflow.py::test_a_worker_that_hangs_ends_the_run_with_its_stack_in_the_log",
    "Train.save_steps": "train/test_settings.py::test_lines_evaluations_and_checkpoints_come_at_their_steps",
    "Train.save_total_limit": "train/test_settings.py::test_lines_evaluations_and_checkpoints_come_at_their_steps",
    "Train.resume_from_checkpoint": "train/test_continuation.py::test_a_run_continues_from_a_checkpoint_of_another_fingerprint_and_records_it",
    "FSDP2.reshard_after_forward": "train/engine/strategies/test_options.py::test_fsdp2_has_the_options_of_the_config",
    "FSDP2.cpu_offload": "train/engine/strategies/test_options.py::test_fsdp2_has_the_options_of_the_config",
    "DeepSpeed.zero_stage": "train/engine/strategies/test_options.py::test_deepspeed_has_the_options_of_the_config",
    "DeepSpeed.offload_optimizer": "train/engine/strategies/test_options.py::test_deepspeed_has_the_options_of_the_config",
    "DeepSpeed.offload_parameters": "train/engine/strategies/test_options.py::test_deepspeed_has_the_options_of_the_config",
    "Adapter.rank": "model/test_adapter.py::test_all_linear_layers_but_the_output_get_a_pair",
    "Adapter.alpha": "model/test_adapter.py::test_what_is_added_is_scaled_by_alpha_over_rank_or_its_root",
    "Adapter.dropout": "model/test_adapter.py::test_dropout_is_of_the_adapters_inputs_and_of_training_alone",
    "Adapter.target_modules": "model/test_adapter.py::test_layers_that_the_model_does_not_have_cost_one_line",
    "Adapter.use_rslora": "model/test_adapter.py::test_what_is_added_is_scaled_by_alpha_over_rank_or_its_root",
    "Adapter.use_dora": "model/test_adapter.py::test_with_dora_magnitudes_are_trained_too",
    "Adapter.base_dtype": "train/engine/test_build.py::test_with_a_base_of_fewer_bits_training_goes_as_with_fp32",
    "Adapter.quantize_base": "train/engine/test_build.py::test_with_a_base_of_fewer_bits_training_goes_as_with_fp32",
    "Preference.loss": "train/test_preference.py::test_losses_are_those_of_plain_transformers_with_both_models",
    "Preference.beta": "train/test_preference.py::test_losses_are_those_of_plain_transformers_with_both_models",
    "Preference.label_smoothing": "train/test_preference.py::test_losses_are_those_of_plain_transformers_with_both_models",
    # Where it runs.
    "Ray.address": "workers/test_cluster.py::test_an_address_where_no_ray_is_costs_one_line_at_once",
    "Ray.num_workers": "train/test_driver.py::test_two_ray_workers_have_the_losses_of_one_process_and_the_run_is_recorded",
    "Ray.use_gpu": "workers/test_cluster.py::test_what_only_ray_knows_of_is_refused_at_once",
    "Ray.resources_per_worker": "workers/test_cluster.py::test_what_only_ray_knows_of_is_refused_at_once",
    "Ray.max_failures": "faults/test_workflow.py::test_a_worker_with_too_little_memory_is_tried_again_and_the_key_to_lower_is_reported",
    "Ray.storage_path": "train/test_driver.py::test_a_changed_setting_has_a_work_folder_of_its_own",
    "Ray.include_dashboard": "workers/test_cluster.py::test_the_dashboard_answers_at_the_address_that_is_printed",
    # Judging.
    "Export.dtype": "stages/test_export.py::test_weights_have_the_type_of_the_start_or_the_one_that_the_config_names",
    "Export.merge_adapter": "stages/test_export.py::test_an_adapter_by_itself_is_loaded_as_the_model_it_would_be_merged_into",
    "Evaluate.max_documents": "stages/test_evaluate.py::test_no_more_documents_are_scored_than_asked_for",
    "Evaluate.precision": "stages/test_evaluate.py::test_models_compute_in_the_precision_that_the_config_names",
    "Evaluate.num_workers": "stages/test_evaluate.py::test_as_many_processes_score_as_the_config_says_and_scores_stay_the_same",
    "Evaluate.confidence": "stages/test_evaluate.py::test_intervals_follow_confidence_and_resamplings",
    "Evaluate.bootstrap_samples": "stages/test_evaluate.py::test_intervals_follow_confidence_and_resamplings",
    "Generate.precision": "stages/test_generate.py::test_models_compute_in_the_precision_that_the_config_names",
    "Generate.num_workers": "stages/test_generate.py::test_the_number_of_workers_changes_no_continuation",
    "Generate.num_samples": "stages/test_generate.py::test_each_prompt_is_continued_by_both_models",
    "Generate.max_new_tokens": "stages/test_generate.py::test_each_prompt_is_continued_by_both_models",
    "Generate.temperature": "stages/test_generate.py::test_sampling_follows_its_keys",
    "Generate.top_p": "stages/test_generate.py::test_sampling_follows_its_keys",
    "Generate.seed": "stages/test_generate.py::test_sampling_follows_its_keys",
    "Generate.prompt_tokens": "stages/test_generate.py::test_a_prompt_of_text_has_so_many_tokens",
}

# Why a key has none.
UNTESTED = {
    "Synthetic.format": "It has one value.",
    "Digits.format": "It has one value.",
    "Idx.format": "It has one value.",
    "ImageFolder.format": "It has one value.",
    "ScratchModel.architecture": "It has one value.",
    "Data.loader": "The samples are the same; what differs is the memory that they take.",
    "Data.stream_from": "Copying and streaming have tests; that the driver joins them has none.",
    "Train.launcher": "The losses are the same; what differs is the processes.",
    "Evaluate.batch_size": "The scores are the same; what differs is the memory that they take.",
    "Generate.batch_size": "The likeliest tokens are the same; sampled ones differ by chance.",
}


def declared(section: type[BaseModel], key: str) -> str:
    """The key, with the section that declares it in front."""
    owner = next(kind for kind in section.__mro__ if key in inspect.get_annotations(kind))
    return f"{owner.__name__}.{key}"


def test_each_key_has_a_test_or_a_reason_to_have_none() -> None:
    keys = {declared(section, key) for section, key in KEYS}
    assert TESTED.keys() | UNTESTED.keys() == keys
    assert TESTED.keys().isdisjoint(UNTESTED)


@pytest.mark.parametrize("test", sorted(set(TESTED.values())))
def test_the_tests_are_there(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
