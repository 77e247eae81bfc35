"""What a run that goes on may change of its plan.

Weights, optimizer and the order of samples come from the checkpoint, so what decides them stays; how the work is spread
over GPUs and memory may change, as long as a step takes as many samples.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmplan.plan import Plan
from vlmplan.recipe.settings import CHANGEABLE_FIELDS
from vlmplan.run.record import SCHEDULE_ENDS, refusal

STAGES_ALIKE = {1, 2}
"""ZeRO stages that read each other's checkpoints; all other pairs fail in DeepSpeed 0.19.8 (tried on two CPU ranks)."""


def plan_problems(before: Plan, plan: Plan, folder: Path, *, is_begun: bool = True) -> list[str]:
    """Why a run of the plan ``before`` cannot go on with ``plan``; sentences.

    ``is_begun``: there is a checkpoint, which counts the samples that are done by steps.
    """
    return [refusal(folder, said, now) for said, now in _fixed_differences(before, plan, is_begun=is_begun)]


def _fixed_differences(before: Plan, plan: Plan, *, is_begun: bool) -> Iterator[tuple[str, str]]:
    """What may not differ and does, as it was and as it is."""
    if before.model_source != plan.model_source:
        yield f"model {before.model_source}", f"model {plan.model_source}"
    elif dict(before.workload.model.config) != dict(plan.workload.model.config):
        yield "another config.json of the model", "this one"
    pairs = {
        name: (getattr(before.workload, name), getattr(plan.workload, name))
        for name in ("seq_len", "target_len", "images_per_sample", "audios_per_sample", "audio_seconds")
    }
    if before.workload.images_per_sample and plan.workload.images_per_sample:
        pairs["image_size"] = (_image_size(before), _image_size(plan))
    if is_begun:
        pairs["samples a step"] = (before.samples_per_step, plan.samples_per_step)
    mine, theirs = plan.recipe.as_json(), before.recipe.as_json()
    pairs |= {name: (theirs[name], value) for name, value in mine.items() if name not in CHANGEABLE_FIELDS}
    if {before.recipe.zero_stage, plan.recipe.zero_stage} == STAGES_ALIKE:
        del pairs["zero_stage"]
    for name, (was, now) in pairs.items():
        if was != now:
            yield f"{name} {_text(was)}", f"{name} {_text(now)}"


def _image_size(plan: Plan) -> str:
    return f"{plan.workload.image_width}x{plan.workload.image_height}"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def plan_changes(before: Plan, plan: Plan) -> list[str]:
    """What a run goes on with otherwise than it was going; sentences."""
    pairs: dict[str, tuple[Any, Any]] = {"hardware": (_hardware(before), _hardware(plan))}
    pairs["epochs"] = (before.workload.epochs, plan.workload.epochs)
    mine, theirs = plan.recipe.as_json(), before.recipe.as_json()
    pairs |= {name: (theirs[name], mine[name]) for name in (*CHANGEABLE_FIELDS, "zero_stage") if name != "zero"}
    ends = {"epochs": SCHEDULE_ENDS}
    changed = [
        f"{name} {_text(now)} from here on; it was {_text(was)}{ends.get(name, '')}"
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
