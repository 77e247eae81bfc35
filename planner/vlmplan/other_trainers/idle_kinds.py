"""Keys of ``TrainingArguments`` that change neither bytes nor seconds, by what their values have to be.

``HfArgumentParser`` refuses other values, or the optimizer and the scheduler do when training begins (transformers 5.23
``training_args.py``, ``hf_argparser.py``; torch 2.13 ``optim/adamw.py`` for the limits). Numbers in text count: YAML
reads ``1e-4`` as text, and every one of these trainers makes a number of it.
"""

from collections.abc import Mapping
from typing import Final

from vlmplan.other_trainers.settings import Settings

NUMBERS: Final[Mapping[str, tuple[float, float]]] = {
    **dict.fromkeys(("learning_rate", "weight_decay", "adam_epsilon"), (0, float("inf"))),
    **dict.fromkeys(("warmup_steps", "eval_delay"), (0, float("inf"))),
    "logging_steps": (float("-inf"), float("inf")),
    "warmup_ratio": (0, 1),
    "neftune_noise_alpha": (float("-inf"), float("inf")),
}
"""The least and the most of each."""
BETAS: Final = ("adam_beta1", "adam_beta2")
"""Of 0 and more, and below 1: at 1 no mean would move, and torch's and bitsandbytes' optimizers are not built."""
WHOLE: Final = (
    "seed",
    "data_seed",
    "dataloader_prefetch_factor",
    "ddp_timeout",
    "torch_empty_cache_steps",
    "local_rank",
)
FLAGS: Final = tuple(
    """average_tokens_across_devices dataloader_drop_last dataloader_in_order dataloader_persistent_workers
    dataloader_pin_memory ddp_broadcast_buffers ddp_find_unused_parameters ddp_static_graph disable_tqdm do_predict
    enable_jit_checkpoint full_determinism greater_is_better hub_always_push hub_private_repo ignore_data_skip
    log_on_each_node logging_first_step logging_nan_inf_filter push_to_hub remove_unused_columns
    restore_callback_states_from_checkpoint save_on_each_node skip_memory_metrics tf32 use_cache""".split()
)
SCHEDULERS: Final = tuple(
    """linear cosine cosine_with_restarts polynomial constant constant_with_warmup inverse_sqrt reduce_lr_on_plateau
    cosine_with_min_lr cosine_warmup_with_min_lr warmup_stable_decay greedy""".split()
)
LOG_LEVELS: Final = ("detail", "debug", "info", "warning", "error", "critical", "passive")
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "logging_strategy": ("no", "steps", "epoch"),
    "log_level": LOG_LEVELS,
    "log_level_replica": LOG_LEVELS,
    "hub_strategy": ("end", "every_save", "checkpoint", "all_checkpoints"),
    "ddp_backend": ("nccl", "gloo", "mpi", "xccl", "hccl", "cncl", "mccl"),
    "dataloader_multiprocessing_context": ("fork", "spawn", "forkserver"),
}
STRATEGIES: Final = dict.fromkeys(("eval_strategy", "evaluation_strategy"), ("no", "steps", "epoch"))
"""``IntervalStrategy``. Whether one of these evaluates is read with the rest of evaluation, not here."""
KEYS: Final = frozenset((*NUMBERS, *BETAS, *WHOLE, *FLAGS, *CHOICES, "lr_scheduler_type"))


def check_idle(settings: Settings, more_schedulers: tuple[str, ...] = ()) -> None:
    """Refuse values that no run begins with. ``more_schedulers``: those that the trainer has beside transformers'."""
    for key, (least, most) in NUMBERS.items():
        settings.check_number(key, least, most)
    for key in BETAS:
        settings.check_number(key, 0, below=1)
    for key in WHOLE:
        settings.check_number(key, is_whole=True)
    for key in FLAGS:
        settings.check_flag(key)
    for key, choices in {**CHOICES, **STRATEGIES, "lr_scheduler_type": (*SCHEDULERS, *more_schedulers)}.items():
        settings.check_choice(key, choices)
