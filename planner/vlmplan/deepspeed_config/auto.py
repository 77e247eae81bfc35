"""The "auto" of Hugging Face's Trainer in a ds_config.json: which ones it fills in, and with what.

As transformers 5.23 does (``integrations/deepspeed.py``): ``trainer_config_process`` takes batch sizes, clipping,
precision and the optimizer's settings from the trainer's options, ``trainer_config_finalize`` takes sizes from the
model. ``stage3_gather_16bit_weights_on_model_save`` is filled in by accelerate, through which that Trainer runs
(``Accelerator._prepare_deepspeed``). Any other "auto" stays in the file, where DeepSpeed drops it without a word.
"""

from collections.abc import Mapping

REDUCE, PREFETCH, PERSISTENCE = (
    f"zero_optimization.{name}"
    for name in ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
)
STAGE_3_AUTO = frozenset((PREFETCH, PERSISTENCE))
"""Filled in at stage 3 only."""
SIZES_FROM_MODEL = STAGE_3_AUTO | {REDUCE}
OPTION_OF_AUTO: Mapping[str, str] = {
    "train_micro_batch_size_per_gpu": "--micro-batch",
    "gradient_accumulation_steps": "--grad-accum",
    "train_batch_size": "--global-batch",
    "gradient_clipping": "1.0",
    "bf16.enabled": "--precision",
    "fp16.enabled": "--precision",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "true",
    "optimizer.params.lr": "--learning-rate",
    "optimizer.params.betas": "0.9 and 0.999",
    "optimizer.params.eps": "1e-8",
    "optimizer.params.weight_decay": "--weight-decay",
    "scheduler.params.warmup_min_lr": "0",
    "scheduler.params.warmup_max_lr": "--learning-rate",
    "scheduler.params.total_num_steps": "the steps of the run",
    "scheduler.params.warmup_num_steps": "--warmup-fraction",
}
"""Every other "auto" that is filled in, and what with."""


def auto_problem(path: str, *, stage: object) -> str | None:
    """Why an "auto" at ``path`` cannot be taken; None if it is filled in."""
    if path in OPTION_OF_AUTO or path == REDUCE or (path in STAGE_3_AUTO and stage == 3):
        return None
    if path in STAGE_3_AUTO:
        return f'{path} is "auto", which transformers fills in at stage 3 only; take it out'
    return f'{path} is "auto", which transformers does not fill in; write the value, or leave the key out'


def auto_text(path: str) -> str | None:
    """What an "auto" at ``path`` becomes, in words; None where none is filled in."""
    return TEXT_OF_SIZE.get(path, OPTION_OF_AUTO.get(path))


TEXT_OF_SIZE: Mapping[str, str] = {
    REDUCE: "the square of the model's hidden size",
    PREFETCH: "0.9 times the square of the model's hidden size, at stage 3",
    PERSISTENCE: "10 times the model's hidden size, at stage 3",
}


def sizes_from_hidden_size(hidden_size: int) -> Mapping[str, int]:
    """What transformers makes of the hidden size h, by key: h², 0.9 h² rounded down and 10 h elements."""
    return {
        REDUCE: hidden_size * hidden_size,
        PREFETCH: int(0.9 * hidden_size * hidden_size),
        PERSISTENCE: 10 * hidden_size,
    }
