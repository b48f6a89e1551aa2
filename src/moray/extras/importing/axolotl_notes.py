"""axolotl's keys that change nothing here, lead to another result, or aren't there."""

from collections.abc import Sequence

from moray.extras.importing.table import Rule, differs, feature, no_effect, refused


def _inside(block: str, names: str) -> str:
    """Names of keys inside another one, with its own."""
    return " ".join([block, *(f"{block}.{name}" for name in names.split())])


_TRL = _inside(
    "trl",
    "max_completion_length use_vllm vllm_mode vllm_server_host vllm_server_port "
    "vllm_server_timeout vllm_guided_decoding_regex reward_funcs reward_weights "
    "generation_batch_size num_generations log_completions num_completions_to_print "
    "importance_sampling_level sync_ref_model ref_model_mixup_alpha ref_model_sync_steps "
    "scale_rewards temperature top_p top_k min_p repetition_penalty generation_kwargs "
    "chat_template_kwargs num_iterations epsilon epsilon_high use_liger_loss loss_type "
    "mask_truncated_completions vllm_enable_sleep_mode rollout_func multi_objective_aggregation "
    "use_data_producer async_prefetch prefetch_depth vllm_sync_interval streaming_partial_batch "
    "streaming_min_groups vllm_importance_sampling_correction vllm_importance_sampling_mode "
    "vllm_importance_sampling_cap off_policy_mask_threshold use_bias_correction_kl "
    "reward_num_workers replay_buffer_size replay_recompute_logps reroll_start_fraction "
    "reroll_max_groups skip_zero_advantage_batches vllm_lora_sync",
)
_VLLM = _inside(
    "vllm",
    "device tensor_parallel_size data_parallel_size gpu_memory_utilization dtype max_model_len "
    "enable_prefix_caching host port enable_reasoning reasoning_parser enforce_eager serve_module "
    "worker_extension_cls",
)
_EBFT = _inside(
    "ebft",
    "feature_layers embed_method use_whitening alignment_coef diversity_coef ce_coef "
    "adaptive_max_tokens gt_length_multiplier mode stride context_length generate_max_len "
    "n_samples_per_prompt temperature top_p rl_coef advantage_estimator min_completion_prefix",
)
_CHECKPOINTING = _inside(
    "selective_checkpointing", "save save_sliding_window recompute_layer_types offload"
)
_QUANTIZATION = "activation_dtype weight_dtype quantize_embedding group_size"

# Where and how a run is executed.
_EXECUTION: Sequence[Rule] = (
    no_effect(
        "fsdp_config.*auto_wrap_policy fsdp_config.*transformer_layer_cls_to_wrap "
        "fsdp_config.*min_num_params fsdp_version fsdp_config.*version "
        "fsdp_config.*state_dict_type fsdp_final_state_dict_type fsdp_config.*limit_all_gathers "
        "fsdp_config.*sync_module_states fsdp_config.*use_orig_params fsdp_config.*_prefetch "
        "fsdp_config.*cpu_ram_efficient_loading fsdp_config.*cpu_offload_pin_memory "
        "ddp ddp_timeout ddp_bucket_cap_mb ddp_broadcast_buffers ddp_find_unused_parameters "
        "dp_shard_size dp_replicate_size device device_map max_memory gpu_memory_limit "
        "local_rank world_size low_cpu_mem_usage lora_on_cpu qlora_sharded_model_loading "
        "experimental_skip_move_to_device=true accelerator_config base_model_ignore_patterns "
        "deepcompile",
        "FSDP2 wraps each block; how weights are loaded and spread doesn't change the result",
    ),
    no_effect(
        "context_parallel_size=1 sequence_parallel_degree=1 tensor_parallel_size=1 "
        "expert_parallel_size=1 expert_parallel_* heads_k_stride ring_attn_func",
        "sequences and layers aren't split over GPUs; see what fits with `moray plan`",
    ),
    no_effect("resources_per_worker ray_run_name", "see ray"),
    no_effect(
        "attn_implementation flash_attention flash_attn_cross_entropy flash_attn_d512 "
        "flash_attn_fuse_mlp flash_attn_fuse_qkv flash_attn_rms_norm flash_optimum "
        "xformers_attention sdp_attention sage_attention eager_attention sdpa_varlen "
        "flex_attention flex_attn_compile_kwargs large_head_attention fused_attn_kernel "
        "*_hybrid_attn_impl liger_rope liger_rms_norm liger_rms_norm_gated liger_layer_norm "
        "liger_swiglu liger_glu_activation liger_cross_entropy liger_fused_linear_cross_entropy "
        "lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel cut_cross_entropy "
        "chunked_cross_entropy chunked_cross_entropy_num_chunks unsloth_* use_kernels "
        "use_scattermoe use_sonicmoe use_glm_dsa_kernels expert_backend moe_grouped_backend "
        "moe_dequant_chunk_size moe_bnb_fast experts_implementation torch_compile "
        "torch_compile_backend torch_compile_mode torch_compile_options tf32 tiled_mlp "
        "tiled_mlp_num_shards tiled_mlp_use_original_mlp=true llama4_linearized_experts",
        "kernels and precision of matrix products are chosen here; see train.attention, compile",
    ),
    no_effect(
        "gradient_checkpointing_kwargs fsdp_kwargs layer_offloading "
        f"{_CHECKPOINTING} "
        "gc_steps gc_collect_steps torch_empty_cache_steps auto_find_batch_size",
        "what is kept in memory doesn't change the result; see train.gradient_checkpointing",
    ),
)
# What is written down, and where.
_RESULTS: Sequence[Rule] = (
    no_effect(
        "use_swanlab swanlab_* use_trackio trackio_* use_comet comet_* use_otel_metrics "
        "otel_metrics_host=localhost otel_metrics_port=8000 hf_mlflow_log_artifacts "
        "include_tokens_per_second include_tkps=true profiler_steps profiler_steps_start debug "
        "strict loss_watchdog_threshold loss_watchdog_patience",
        "logging; see tracking and train.profile",
    ),
    no_effect(
        "eval_table_size eval_table_max_new_tokens eval_max_new_tokens eval_causal_lm_metrics "
        "do_causal_lm_eval "
        "do_bench_eval bench_dataset bench_split lm_eval_* generate_samples "
        "num_generation_samples=3 generation_max_new_tokens=50 generation_temperature=0.7 "
        "generation_top_p generation_top_k generation_prompt_ratio=0.5 generation_do_sample=true "
        "gradio_* dpo_generate_during_eval",
        "trained models are scored and sampled from afterwards; see evaluate, benchmarks, generate",
    ),
    no_effect(
        "output_dir dataset_prepared_path evals_per_epoch saves_per_epoch eval_strategy "
        "evaluation_strategy save_strategy save_first_step save_safetensors=true save_only_model "
        "dynamic_checkpoint dynamic_checkpoint.enabled dynamic_checkpoint.check_interval=10 "
        "dynamic_checkpoint.trigger_file_path auto_resume_from_checkpoints hub_strategy "
        "hub_revision push_dataset_to_hub tokenizer_save_jinja_files=true merge_lora merge_method "
        "axolotl_config_path",
        "results/ and its checkpoints; see train.save_steps, eval_steps, push",
    ),
    no_effect(
        "streaming streaming_multipack_buffer_size=10000 pretrain_multipack_buffer_size "
        "dataset_processes dataset_num_proc dataset_keep_in_memory num_dataset_shards_to_save "
        "preprocess_iterable is_preprocess dataloader_num_workers dataloader_pin_memory "
        "dataloader_prefetch_factor dataloader_drop_last eval_batch_size eval_sample_packing "
        "eval_sequence_len pad_to_sequence_len pad_to_multiple_of batch_flattening "
        "sample_packing_group_size=100000 sample_packing_bin_size=200 sample_packing_eff_est "
        "sample_packing_mp_start_method multipack_real_batches dpo_padding_free "
        "dpo_use_liger_kernel dpo_use_logits_to_keep precompute_ref_log_probs total_num_tokens "
        "total_supervised_tokens remove_unused_columns",
        "rows are prepared, packed and read here; see data.loader",
    ),
)
# Model, tokenizer and chat template.
_MODEL: Sequence[Rule] = (
    no_effect(
        "tokenizer_type tokenizer_use_fast tokenizer_legacy trust_remote_code hf_use_auth_token "
        "lora_fan_in_fan_out special_tokens.pad_token special_tokens.unk_token "
        "resize_token_embeddings_to_32x is_falcon_derived_model "
        "is_llama_derived_model is_mistral_derived_model is_qwen_derived_model cls_model_config",
        "tokenizers and models are those that Transformers has",
    ),
    no_effect("eot_tokens", "the end of a turn is trained as the chat template writes it"),
    no_effect("mean_resizing_embeddings", "embeddings of new tokens begin as the mean"),
    differs("tokenizer_use_mistral_common", "the tokenizer is the one that Transformers has"),
    differs("special_tokens.bos_token", "the tokenizer's own is kept; see data.bos"),
    differs("shrink_embeddings", "embeddings keep their rows"),
    differs(
        "embeddings_skip_upcast peft_autocast_adapter_dtype=true fp32_norms fp32_norm_classes "
        "fsdp_config.*mixed_precision_policy",
        "all layers are in the precision of the run, adapters in fp32",
    ),
    no_effect("quantize_moe_experts", "experts are quantized with the layers, in 4 bits"),
    differs("default_system_message", "set datasets.NAME.system"),
    refused(
        "added_tokens_overrides fix_untrained_tokens tokenizer_config torch_dtype rope_scaling "
        "overrides_of_model_config overrides_of_model_kwargs model_kwargs",
        "tokenizer and config are those of the model's files",
    ),
    refused(
        "processor_type processor_kwargs skip_prepare_dataset freeze_mm_modules image_size "
        "image_resize_algorithm role_boundaries",
        "images and sound aren't trained with text",
    ),
    feature("scaling_softmax", "scaling_softmax_*", "attention is that of the model's code"),
    feature("use_pose", "pose_*", "positions are those of the rows"),
    refused("s2_attention", "attention is that of the model's code"),
)
# Rows, losses and steps.
_TRAINING: Sequence[Rule] = (
    differs(
        "group_by_length curriculum_sampling sample_packing_sequentially "
        "shuffle_before_merging_datasets",
        "rows have a random order",
    ),
    differs("pretrain_multipack_attn=true", "packed documents don't attend to each other"),
    differs("pretraining_sample_concatenation", "documents are packed as a whole; see data"),
    differs("neftune_noise_alpha noisy_embedding_alpha", "no noise is added to embeddings"),
    differs("adam_epsilon=1e-8", "AdamW's epsilon is 1e-8"),
    differs("metric_for_best_model=eval_loss greater_is_better", "the best is by validation loss"),
    differs("max_prompt_len", "prompts are truncated where a pair is longer than its row"),
    no_effect("dpo_beta", "axolotl has rl_beta for it, and doesn't read this one"),
    refused("dataset_shard_num dataset_shard_idx", "a part of the rows; see datasets.NAME.split"),
    refused("min_sample_len", "short rows are trained; leave them out"),
    refused("dpo_use_weighting", "no such loss"),
    feature("use_eaft", "eaft_alpha eaft_k", "no such loss"),
    refused("liger_use_token_scaling diffusion", "no such loss"),
    refused("kd_trainer", "name the teacher itself under distillation.teacher of the run"),
    feature("lisa_n_layers lisa_step_interval", "lisa_layers_attribute", "layers are all trained"),
    refused(
        "optim_args optim_target_modules embedding_lr embedding_lr_scale lr_groups torchdistx_path",
        "one learning rate for all weights; AdamW's settings have keys of their own",
    ),
    no_effect(
        "adam_beta3 adam_epsilon2 dion_lr dion_momentum dion_rank_fraction dion_rank_multiple_of "
        "qgalore_*",
        "only of optimizers that are refused",
    ),
    refused("lr_quadratic_warmup cosine_constant_lr_ratio lr_div_factor", "no such learning rate"),
    feature("relora relora_steps", "relora_*", "adapters aren't merged and restarted"),
    feature("jagged_restart_steps", "jagged_restart_*", "the learning rate isn't restarted"),
    feature("trainer_cls", "", "no code of one's own trains"),
    no_effect(
        "kd_* mora dense_mixer grokfast_* spectrum_* hatchery nemo_gym_* llmcompressor",
        "only with a plugin that plugins refuses",
    ),
)
# Quantization, rewards of steps and reinforcement learning.
_OTHERS: Sequence[Rule] = (
    refused(
        "gptq gptq_* fp8 fp8_* dsv4_* use_dsv4_kernels use_onebitllms gemma4_fp8_nonexpert "
        "gemma4_nf4_nonexpert nonexpert_quantization nvfp4_merge_aware "
        "nvfp4_merge_aware_start_step "
        f"{_inside('qat', f'{_QUANTIZATION} fake_quant_after_n_steps')}",
        "no such quantization",
    ),
    no_effect(_inside("quantization", _QUANTIZATION), "only for `axolotl quantize`; see gguf"),
    refused("process_reward_model", "a reward is of a whole text"),
    no_effect(
        f"{_TRL} {_VLLM} {_EBFT} gdpo",
        "only for reinforcement learning, which rl names",
    ),
)
# Adapters.
_ADAPTERS: Sequence[Rule] = (
    refused(
        "peft_layers_pattern peft_layer_replication peft_ensure_weight_tying",
        "no such key of adapters",
    ),
    refused("peft peft.loftq_config", "adapters can't begin by LoftQ"),
    no_effect("loraplus_lr_embedding", "embeddings have no adapters"),
    refused("resume_from_checkpoint", "checkpoints of other tools aren't read"),
)
NOTES: Sequence[Rule] = (
    *_EXECUTION,
    *_RESULTS,
    *_MODEL,
    *_TRAINING,
    *_OTHERS,
    *_ADAPTERS,
)
