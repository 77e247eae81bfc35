"""Which keys of a recipe change neither a GPU's bytes in training nor the seconds of a step.

Source: Automodel@36044ad3, ``nemo_automodel/recipes/_typed_config.py`` for sections, ``recipes/llm/train_ft.py`` and
``recipes/vlm/finetune.py`` for what is read of them.
"""

from typing import Final

NEMO_AUTOMODEL: Final = "NeMo AutoModel"
NOT_PLANNED: Final = "not planned"
WITHOUT_EFFECT: Final = frozenset(
    """model.trust_remote_code model.revision model.cache_dir model.use_sdpa_patching model.load_base_model
    model.text_config.use_cache model.config.use_cache model.config.trust_remote_code model.backend._target_
    model.backend.enable_hf_state_dict_adapter model.backend.enable_fsdp_optimizations model.backend.enable_deepep
    model.backend.dispatcher model.backend.experts model.backend.fake_balanced_gate model.backend.gate_precision
    model.backend.rope_fusion model.backend.linear model.backend.dispatcher_num_sms
    distributed._target_ distributed.sequence_parallel distributed.patch_is_packed_sequence
    distributed.fsdp2_backward_prefetch_depth distributed.fsdp2_forward_prefetch_depth distributed.tp_plan
    distributed.broadcast_buffers distributed.find_unused_parameters distributed.static_graph
    distributed_config._target_ optimizer.lr optimizer.betas optimizer.eps optimizer.weight_decay
    optimizer.param_group_overrides peft.alpha peft._target_ peft.lora_A_init peft.use_triton peft.moe_rank_scaling
    step_scheduler.gc_every_steps step_scheduler.log_remote_every_steps step_scheduler.loss_average_window_steps
    step_scheduler.save_checkpoint_every_epoch step_scheduler.start_step step_scheduler.start_epoch
    step_scheduler.preemption_signal seed nvtx sdpa_method loss_fn.ignore_index loss_fn.reduction
    freeze_config.freeze_audio_tower freeze_config.freeze_video_embedder neftune neftune.noise_alpha
    longalign""".split()
)
SECTIONS: Final = (
    *("dist_env.", "rng.", "lr_scheduler.", "wandb.", "mlflow.", "comet.", "ci.", "benchmark.", "skypilot.", "slurm."),
    *("nemo_run.", "tokenizer.", "embedding_row_repair.", "prewarm.", "mfu.", "moe_metrics.", "tool_call_eval."),
    *("dataset.", "validation_dataset", "validation_dataloader.", "dataloader.", "processor.", "mtp.", "profiling."),
    *("fp8.", "qat.", "quantization.", "compile.", "distributed.moe.", "distributed.pipeline.", "packed_sequence."),
    *("distributed.multimodal.vision.", "distributed.mp_policy.", "distributed.offload_policy.", "model.backend.mok."),
    *("checkpoint.", "model.backend.cuda_graph.", "model.backend.te_fp8.", "magi.", "_"),
)
"""How keys begin of what has no effect beside the keys that are read; those of parallelism, packing and number formats
have none where what they belong to is off."""
OLD_SECTIONS: Final = ("autopipeline.", "parallelizer.", "distributed_config.")
"""Of older releases, which nothing reads any more."""
