"""What a run that goes on may change of its plan.

Weights, optimizer and the order of samples come from the checkpoint, so what decides them stays; how the work is spread
over GPUs and memory may change, as long as a step takes as many samples.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmplan.launch.moved_model import other_model
from vlmplan.plan import Plan
from vlmplan.recipe.decided import WITHOUT_OPTION
from vlmplan.recipe.evaluation import OPTION_NAMES
from vlmplan.recipe.settings import CHANGEABLE_FIELDS, fixed_settings
from vlmplan.recipe.switches import option_text
from vlmplan.recipe.task import SFT, TASK_OPTION_NAMES
from vlmplan.run.record import SCHEDULE_ENDS, refusal

STAGES_ALIKE = {1, 2}
"""ZeRO stages that read each other's checkpoints; all other pairs fail in DeepSpeed 0.19.8 (tried on two CPU ranks)."""
HARDWARE, STEP_SAMPLES = "hardware", "samples a step"
"""What differs and is no option's value alone."""
PARTS = {"evaluation": (OPTION_NAMES, "no --eval-batch"), "task": (TASK_OPTION_NAMES, f"--task {SFT}")}
"""Settings that several options make: their names, and what is said where there is none."""


def plan_problems(before: Plan, plan: Plan, folder: Path, *, is_begun: bool = True) -> list[str]:
    """Why a run of the plan ``before`` cannot go on with ``plan``; sentences.

    ``is_begun``: there is a checkpoint, which counts the samples that are done by steps.
    """
    model = other_model(before, plan, folder)
    others = _fixed_differences(before, plan, is_begun=is_begun)
    return [refusal(folder, said, now) for said, now in (*(() if model is None else (model,)), *others)]


def _fixed_differences(before: Plan, plan: Plan, *, is_begun: bool) -> Iterator[tuple[str, str]]:
    """What may not differ and does, as it was and as it is."""
    pairs = {
        name: (getattr(before.workload, name), getattr(plan.workload, name))
        for name in ("seq_len", "target_len", "images_per_sample", "audios_per_sample", "audio_seconds")
    }
    if before.workload.images_per_sample and plan.workload.images_per_sample:
        pairs["image_size"] = (_image_size(before), _image_size(plan))
    if is_begun:
        pairs[STEP_SAMPLES] = (before.samples_per_step, plan.samples_per_step)
    mine, theirs = fixed_settings(plan.recipe.as_json()), fixed_settings(before.recipe.as_json())
    pairs |= {name: (theirs[name], value) for name, value in mine.items()}
    if {before.recipe.zero_stage, plan.recipe.zero_stage} == STAGES_ALIKE:
        del pairs["zero_stage"]
    for name, (was, now) in pairs.items():
        if was != now:
            yield _said(name, was, now), _said(name, now, was)


def _image_size(plan: Plan) -> str:
    return f"{plan.workload.image_width}x{plan.workload.image_height}"


def _said(name: str, value: Any, other: Any) -> str:
    """What gives a setting its ``value``, as the command line has it; of several options those whose value the
    ``other`` does not share."""
    if name in PARTS:
        options, none = PARTS[name]
        if value is None:
            return none
        differing = [part for part in options if part in value and (other is None or value[part] != other[part])]
        return " ".join(_one_option(options[part], value[part]) for part in differing)
    shown = "none" if value is None else value
    return f"{name} {shown}" if name in (HARDWARE, STEP_SAMPLES, *WITHOUT_OPTION) else option_text(name, shown)


def _one_option(option: str, value: Any) -> str:
    """
    >>> _one_option("--eval-batch", 2), _one_option("--eval-loss", False), _one_option("--eval-accumulation", None)
    ('--eval-batch 2', 'no --eval-loss', 'no --eval-accumulation')
    """
    if value is None or value is False:
        return f"no {option}"
    return option if value is True else f"{option} {value}"


def plan_changes(before: Plan, plan: Plan) -> list[str]:
    """What a run goes on with otherwise than it was going; sentences."""
    pairs: dict[str, tuple[Any, Any]] = {HARDWARE: (_hardware(before), _hardware(plan))}
    pairs["epochs"] = (before.workload.epochs, plan.workload.epochs)
    mine, theirs = plan.recipe.as_json(), before.recipe.as_json()
    pairs |= {name: (theirs[name], mine[name]) for name in (*CHANGEABLE_FIELDS, "zero_stage") if name != "zero"}
    ends = {"epochs": SCHEDULE_ENDS}
    if mine["evaluation"] and theirs["evaluation"]:  # in which what the best one decides may differ
        pairs["evaluation"] = (theirs["evaluation"], mine["evaluation"])
    changed = [
        f"{_said(name, now, was)} from here on; it was {_said(name, was, now)}{ends.get(name, '')}"
        for name, (was, now) in pairs.items()
        if was != now
    ]
    if mine["zero"] != theirs["zero"]:
        changed.append("the sizes of ZeRO's buffers are other ones from here on")
    return changed


def _hardware(plan: Plan) -> str:
    hardware = plan.hardware
    nodes = f"{hardware.num_nodes} x " if hardware.num_nodes > 1 else ""
    return f"{nodes}{hardware.gpus_per_node} x {hardware.gpu_name}"
