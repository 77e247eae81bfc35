"""The DeepSpeed configuration of a trainer's file, and the least that changes of it for another engine or batch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from vlmplan.deepspeed_config.content import ZERO
from vlmplan.errors import InputError
from vlmplan.files import text_of
from vlmplan.files.json_reader import JsonDict, parse_json_object
from vlmplan.other_trainers.ms_swift.shipped import NAMED_DEEPSPEED, zero_file
from vlmplan.other_trainers.named_files import found_file
from vlmplan.other_trainers.opened import OpenedConfig
from vlmplan.other_trainers.readers import SHIPPED_FILES
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload, OptimizerKind

ENGINE_FIELDS = ("zero_stage", "offload_optimizer", "offload_params", "hpz")
BATCH_KEYS = {"train_micro_batch_size_per_gpu": "micro_batch", "gradient_accumulation_steps": "grad_accum"}
STAGE_3_AUTO = ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
"""What may be "auto" at stage 3 alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedSource:
    """The place of a DeepSpeed configuration: in the file ``path``, under the ``name`` of one that the trainer ships,
    or in the trainer's own file, as an object or as JSON ``is_text``."""

    content: JsonDict = field(hash=False)
    path: Path | None = None
    name: str | None = None
    is_text: bool = False
    text: str = ""
    """Of the file."""


def deepspeed_source(opened: OpenedConfig) -> DeepSpeedSource | None:
    """The DeepSpeed configuration that the file asks for; None for none. It has been read before."""
    value = opened.values.get("deepspeed")
    if value is None or str(value).strip().casefold() in ("", "none", "null"):
        return None
    if isinstance(value, Mapping):
        name = "accelerate's" if "deepspeed" in opened.by_launcher else None
        return DeepSpeedSource(content=dict(cast(Mapping[str, Any], value)), name=name)
    name = str(value)
    if opened.trainer == "swift" and name in NAMED_DEEPSPEED:
        return DeepSpeedSource(content=dict(NAMED_DEEPSPEED[name]), name=name)
    if name.lstrip().startswith("{"):
        return DeepSpeedSource(content=parse_json_object(name, source=f"{opened.source}: deepspeed"), is_text=True)
    try:
        path = found_file(name, opened.folder, opened.source, "deepspeed", [])
    except InputError:
        files = SHIPPED_FILES.get(opened.trainer)
        shipped = None if files is None else files.named(name)
        if shipped is None:
            raise
        return DeepSpeedSource(content=dict(shipped), name=name)
    text = text_of(path, name=str(path), keeps_line_ends=True)
    return DeepSpeedSource(content=parse_json_object(text, source=str(path)), path=path, text=text)


def same_engine(one: Recipe, other: Recipe) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in ENGINE_FIELDS)


def new_deepspeed(recipe: Recipe) -> JsonDict:
    """A DeepSpeed file where there was none: what trainers ship, with what is offloaded."""
    assert recipe.zero_stage is not None
    return zero_file(recipe.zero_stage, **_offloads(recipe))


def swift_name(content: Mapping[str, Any]) -> str | None:
    """What ms-swift calls a file that it ships."""
    return next((name for name, shipped in NAMED_DEEPSPEED.items() if shipped == content), None)


def deepspeed_changes(content: Mapping[str, Any], before: Recipe, after: Recipe, num_gpus: int) -> JsonDict:
    """The keys of a DeepSpeed configuration that have to change, object by object; None takes one away."""
    changes: JsonDict = {
        key: getattr(after, name)
        for key, name in BATCH_KEYS.items()
        if isinstance(content.get(key), int) and content[key] != getattr(after, name)
    }
    total = after.samples_per_step(num_gpus)
    if isinstance(content.get("train_batch_size"), int) and content["train_batch_size"] != total:
        raise InputError(f"train_batch_size of the DeepSpeed file is {content['train_batch_size']}, not {total}")
    if after.optimizer is not OptimizerKind.ADAMW and content.get("zero_allow_untested_optimizer") is False:
        changes["zero_allow_untested_optimizer"] = True
    if not same_engine(before, after):
        changes[ZERO] = _zero_changes(content.get(ZERO, {}), before, after)
    return changes


def _zero_changes(zero: Mapping[str, Any], before: Recipe, after: Recipe) -> JsonDict:
    changes: JsonDict = {} if before.zero_stage == after.zero_stage else {"stage": after.zero_stage}
    wanted = _offloads(after)
    for key in ("offload_optimizer", "offload_param"):
        present = zero.get(key)
        is_off = not isinstance(present, Mapping) or cast(Mapping[str, Any], present).get("device", "none") == "none"
        if key not in wanted:
            changes |= {} if is_off else {key: None}
        elif is_off:
            changes[key] = wanted[key] if not isinstance(present, Mapping) else {"device": wanted[key]["device"]}
    if after.hpz == 1 and "zero_hpz_partition_size" in zero:
        changes["zero_hpz_partition_size"] = None
    if after.zero_stage == 3:
        gathers = "stage3_gather_16bit_weights_on_model_save"
        changes |= {} if gathers in zero else {gathers: True}
    else:
        changes |= {key: None for key in STAGE_3_AUTO if zero.get(key) == "auto"}
    return changes


def _offloads(recipe: Recipe) -> dict[str, JsonDict]:
    places = {"offload_optimizer": recipe.offload_optimizer, "offload_param": recipe.offload_params}
    if Offload.NVME in places.values():
        raise InputError("offload to NVMe needs a folder on every node, which only its owner knows")
    return {key: {"device": "cpu", "pin_memory": True} for key, place in places.items() if place is Offload.CPU}


def changed(content: Mapping[str, Any], changes: Mapping[str, Any]) -> JsonDict:
    """``content`` with other values, object by object; None takes a key away.

    >>> changed({"a": {"b": 1, "c": 2}}, {"a": {"b": None, "d": 3}})
    {'a': {'c': 2, 'd': 3}}
    """
    result = dict(content)
    for key, value in changes.items():
        present = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(present, Mapping):
            result[key] = changed(cast(JsonDict, present), cast(JsonDict, value))
        else:
            result[key] = value
    return result


def written_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=4) + "\n"
