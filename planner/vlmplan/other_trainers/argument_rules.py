"""What ``TrainingArguments`` refuses of values beside others, and of null.

Source: transformers 5.23 ``training_args.py`` ``__post_init__``, ``_validate_args``; ``trainer_pt_utils.py``
``AcceleratorConfig``; ``trainer_optimizer.py`` ``_parse_optim_args``.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from vlmplan.other_trainers.record import Unwritten
from vlmplan.other_trainers.settings import NO, YES, Settings

NEVER_NULL: Final = (
    *("optim", "lr_scheduler_type", "warmup_steps", "logging_strategy", "logging_steps", "eval_strategy"),
    *("save_strategy", "save_steps", "hub_strategy", "dataloader_num_workers", "ddp_timeout"),
)
"""Which the class compares, or looks up among names, as it is made."""
NEEDS_EVALUATION: Final = ("reduce_lr_on_plateau", "greedy")
DEBUGS: Final = ("underflow_overflow", "tpu_metrics_debug")
OF_ACCELERATOR: Final = (
    *("dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking", "gradient_accumulation_kwargs"),
    "use_configured_state",
)
"""Of ``AcceleratorConfig``, without effect on memory."""
OF_ONE_NUMBER: Final = 1_000_000
"""By which the class makes parts of a run whole numbers before it compares them."""
SAVE_STEPS: Final = 500.0


def refuse_together(settings: Settings, *, logging_steps: float) -> None:
    """Refuse what the class refuses; ``logging_steps``: the trainer's own, which ``eval_steps`` is where nothing is
    said."""
    _refuse_nulls(settings)
    _refuse_steps(settings)
    _refuse_best_without_evaluation(settings, logging_steps)
    scheduler = settings.value("lr_scheduler_type")
    if scheduler in NEEDS_EVALUATION and _strategy(settings, "eval_strategy", "no") in NO:
        settings.refuse("lr_scheduler_type", "eval_strategy: steps or epoch is needed with it")
    if _is_on(settings, "fp16_full_eval") and _is_on(settings, "bf16_full_eval"):
        settings.refuse("fp16_full_eval", "and bf16_full_eval is true too; one of the two is needed")
    if settings.value("dataloader_prefetch_factor") is not None and _number(settings, "dataloader_num_workers", 0) == 0:
        settings.refuse("dataloader_prefetch_factor", "dataloader_num_workers of 1 or more is needed with it")
    _refuse_debug(settings)
    _refuse_accelerator(settings)


def optimizer_arguments(settings: Settings, *, takes_table: bool = False) -> Mapping[str, str]:
    """``optim_args``: text as ``momentum=0.9, nesterov=true``; ``takes_table``: or a table, of which the trainer makes
    such text (axolotl ``core/builders/base.py``)."""
    value: Any = settings.value("optim_args")
    if value is None or isinstance(value, Unwritten):
        return {}
    if takes_table and isinstance(value, Mapping):
        return {str(name): str(one) for name, one in cast("Mapping[Any, Any]", value).items()}
    pairs = [part.split("=") for part in str(value).replace(" ", "").split(",")]
    if not isinstance(value, str) or not all(len(pair) == 2 for pair in pairs):
        settings.refuse("optim_args", "text of names and values is needed, as momentum=0.9, nesterov=true")
        return {}
    return dict(pairs)


def _refuse_nulls(settings: Settings) -> None:
    for key in NEVER_NULL:
        if settings.is_null(key):
            settings.refuse(key, "TrainingArguments takes no null for it; leave the key out")


def _refuse_steps(settings: Settings) -> None:
    strategy, steps = _strategy(settings, "logging_strategy", "steps"), _number(settings, "logging_steps", 1)
    if strategy == "steps" and steps is not None and (steps == 0 or (steps > 1 and steps % 1)):
        settings.refuse("logging_steps", "a whole number of steps, or a part of the run below 1, is needed")
    emptied = _number(settings, "torch_empty_cache_steps", 1)
    if emptied is not None and emptied < 1:
        settings.refuse("torch_empty_cache_steps", "a number of 1 or more is needed")


def _refuse_best_without_evaluation(settings: Settings, logging_steps: float) -> None:
    """``load_best_model_at_end`` needs a checkpoint of every evaluation that may be the best."""
    saves, evaluates = _strategy(settings, "save_strategy", "steps"), _strategy(settings, "eval_strategy", "no")
    if not _is_on(settings, "load_best_model_at_end") or saves in (None, "best") or evaluates is None:
        return
    if saves != evaluates:
        settings.refuse(
            "load_best_model_at_end", f"save_strategy, {saves}, and eval_strategy, {evaluates}, have to be the same"
        )
    elif saves == "steps":
        saved = _number(settings, "save_steps", SAVE_STEPS)
        evaluated = _number(settings, "eval_steps", 0) or _number(settings, "logging_steps", logging_steps)
        if saved is not None and evaluated and not _is_multiple(saved, evaluated):
            settings.refuse(
                "load_best_model_at_end", f"save_steps, {saved:g}, has to be a multiple of eval_steps, {evaluated:g}"
            )


def _is_multiple(saved: float, evaluated: float) -> bool:
    if saved % evaluated == 0:
        return True
    return saved < 1 and evaluated < 1 and saved * OF_ONE_NUMBER % (evaluated * OF_ONE_NUMBER) == 0


def _refuse_debug(settings: Settings) -> None:
    value = settings.value("debug")
    names = value.split() if isinstance(value, str) else []
    if not isinstance(value, Unwritten) and any(name not in DEBUGS for name in names):
        settings.refuse("debug", f"names of {', '.join(DEBUGS)} are needed")


def _refuse_accelerator(settings: Settings) -> None:
    """``accelerator_config``, of which one key decides how many samples a GPU gets."""
    key = "accelerator_config"
    value = settings.value(key)
    if value is None or isinstance(value, Unwritten) or (isinstance(value, str) and not value.startswith("{")):
        return
    section = settings.section(key)
    section.only(
        "split_batches", "it splits per_device_train_batch_size over all processes, which vlmplan does not plan"
    )
    section.ignore(OF_ACCELERATOR)
    section.refuse_unknown()


def _strategy(settings: Settings, key: str, default: str) -> str | None:
    """The name, None where only running a program tells it."""
    value = settings.value(key)
    return None if isinstance(value, Unwritten) else default if value is None else str(value)


def _number(settings: Settings, key: str, default: float) -> float | None:
    """The number, None where there is none, or where it is refused elsewhere."""
    value = settings.value(key)
    return default if value is None else number_of(value)


def number_of(value: object) -> float | None:
    """The number that a value is, as text too."""
    try:
        return None if isinstance(value, bool | Unwritten) else float(str(value))
    except ValueError:
        return None


def _is_on(settings: Settings, key: str) -> bool:
    value = settings.value(key)
    return not isinstance(value, Unwritten) and str(value).casefold() in YES
