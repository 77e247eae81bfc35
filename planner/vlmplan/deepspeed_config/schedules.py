"""The schedule that a ds_config.json names, as DeepSpeed 0.19.8 would make it.

``_scheduler_from_config`` (``runtime/engine.py``) takes the class ``scheduler.type`` from ``runtime/lr_schedules.py``,
else from ``torch.optim.lr_scheduler``, stops where neither has it, and calls it with all of ``scheduler.params``, which
have to be there. Capitals count.
"""

from collections.abc import Mapping
from typing import Any

from vlmplan.deepspeed_config.auto import auto_problem
from vlmplan.deepspeed_config.mistakes import Mistakes
from vlmplan.errors import UnknownNameError
from vlmplan.files.json_reader import shown

_WARMUP = "warmup_num_steps warmup_type last_batch_iteration"
PARAMETERS: Mapping[str, tuple[str, str]] = {
    "LRRangeTest": (
        "",
        "lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase "
        "last_batch_iteration",
    ),
    "OneCycle": (
        "cycle_min_lr cycle_max_lr",
        "decay_lr_rate cycle_first_step_size cycle_second_step_size cycle_first_stair_count cycle_second_stair_count "
        "decay_step_size cycle_momentum cycle_min_mom cycle_max_mom decay_mom_rate last_batch_iteration",
    ),
    "WarmupLR": ("", f"warmup_min_lr warmup_max_lr {_WARMUP}"),
    "WarmupDecayLR": ("total_num_steps", f"warmup_min_lr warmup_max_lr {_WARMUP}"),
    "WarmupCosineLR": ("total_num_steps", f"warmup_min_ratio cos_min_ratio {_WARMUP}"),
}
"""What DeepSpeed's own schedules are called with: what they need, and what they take besides."""
STEPS = ("warmup_num_steps", "lr_range_test_step_size")
"""Of these DeepSpeed takes whole numbers from 1 on alone."""
OF_TORCH = tuple(
    """LambdaLR MultiplicativeLR StepLR MultiStepLR ConstantLR LinearLR ExponentialLR SequentialLR CosineAnnealingLR
    ChainedScheduler ReduceLROnPlateau CyclicLR CosineAnnealingWarmRestarts OneCycleLR PolynomialLR
    LRScheduler""".split()
)
"""``__all__`` of ``torch.optim.lr_scheduler`` (torch 2.13)."""


def check_scheduler(scheduler: Mapping[str, Any], mistakes: Mistakes) -> None:
    """What stops DeepSpeed from making the schedule of a file goes to ``mistakes``."""
    kind = scheduler.get("type")
    if kind is None:
        return
    if kind not in PARAMETERS and kind not in OF_TORCH:
        with mistakes.kept():
            where = f"scheduler.type of {mistakes.source}, with which DeepSpeed stops"
            raise UnknownNameError("schedule", kind, (*PARAMETERS, *OF_TORCH), where)
        return
    if "params" not in scheduler:
        mistakes.add(f"scheduler.type is {kind} without scheduler.params, with which DeepSpeed stops; write them")
    elif kind in PARAMETERS:
        _check_parameters(kind, scheduler["params"], mistakes)


def _check_parameters(kind: str, params: Mapping[str, Any], mistakes: Mistakes) -> None:
    needed, others = (names.split() for names in PARAMETERS[kind])
    for name in needed:
        if name not in params:
            mistakes.add(f"scheduler.params.{name} is missing, without which DeepSpeed makes no {kind}")
    for name, value in params.items():
        if name not in (*needed, *others):
            with mistakes.kept():
                where = f"scheduler.params of {mistakes.source}; {kind} does not take it"
                raise UnknownNameError("key", name, (*needed, *others), where)
        elif value == "auto" and (problem := auto_problem(f"scheduler.params.{name}", stage=None)):
            mistakes.add(problem)
        elif name in STEPS and value != "auto" and (type(value) is not int or value < 1):
            mistakes.add(f"scheduler.params.{name} is {shown(value)}, with which DeepSpeed stops; 1 or more is needed")
