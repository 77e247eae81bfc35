"""What an existing ds_config.json says.

Whole numbers may be written as ``5e8``; deprecated names, and field names without ``stage3_``, are understood. "auto"
is refused: it is Hugging Face's Trainer that fills it in, from a model that DeepSpeed does not see.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vlmplan.deepspeed_config.keys import (
    BF16_KEYS,
    DEPRECATED_OFFLOADS,
    DEPRECATED_WITHOUT_EFFECT,
    FP16_KEYS,
    OFFLOAD_OPTIMIZER_KEYS,
    OFFLOAD_PARAM_KEYS,
    REMOVED_TOP_KEYS,
    SECTIONS_WITH_AUTO,
    TOP_KEYS,
    UNMODELLED_BLOCKS,
    UNMODELLED_SWITCHES,
    UNMODELLED_ZERO_KEYS,
    ZERO_ALIASES,
    ZERO_KEYS,
    Key,
)
from vlmplan.errors import InputError
from vlmplan.json_reader import JsonObject, read_json_object, shown
from vlmplan.recipe import Offload, OptimizerKind, Precision, ZeroSettings

DEFAULT_STAGE = 0
"""Without a stage, ZeRO is off."""
TYPO_SIMILARITY = 0.85
"""A key that is unknown at the top level and this close to a known one is refused, not passed over."""

OPTIMIZERS = {
    "adam": OptimizerKind.ADAMW,  # DeepSpeed's Adam is AdamW unless adam_w_mode is false
    "adamw": OptimizerKind.ADAMW,
    "sgd": OptimizerKind.SGD,
    "adafactor": OptimizerKind.ADAFACTOR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DsConfig:
    """What a ds_config.json says; None where it says nothing.

    ``content`` is the file under DeepSpeed's current names, with whole numbers as int, without optimizer and
    scheduler, which the trainer builds itself. ``notes`` are sentences that the user should see.
    """

    source: str
    content: Mapping[str, Any] = field(hash=False)
    zero_stage: int | None
    offload_optimizer: Offload | None
    offload_params: Offload | None
    hpz: int | None
    nvme_path: str | None
    precision: Precision | None
    micro_batch: int | None
    grad_accum: int | None
    train_batch_size: int | None
    gradient_clipping: float | None
    optimizer: OptimizerKind | None
    optimizer_params: Mapping[str, Any] = field(hash=False)
    scheduler: Mapping[str, Any] = field(hash=False)
    notes: tuple[str, ...] = ()

    @property
    def zero(self) -> ZeroSettings:
        """The sizes at the file's own stage."""
        return self.zero_settings(DEFAULT_STAGE if self.zero_stage is None else self.zero_stage)

    def zero_settings(self, stage: int) -> ZeroSettings:
        """The sizes at ``stage``, with DeepSpeed's defaults: communication overlaps at stage 3 unless said."""
        section = self.content.get("zero_optimization", {})
        stated = {item.name: section[item.name] for item in fields(ZeroSettings) if item.name in section}
        return ZeroSettings(**({"overlap_comm": stage == 3} | stated))


def settings_from_ds_config(config: str | Path | Mapping[str, Any], *, name: str = "ds_config") -> DsConfig:
    """What a ds_config.json (a path, or its content under ``name``) says.

    Raises UnavailableError if the file cannot be read, InputError for what is no ds_config.json or not modelled.
    """
    if isinstance(config, (str, Path)):
        config, name = read_json_object(Path(config)), str(config)
    _refuse_auto(config, name)
    top = JsonObject(config, source=name)
    content, notes = _top_content(top)
    zero = content.get("zero_optimization", {})
    optimizer, optimizer_params = _optimizer(top)
    return DsConfig(
        source=name,
        content=content,
        zero_stage=zero.get("stage"),
        offload_optimizer=_device(zero, "offload_optimizer"),
        offload_params=_device(zero, "offload_param"),
        hpz=zero.get("zero_hpz_partition_size"),
        nvme_path=_nvme_path(zero, name),
        precision=_precision(content, name),
        micro_batch=content.get("train_micro_batch_size_per_gpu"),
        grad_accum=content.get("gradient_accumulation_steps"),
        train_batch_size=content.get("train_batch_size"),
        gradient_clipping=content.get("gradient_clipping"),
        optimizer=optimizer,
        optimizer_params=optimizer_params,
        scheduler=_without_auto(top.maybe("scheduler", top.mapping) or {}),
        notes=tuple(notes),
    )


def _refuse_auto(values: Mapping[str, Any], source: str) -> None:
    for key, value in values.items():
        if key in SECTIONS_WITH_AUTO:
            continue
        path = next(_autos(key, value), None)
        if path is not None:
            raise InputError(
                f'{source}: {path} is "auto", which Hugging Face\'s Trainer fills in and DeepSpeed cannot; '
                f"write the number, or leave the key out"
            )


def _autos(path: str, value: Any) -> Iterator[str]:
    if value == "auto":
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from _autos(f"{path}.{key}", item)


def _without_auto(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value != "auto"}


def _top_content(top: JsonObject) -> tuple[dict[str, Any], list[str]]:
    """(the file under current names, notes)."""
    content: dict[str, Any] = {}
    notes: list[str] = []
    for key in top.values:
        if key in REMOVED_TOP_KEYS:
            raise InputError(
                f"{top.source}: {key} has been removed from DeepSpeed, which refuses the file; take it out"
            )
        if key not in TOP_KEYS:
            notes.append(_unknown_top_key(key, top.source))
            content[key] = top.values[key]
        elif key == "zero_optimization":
            content[key] = _zero_content(top)
        elif key in ("bf16", "bfloat16"):
            content["bf16"] = _checked(top.object(key), BF16_KEYS)
        elif key == "fp16":
            content[key] = _checked(top.object(key), FP16_KEYS)
        elif key not in ("optimizer", "scheduler"):
            rule = TOP_KEYS[key]
            content[key] = top.values[key] if rule is None or top.values[key] is None else rule.check(top, key)
    _refuse_unmodelled(top)
    return content, notes


def _unknown_top_key(key: str, source: str) -> str:
    near = difflib.get_close_matches(key, TOP_KEYS, n=1, cutoff=TYPO_SIMILARITY)
    if near:
        raise InputError(f"{source}: DeepSpeed knows no key {key!r} and would ignore it; did you mean {near[0]!r}?")
    return f"{source}: DeepSpeed knows no key {key!r} and ignores it"


def _refuse_unmodelled(top: JsonObject) -> None:
    for block, switch in UNMODELLED_SWITCHES.items():
        section = top.maybe(block, top.object)
        if section is not None and section.values.get(switch) is True:
            section.complain(switch, "vlmplan has no memory model of it")
    for block in UNMODELLED_BLOCKS:
        if top.values.get(block):
            top.complain(block, "vlmplan has no memory model of it")
    types = top.maybe("data_types", top.object)
    if types is not None and types.values.get("grad_accum_dtype") is not None:
        types.complain("grad_accum_dtype", "vlmplan has a memory model of gradients in the model's own type only")
    if top.values.get("communication_data_type") is not None:
        top.complain("communication_data_type", "vlmplan has a memory model of gradients in the model's own type only")


def _zero_content(top: JsonObject) -> dict[str, Any]:
    if isinstance(top.values["zero_optimization"], bool):  # deprecated: true is stage 1
        return {"stage": int(top.values["zero_optimization"])}
    section = top.object("zero_optimization")
    for key, why in UNMODELLED_ZERO_KEYS.items():
        if section.values.get(key) is not None:
            raise InputError(f"{top.source}: zero_optimization.{key} cannot be planned: {why}")
    section = JsonObject(_current_names(section), source=top.source, path="zero_optimization")
    stage = section.values.get("stage", 0)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        section.refuse("stage", "0, 1, 2 or 3")
    content = _checked(section, ZERO_KEYS)
    for key, known in (("offload_optimizer", OFFLOAD_OPTIMIZER_KEYS), ("offload_param", OFFLOAD_PARAM_KEYS)):
        if key in content:
            block = section.object(key)
            content[key] = _checked(block, known)
            if "device" in content[key]:
                block.choice("device", [device.value for device in Offload])
    return content


def _current_names(section: JsonObject) -> dict[str, Any]:
    """The section under DeepSpeed's current names; null means left out."""
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    for key, value in section.values.items():
        name = ZERO_ALIASES.get(key, DEPRECATED_OFFLOADS.get(key, key))
        if key in DEPRECATED_OFFLOADS and value is not None:
            value = {"device": "cpu"} if section.flag(key) else None
        if key == DEPRECATED_WITHOUT_EFFECT or value is None:
            continue
        if name in values:
            raise InputError(
                f"{section.source}: {section.path} has {written[name]} and {key}, which mean the same; one has to go"
            )
        values[name], written[name] = value, key
    return values


def _checked(section: JsonObject, known: Mapping[str, Key]) -> dict[str, Any]:
    section.close(known)
    return {key: known[key].check(section, key) for key in section.values}


def _device(zero: Mapping[str, Any], key: str) -> Offload | None:
    return Offload(zero[key].get("device", "none")) if key in zero else None


def _nvme_path(zero: Mapping[str, Any], source: str) -> str | None:
    paths: list[str] = []
    for key in ("offload_optimizer", "offload_param"):
        block = zero.get(key, {})
        if block.get("device") == "nvme":
            if not block.get("nvme_path"):
                raise InputError(f"{source}: zero_optimization.{key}.device is nvme, but its nvme_path is missing")
            paths.append(block["nvme_path"])
    return paths[0] if paths else None


def _precision(content: Mapping[str, Any], source: str) -> Precision | None:
    bf16, fp16 = content.get("bf16"), content.get("fp16")
    if bf16 is None and fp16 is None:
        return None
    uses_bf16, uses_fp16 = (bool(block and block.get("enabled")) for block in (bf16, fp16))
    if uses_bf16 and uses_fp16:
        raise InputError(f"{source}: bf16.enabled and fp16.enabled are both true; one of the two has to be false")
    if not uses_bf16:
        return Precision.FP16 if uses_fp16 else Precision.FP32
    assert bf16 is not None
    low_weights = bf16.get("bf16_master_weights_and_grads", False)
    if low_weights != bf16.get("bf16_optimizer_states", False):
        raise InputError(
            f"{source}: bf16.bf16_master_weights_and_grads is {shown(low_weights)}; vlmplan has a memory model of it "
            f"only with the same value for bf16.bf16_optimizer_states"
        )
    return Precision.BF16_PURE if low_weights else Precision.BF16


def _optimizer(top: JsonObject) -> tuple[OptimizerKind | None, dict[str, Any]]:
    section = top.maybe("optimizer", top.object)
    if section is None:
        return None, {}
    parameters = _without_auto(section.maybe("params", section.mapping) or {})
    if parameters.get("adam_w_mode") is False:
        raise InputError(f"{top.source}: optimizer.params.adam_w_mode is false; only AdamW (true) can be planned")
    kind = section.maybe("type", section.text)
    if kind is None:
        return None, parameters
    if kind.lower() not in OPTIMIZERS:
        section.refuse("type", "one of AdamW, Adam, SGD, Adafactor")
    return OPTIMIZERS[kind.lower()], parameters
