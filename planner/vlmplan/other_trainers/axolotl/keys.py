"""axolotl's keys (0.19.0): those of ``TrainingArguments`` under its own names, those without effect, and those with an
effect that is not planned.

Source: ``utils/schemas/*.py``, ``integrations/*/args.py`` for keys of plugins, ``core/builders/base.py`` for what
becomes of them.
"""

from collections.abc import Mapping
from typing import Final

from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.settings import Settings

RENAMED: Mapping[str, str] = {
    "per_device_train_batch_size": "micro_batch_size",
    "per_device_eval_batch_size": "eval_batch_size",
    "num_train_epochs": "num_epochs",
    "optim": "optimizer",
    "lr_scheduler_type": "lr_scheduler",
    "use_rslora": "peft_use_rslora",
    "use_dora": "peft_use_dora",
}
"""What others call otherwise."""
ABSENT: Final = frozenset(
    """activation_checkpointing activation_checkpointing_kwargs average_tokens_across_devices batch_eval_metrics
    bf16_full_eval data_seed dataloader_in_order dataloader_multiprocessing_context dataloader_persistent_workers
    ddp_backend ddp_static_graph disable_tqdm do_eval do_predict do_train enable_jit_checkpoint
    eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start eval_use_gather_object fp16_full_eval
    full_determinism hub_always_push hub_private_repo hub_token ignore_data_skip include_for_metrics
    include_num_input_tokens_seen label_names label_smoothing_factor length_column_name liger_kernel_config log_level
    log_level_replica log_on_each_node logging_first_step logging_nan_inf_filter logging_strategy parallelism_config
    prediction_loss_only project push_to_hub report_to restore_callback_states_from_checkpoint run_name
    save_on_each_node skip_memory_metrics trackio_bucket_id trackio_static_space_id train_sampling_strategy use_cache
    use_cpu use_liger_kernel""".split()
)
"""Arguments of the Trainer that axolotl has no key for: where they stand in its file nobody reads them."""


def own_name(key: str) -> str:
    """axolotl's name of a key that is asked for; empty where it has none.

    >>> own_name("optim"), own_name("sequence_len"), own_name("use_cpu")
    ('optimizer', 'sequence_len', '')
    """
    return "" if key in ABSENT else RENAMED.get(key, key)


ATTENTION_FLAGS: Mapping[str, str] = {
    "xformers_attention": "xformers",
    "sage_attention": "sage",
    "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
"""Older keys of what ``attn_implementation`` names (``LEGACY_ATTN_FLAG_TO_IMPL`` in ``utils/schemas/enums.py``)."""
LIGER_LAYERS = ("liger_rms_norm", "liger_rope", "liger_glu_activation")
WITHOUT_EFFECT: Final = frozenset(
    """adam_beta3 adam_epsilon2 added_tokens_overrides auto_resume_from_checkpoints axolotl_config_path
    base_model_config bench_dataset bench_split center_rewards_coefficient chat_template chat_template_jinja
    chat_template_kwargs cloud comet_api_key comet_experiment_config comet_experiment_key comet_mode comet_online
    comet_project_name comet_workspace cosine_constant_lr_ratio cosine_min_lr_ratio cpo_alpha datasets
    dataset_exact_deduplication dataset_keep_in_memory dataset_num_proc dataset_prepared_path dataset_processes
    dataset_shard_idx dataset_shard_num ddp default_system_message device device_map dion_lr dion_momentum
    dion_rank_fraction dion_rank_multiple_of dpo_beta dpo_generate_during_eval dpo_label_smoothing dpo_loss_type
    dpo_loss_weights dpo_norm_loss dpo_padding_free dpo_use_liger_kernel dpo_use_logits_to_keep dpo_use_weighting
    dynamic_checkpoint eaft_alpha eaft_k early_stopping_patience ebft embedding_lr embedding_lr_scale
    embeddings_skip_upcast eot_tokens eval_causal_lm_metrics eval_max_new_tokens eval_sequence_len
    experimental_skip_move_to_device fix_untrained_tokens flex_attn_compile_kwargs float32 fp32_norm_classes
    fsdp_final_state_dict_type fsdp_version gc_collect_steps gc_steps generation_do_sample generation_max_new_tokens
    generation_prompt_ratio generation_temperature generation_top_k generation_top_p gradio_max_new_tokens
    gradio_server_name gradio_server_port gradio_share gradio_temperature gradio_title heads_k_stride
    hf_mlflow_log_artifacts hf_use_auth_token image_resize_algorithm include_tkps include_tokens_per_second
    is_falcon_derived_model is_llama_derived_model is_mistral_derived_model is_preprocess is_qwen_derived_model
    jagged_restart_anneal_steps jagged_restart_steps jagged_restart_warmup_steps kto_desirable_weight
    kto_undesirable_weight launcher lisa_layers_attribute lisa_n_layers lora_alpha_pattern lora_fan_in_fan_out
    loraplus_lr_embedding loss_watchdog_patience loss_watchdog_threshold low_cpu_mem_usage lr_div_factor lr_groups
    lr_quadratic_warmup max_prompt_len mean_resizing_embeddings merge_lora merge_method min_sample_len
    mlflow_experiment_name mlflow_run_name mlflow_tracking_uri num_dataset_shards_to_save num_generation_samples
    num_labels orpo_alpha otel_metrics_host otel_metrics_port peft_ensure_weight_tying pose_max_context_len
    pose_num_chunks pose_split_on_token_ids precompute_ref_log_probs preprocess_iterable
    pretrain_multipack_attn pretrain_multipack_buffer_size pretraining_dataset pretraining_sample_concatenation
    profiler_steps profiler_steps_start push_dataset_to_hub qlora_sharded_model_loading quantization ray_num_workers
    ray_run_name relora_cpu_offload relora_prune_method relora_prune_ratio resources_per_worker revision_of_model
    model_revision ring_attn_func rl_beta role_boundaries rpo_alpha sample_packing_bin_size sample_packing_eff_est
    sample_packing_group_size sample_packing_mp_start_method sample_packing_sequentially save_first_step
    save_safetensors scaling_softmax_bias scaling_softmax_factor sdpa_varlen shuffle_before_merging_datasets
    shuffle_merged_datasets simpo_gamma skip_prepare_dataset streaming streaming_multipack_buffer_size strict
    tiled_mlp_num_shards tiled_mlp_use_original_mlp tokenizer_config tokenizer_legacy tokenizer_save_jinja_files
    tokenizer_type tokenizer_use_fast tokenizer_use_mistral_common torch_compile_options torchdistx_path
    total_num_tokens total_supervised_tokens trackio_project_name trackio_run_name train_on_inputs trl
    trust_remote_code use_comet use_mlflow use_otel_metrics use_ray use_tensorboard use_trackio use_wandb vllm
    wandb_entity wandb_log_model wandb_mode wandb_name wandb_project wandb_run_id wandb_watch warmup_ratio
    world_size chunked_cross_entropy_num_chunks""".split()
)
"""Keys that change neither the bytes of a GPU in training nor the seconds of a step, or are read only where another
key, which is refused, asks for it."""
DROPPED: Final = frozenset(
    """adam_eps base_model_ignore_patterns debug eta_min full_finetune gptq_disable_exllama gptq_groupsize
    gptq_model_v1 sample_packing_seq_len_multiplier torch_dtype""".split()
)
"""Keys of older releases that its own examples still have: the schema of 0.19 drops what it does not know."""
OF_PLUGINS: Final = tuple(
    """dense_mixer diffusion dsv4_ expert_backend expert_parallel_backend expert_parallel_fallback
    expert_parallel_num expert_parallel_token gemma4_fp8 gemma4_nf4 grokfast_ hatchery kd_ llmcompressor lm_eval_
    moe_ mora nemo_gym_ nonexpert_quantization nvfp4_ qgalore_ spectrum_ swanlab_ use_swanlab""".split()
)
"""How keys begin of plugins that are refused, or that watch a run or come after it."""
HARMLESS_PLUGINS: Final = frozenset(
    """axolotl.integrations.lm_eval.LMEvalPlugin axolotl.integrations.swanlab.SwanLabPlugin
    axolotl.integrations.kernels.KernelsPlugin""".split()
)
"""They evaluate after training, watch it, or do what keys ask for that are refused by themselves."""
LIGER: Final = "axolotl.integrations.liger.LigerPlugin"
CUT_CROSS_ENTROPY: Final = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"


def refuse_techniques(settings: Settings) -> None:
    """Refuse by its name what is not planned."""
    settings.only(
        "fp8 fp8_config fp8_enable_fsdp_float8_all_gather ple_cpu_offload qat gptq use_onebitllms "
        "quantize_moe_experts relora lisa_step_interval "
        "layer_offloading tiled_mlp deepcompile fp32_norms use_kernels use_scattermoe use_sonicmoe use_dsv4_kernels "
        "use_glm_dsa_kernels fused_attn_kernel flash_attn_fuse_mlp flash_attn_cross_entropy flash_attn_rms_norm "
        "flash_optimum s2_attention gemma4_hybrid_attn_impl flash_attn_d512 scaling_softmax llama4_linearized_experts "
        "selective_checkpointing lora_on_cpu use_pose liger_rms_norm_gated",
        NOT_PLANNED,
    )
    settings.only("experts_implementation", f"other kernels of experts: {NOT_PLANNED}", "grouped_mm")
    settings.only("large_head_attention", NOT_PLANNED, "sdpa")
    settings.only("model_quantization_config", f"a quantised checkpoint: {NOT_PLANNED}")
    settings.ignore(("model_quantization_config_kwargs",))
    settings.only(
        "chunked_cross_entropy liger_cross_entropy use_eaft liger_use_token_scaling", f"a loss: {NOT_PLANNED}"
    )
    settings.only("reward_model process_reward_model", "it trains no language model, and is not planned")
    settings.only("trainer_cls", "what a class of one's own does is not known")
    settings.only("shrink_embeddings", f"another number of embeddings: {NOT_PLANNED}")
    added = [*settings.names("tokens"), settings.table("special_tokens").get("additional_special_tokens")]
    if any(added):
        settings.note("a row more of embedding and head for each token that the tokenizer does not have: not counted")
    if settings.maybe_flag("resize_token_embeddings_to_32x"):
        settings.note("resize_token_embeddings_to_32x: up to 31 rows more of embeddings, which are not counted")
    settings.only("max_memory gpu_memory_limit", "layers on several devices, one after another, are not planned")
    settings.only(
        "do_bench_eval do_causal_lm_eval generate_samples eval_table_size", f"answers in training: {NOT_PLANNED}"
    )
    settings.only("reinit_weights", "weights that are made anew, in the type that config.json names, are not planned")
    settings.only("cls_model_config", "another class than the checkpoint's is not planned")
    settings.only(
        "model_config overrides_of_model_config model_kwargs overrides_of_model_kwargs",
        f"it may change the model: {NOT_PLANNED}",
    )
    settings.only("peft peft_layer_replication peft_trainable_token_indices lora_rank_pattern", NOT_PLANNED)
    settings.only("peft_layers_to_transform peft_layers_pattern", f"adapters in some layers alone: {NOT_PLANNED}")
    settings.only("max_packed_sequence_len rope_scaling noisy_embedding_alpha", "axolotl refuses it")
    settings.only("sweep", "it starts one run after another; give the file of one")
    _refuse_parallelism(settings)


def _refuse_parallelism(settings: Settings) -> None:
    """Sizes of 1 are what everybody has. Copies of the model are read with FSDP (``sharding.py``); without it every GPU
    has one (``utils/distributed.py``)."""
    settings.only("tensor_parallel_size", "tensor parallelism is not planned", 1)
    settings.only(
        "context_parallel_size sequence_parallel_degree", "context parallelism (ring attention) is not planned", 1
    )
    settings.only("expert_parallel_size", "expert parallelism is not planned", 1)
    settings.ignore(("dp_shard_size", "dp_replicate_size"))
