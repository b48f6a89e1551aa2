"""LLaMA-Factory's keys, and Transformers', that change nothing here, or aren't there."""

from collections.abc import Sequence

from moray.extras.importing.table import Rule, differs, feature, no_effect, refused

# Where and how a run is executed.
_EXECUTION: Sequence[Rule] = (
    no_effect(
        "ddp_timeout=1800 ddp_backend ddp_bucket_cap_mb ddp_broadcast_buffers "
        "ddp_find_unused_parameters ddp_static_graph local_rank=-1 master_addr master_port "
        "device_map low_cpu_mem_usage=true offload_folder=offload use_cpu no_cuda "
        "accelerator_config parallelism_config fsdp_transformer_layer_cls_to_wrap "
        "fsdp_min_num_params fsdp_config.*auto_wrap_policy "
        "fsdp_config.*transformer_layer_cls_to_wrap fsdp_config.*min_num_params "
        "fsdp_config.*version fsdp_config.*state_dict_type fsdp_config.*limit_all_gathers "
        "fsdp_config.*sync_module_states fsdp_config.*use_orig_params fsdp_config.*_prefetch "
        "fsdp_config.*cpu_ram_efficient_loading ray_init_kwargs ray_* placement_strategy "
        "resources_per_worker use_hyper_parallel hyper_parallel_args hyper_parallel_cp_size=1",
        "how weights are loaded and spread doesn't change the result; see ray",
    ),
    no_effect(
        "tensor_model_parallel_size=1 pipeline_model_parallel_size=1 context_parallel_size=1 "
        "expert_model_parallel_size=1 virtual_pipeline_model_parallel_size sequence_parallel "
        "sequence_parallel_* use_mca use_megatron_bridge megatron_bridge_args "
        "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split "
        "bias_activation_fusion apply_rope_fusion masked_softmax_fusion cross_entropy_loss_fusion "
        "gradient_accumulation_fusion moe_grouped_gemm moe_token_dispatcher_type "
        "calculate_per_token_loss use_distributed_optimizer=true overlap_param_gather=true "
        "overlap_grad_reduce=true overlap_moe_expert_parallel_comm recompute_granularity "
        "recompute_method recompute_num_layers mixed_precision=bf16_mixed export_hf_on_finish",
        "layers aren't split over GPUs, as Megatron does; see what fits with `moray plan`",
    ),
    no_effect(
        "flash_attn=auto use_unsloth enable_liger_kernel use_liger_kernel liger_kernel_config "
        "use_v1_kernels tf32 use_reentrant_gc=true use_unsloth_gc gradient_checkpointing_kwargs "
        "activation_checkpointing activation_checkpointing_kwargs torch_compile "
        "torch_compile_backend torch_compile_mode torch_empty_cache_steps auto_find_batch_size "
        "use_kv_cache=true use_cache enable_jit_checkpoint",
        "kernels, and what is kept in memory, are chosen here; see train.attention",
    ),
)
# What is written down, and where.
_RESULTS: Sequence[Rule] = (
    no_effect(
        "plot_loss run_name project logging_strategy=steps logging_dir logging_first_step "
        "logging_nan_inf_filter=true log_level=passive log_level_replica=warning "
        "log_on_each_node=true disable_tqdm include_num_input_tokens_seen=no "
        "include_effective_tokens_per_second include_tokens_per_second include_for_metrics "
        "include_inputs_for_metrics use_swanlab swanlab_* trackio_* print_param_status "
        "skip_memory_metrics=true debug enable_torch_profiler profiler_* profile_modules",
        "logging; see tracking, train.profile, moray report",
    ),
    no_effect(
        "do_eval eval_strategy=no evaluation_strategy eval_delay per_device_eval_batch_size=8 "
        "eval_on_start eval_on_each_dataset eval_num_beams eval_accumulation_steps "
        "eval_do_concat_batches=true eval_use_gather_object batch_eval_metrics "
        "prediction_loss_only bf16_full_eval fp16_full_eval compute_accuracy "
        "predict_with_generate generation_max_length generation_num_beams do_sample=true "
        "temperature=0.95 top_p=0.7 top_k=50 num_beams=1 max_length=1024 max_new_tokens=1024 "
        "repetition_penalty=1 length_penalty=1 skip_special_tokens=true",
        "trained models are scored and sampled from afterwards; see evaluate, generate",
    ),
    no_effect(
        "output_dir overwrite_output_dir overwrite_cache save_strategy=steps save_only_model "
        "save_on_each_node save_safetensors=true push_to_hub hub_token hub_private_repo "
        "hub_strategy=every_save hub_always_push hub_revision export_dir export_size=5 "
        "export_device=cpu export_legacy_format export_hub_model_id "
        "restore_callback_states_from_checkpoint ignore_data_skip",
        "results/ and its checkpoints; see train.save_steps, export, push",
    ),
    no_effect(
        "streaming buffer_size=16384 preprocessing_batch_size=1000 preprocessing_num_workers "
        "data_shared_file_system dataloader_num_workers dataloader_pin_memory=true "
        "dataloader_persistent_workers dataloader_prefetch_factor dataloader_drop_last "
        "dataloader_multiprocessing_context dataloader_in_order=true remove_unused_columns=true "
        "label_names length_column_name=length "
        "model_max_length block_diag_attn compute_dtype "
        "full_determinism",
        "rows are prepared, packed and read here; see data.loader",
    ),
    no_effect(
        "trust_remote_code use_fast_tokenizer=true cache_dir hf_hub_token ms_hub_token "
        "om_hub_token resize_vocab",
        "tokenizers and models are those that Transformers has",
    ),
    no_effect("infer_backend=huggingface infer_dtype=auto vllm_* sglang_*", "see `moray chat`"),
)
# Models, rows, losses and steps.
_TRAINING: Sequence[Rule] = (
    differs("upcast_layernorm upcast_lmhead_output", "all layers are in the run's precision"),
    feature(
        "use_kt",
        "kt_* cpu_infer chunk_size",
        "PyTorch computes the base in bf16, not KTransformers",
        "different",
    ),
    no_effect("_kt_*", "LLaMA-Factory's own"),
    differs(
        "group_by_length disable_shuffling train_sampling_strategy=random data_seed",
        "rows have a random order, by train.seed",
    ),
    differs(
        "ignore_pad_token_for_loss=true average_tokens_across_devices=true",
        "a step's loss is a mean over all its trained tokens, without padding",
    ),
    differs("tool_format", "tools are written as the chat template does"),
    differs("neftune_noise_alpha", "no noise is added to embeddings"),
    differs("adam_epsilon=1e-8", "AdamW's epsilon is 1e-8"),
    differs("metric_for_best_model=loss greater_is_better", "the best is by validation loss"),
    differs("tokenized_path", "rows are read from dataset, not from there"),
    refused(
        "new_special_tokens_config split_special_tokens rope_scaling shift_attn mixture_of_depths "
        "megatron_pretrained_checkpoint extra_config",
        "tokenizer, config and weights are those of the model's files",
    ),
    refused("label_smoothing_factor pref_bco_weight ld_alpha", "no such loss"),
    feature("use_dft_loss", "", "no such loss"),
    feature("use_asft_loss", "asft_alpha", "no such loss"),
    feature("use_eaft_loss", "eaft_alpha", "no such loss"),
    feature("ref_model_adapters", "ref_model_quantization_bit", "the base is the reference"),
    no_effect(
        "ppo_* reward_model reward_model_adapters reward_model_quantization_bit reward_model_type",
        "only for stage: ppo",
    ),
    feature("use_galore", "galore_*", "no such optimizer"),
    feature("use_apollo", "apollo_*", "no such optimizer"),
    feature("use_badam", "badam_*", "no such optimizer"),
    feature("use_adam_mini", "", "no such optimizer"),
    refused("optim_args optim_target_modules", "AdamW's settings have keys of their own"),
    feature("fp8", "fp8_*", "no such quantization"),
    feature("export_quantization_bit", "export_quantization_*", "see gguf"),
    no_effect("quantization_device_map", "how weights are spread"),
)
# Images, adapters, and what trains nothing.
_OTHERS: Sequence[Rule] = (
    refused(
        "image_max_pixels=589824 image_min_pixels=1024 image_do_pan_and_scan crop_to_patches "
        "image_resolution video_resolution train_mm_proj_only "
        "video_max_pixels=65536 video_min_pixels=256 video_fps=2 video_maxlen=128 "
        "use_audio_in_video audio_sampling_rate=16000 freeze_vision_tower=true "
        "freeze_multi_modal_projector=true freeze_language_model media_dir",
        "images and sound aren't trained with text",
    ),
    refused("adapter_folder", "name the adapter's own folder in adapter_name_or_path"),
    refused("resume_from_checkpoint", "checkpoints of other tools aren't read"),
    no_effect("oft_* module_dropout", "only for finetuning_type: oft"),
    no_effect("loraplus_lr_embedding", "embeddings have no adapters"),
    no_effect("pissa_convert", "adapters are exported for the original base"),
    feature("use_llama_pro", "", "no such adapter"),
    no_effect(
        "freeze_trainable_layers freeze_trainable_modules freeze_extra_modules",
        "only for finetuning_type: freeze",
    ),
    no_effect(
        "task task_dir batch_size lang n_shot save_dir download_mode",
        "only for `llamafactory-cli eval`; see benchmarks",
    ),
)
NOTES: Sequence[Rule] = (*_EXECUTION, *_RESULTS, *_TRAINING, *_OTHERS)
