"""How the command line says settings that are on or off: few of their options are called as the setting is."""

from collections.abc import Mapping

SWITCHES: Mapping[str, tuple[str, str]] = {
    "use_rslora": ("use-rslora", "no-rslora"),
    "use_dora": ("use-dora", "no-dora"),
    "uses_autocast": ("autocast", "no-autocast"),
    "train_embeddings": ("train-embeddings", "no-train-embeddings"),
    "train_vision": ("train-vision", "freeze-vision"),
    "train_projector": ("train-projector", "freeze-projector"),
    "train_language": ("train-language", "freeze-language"),
    "full_vision": ("full-vision", "no-full-vision"),
    "full_projector": ("full-projector", "no-full-projector"),
    "fuses_optimizer": ("fused-optimizer", "foreach-optimizer"),
    "deepspeed_adam": ("deepspeed-adam", "torch-adam"),
    "caches_casts": ("cached-casts", "no-cached-casts"),
    "upcasts_frozen": ("kbit-upcast", "no-kbit-upcast"),
    "use_double_quant": ("double-quant", "no-double-quant"),
    "expandable_segments": ("expandable-segments", "no-expandable-segments"),
    "gradient_as_bucket_view": ("gradients-in-buckets", "gradients-beside-buckets"),
    "fsdp": ("fsdp", "no-fsdp"),
    "reshard_after_forward": ("reshard-after-forward", "no-reshard-after-forward"),
    "sync_each_batch": ("sync-each-batch", "no-sync-each-batch"),
    "reduces_in_float32": ("float32-reduce", "no-float32-reduce"),
    "shards_packed": ("shard-packed", "no-shard-packed"),
    "uses_orig_params": ("orig-params", "no-orig-params"),
    "prefetches_forward": ("forward-prefetch", "no-forward-prefetch"),
    "activation_checkpointing": ("activation-checkpointing", "no-activation-checkpointing"),
    "vision_activation_checkpointing": ("vision-activation-checkpointing", "no-vision-activation-checkpointing"),
    "offload_activations": ("offload-activations", "no-offload-activations"),
    "tiled_mlp": ("tiled-mlp", "no-tiled-mlp"),
    "liger_layers": ("liger-layers", "no-liger-layers"),
    "compiled_norms": ("compiled-norms", "no-compiled-norms"),
    "fused_adapters": ("fused-adapters", "no-fused-adapters"),
    "eval_loss": ("eval-loss", "no-eval-loss"),
    "eval_fused_loss": ("eval-fused-loss", "no-eval-fused-loss"),
    "eval_on_start": ("eval-on-start", "no-eval-on-start"),
    "eval_after_training": ("eval-after-training", "no-eval-after-training"),
    "load_best_model_at_end": ("load-best-model-at-end", "no-load-best-model-at-end"),
}
"""The options without dashes that say on and off, by the field of a recipe or of an evaluation."""


def option_text(name: str, value: object) -> str:
    """The option that gives a setting its ``value``, as a command line has it.

    >>> option_text("uses_autocast", False), option_text("micro_batch", 2)
    ('--no-autocast', '--micro-batch 2')
    """
    if name in SWITCHES and isinstance(value, bool):
        return f"--{SWITCHES[name][0 if value else 1]}"
    return f"--{name.replace('_', '-')} {value}"
