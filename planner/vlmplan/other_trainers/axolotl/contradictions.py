"""Keys of axolotl's file that do not go with each other: its schema refuses to start with them (0.19.0
``utils/schemas/validation.py``)."""

from typing import Final

from vlmplan.other_trainers.settings import Settings

EXCLUSIVE: Final = (
    ("gradient_accumulation_steps", "batch_size"),
    ("saves_per_epoch", "save_steps"),
    ("evals_per_epoch", "eval_steps"),
    ("warmup_steps", "warmup_ratio"),
    ("test_datasets", "val_set_size"),
    ("streaming", "val_set_size"),
    ("pretraining_dataset", "val_set_size"),
)
"""Of these one at the most."""
OF_STEPS: Final = (
    ("save_strategy", "save_steps"),
    ("eval_strategy", "eval_steps"),
    ("eval_strategy", "evals_per_epoch"),
)
"""A strategy that has to be ``steps`` beside the other key."""
NEEDED: Final = (
    ("early_stopping_patience", "save_steps"),
    ("early_stopping_patience", "eval_steps"),
    ("pretraining_dataset", "max_steps"),
    ("streaming", "max_steps"),
)
"""A key, and one that it asks for."""
NEVER_EMPTY: Final = ("base_model", "output_dir", "sequence_len", "num_epochs", "learning_rate")
"""Keys whose types have no None: ``output_dir:`` alone is refused."""
OLDER: Final = {"eval_strategy": "evaluation_strategy"}
BATCH: Final = ("micro_batch_size", "gradient_accumulation_steps")


def refuse_contradictions(settings: Settings) -> None:
    """Refuse each of them by its names."""
    for one, other in EXCLUSIVE:
        if settings.is_on(one) and settings.is_on(other):
            settings.refuse(other, f"and {one} is set too; axolotl takes one of the two")
    for strategy, other in OF_STEPS:
        if settings.is_on(other) and _said(settings, strategy) not in ("", "steps"):
            settings.refuse(strategy, f"and {other} is set too, beside which axolotl takes steps alone")
    for one, other in NEEDED:
        if settings.is_on(one) and not settings.is_on(other):
            settings.refuse(one, f"axolotl takes it with {other} alone")
    if _said(settings, "save_strategy") == "best" and "metric_for_best_model" not in settings:
        settings.refuse("save_strategy", "axolotl takes it with metric_for_best_model alone")
    for key in filter(settings.is_null, NEVER_EMPTY):
        settings.refuse_whole(f"{key} has no value, which axolotl refuses; write one, or leave the key out")
    if settings.is_on("batch_size") and not any(settings.is_on(key) for key in BATCH):
        settings.refuse("batch_size", f"axolotl takes it beside {' or '.join(BATCH)} alone")
    _refuse_evaluation_of_nothing(settings)


def _refuse_evaluation_of_nothing(settings: Settings) -> None:
    """``val_set_size: 0`` that is written out, without other samples, and a key that says when to evaluate."""
    has_none = "val_set_size" in settings and not settings.is_on("val_set_size") and not settings.is_on("test_datasets")
    for key in ("eval_steps", "eval_strategy"):
        if has_none and _said(settings, key) not in ("", "0", "no"):
            settings.refuse(key, "and val_set_size is 0, with which axolotl refuses it")


def _said(settings: Settings, key: str) -> str:
    """A value as text, without taking it for read; that of a key's older name where it has none."""
    value = settings.value(key)
    if value is None and key in OLDER:
        value = settings.value(OLDER[key])
    return "" if value is None else str(value)
