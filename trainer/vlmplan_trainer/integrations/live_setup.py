"""A live model and its TrainingArguments → the arguments of ``vlmplan.estimate``.

What the model shows (types of weights, adapters, frozen parts, attention) goes before what its files say; the keys of
TrainingArguments are read as those of a file are, by the same readers.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from vlmplan.errors import InputError
from vlmplan.recipe.choices import ALL_LINEAR, REGEX, Part
from vlmplan_trainer.models.base_model import base_model
from vlmplan_trainer.models.parts import Parts

OWN_KEYS = ("output_dir", "logging_dir", "hub_token", "deepspeed", "use_cpu", "accelerator_config", "fsdp_config")
"""Keys without effect on a plan, or whose values are read elsewhere."""
SIXTEEN_BITS = (torch.bfloat16, torch.float16)
LORA_KEYS: Mapping[str, str] = {"lora_rank": "r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"}


def arguments_file(arguments: Any, folder: Path) -> Path:
    """The arguments of TrainingArguments, or of TRL's SFTConfig, that are not the defaults of ``TrainingArguments``'
    fields, as a file in ``folder`` that vlmplan reads."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(arguments):
        value = getattr(arguments, field.name, None)
        if field.name in OWN_KEYS or value is None or value == _default(field):
            continue
        value = value.value if isinstance(value, Enum) else value
        if _is_plain(value):
            values[field.name] = value
    section = _deepspeed_section(arguments)
    if section is not None:
        values["deepspeed"] = section
    values["per_device_train_batch_size"] = arguments.per_device_train_batch_size
    values["gradient_accumulation_steps"] = arguments.gradient_accumulation_steps
    values["optim"] = getattr(arguments.optim, "value", arguments.optim)
    values["bf16"], values["fp16"] = bool(arguments.bf16), bool(arguments.fp16)
    values["gradient_checkpointing"] = bool(arguments.gradient_checkpointing)
    if _is_trl(arguments):
        values["use_peft"] = False  # a key of TRL's own; adapters are read off the model
    path = folder / "training_arguments.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str) or (isinstance(value, list) and all(map(_is_plain, value)))


def _is_trl(arguments: object) -> bool:
    return any(kind.__module__.startswith("trl.") for kind in type(arguments).__mro__)


def _deepspeed_section(arguments: Any) -> dict[str, Any] | None:
    """DeepSpeed's configuration with what the Trainer has filled in; None without DeepSpeed."""
    section = getattr(getattr(arguments, "hf_deepspeed_config", None), "config", None)
    if not section:
        return None
    kept = json.loads(json.dumps(section))
    # accelerate writes these for its own loop, which logs by itself and accumulates at its boundaries
    for key in ("steps_per_print", "train_batch_size"):
        kept.pop(key, None)
    return cast(dict[str, Any], kept)


PACKED = {"Params4bit": "qlora", "Int8Params": "lora-8bit"}
"""bitsandbytes' weights, and the method that trains beside them."""


def model_options(model: nn.Module, arguments: Any) -> dict[str, Any]:
    """What the model itself decides, as keyword arguments of ``vlmplan.estimate``.

    Raises InputError for adapters that are none of LoRA.
    """
    base = base_model(model)
    section = _deepspeed_section(arguments)
    options: dict[str, Any] = _adapter_options(model)
    kinds = {type(parameter).__name__ for parameter in base.parameters()}
    options |= next(({"method": method} for kind, method in PACKED.items() if kind in kinds), {})
    options |= _frozen_options(base) if options["method"] == "full" else _full_options(base)
    if section is None:
        options |= _type_options(base, options["method"], arguments)
    elif options["method"] == "lora" and (section.get("zero_optimization") or {}).get("stage") == 3:
        trained = {parameter.dtype for parameter in base.parameters() if parameter.requires_grad}
        options["adapter_dtype"] = "float32" if trained == {torch.float32} else "table"
    attention = getattr(base.config, "_attn_implementation", None)
    if attention in ("sdpa", "eager", "flash_attention_2"):
        options["attention"] = attention
    return options


def num_trained(model: nn.Module) -> int:
    """Trained elements, those of ZeRO-3's shards counted whole."""
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return sum(int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in trained)


def gpu_of(arguments: Any) -> str:
    """``gpu`` of ``vlmplan.estimate`` for the ranks of this run on one machine."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return f"cpu:{local}" if arguments.device.type == "cpu" else f"local:{local}"


def num_nodes_of(arguments: Any) -> int:
    return max(1, int(arguments.world_size) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def configuration(model: nn.Module) -> dict[str, Any]:
    """The model's config.json."""
    return cast(dict[str, Any], base_model(model).config.to_dict())


def _adapter_options(model: nn.Module) -> dict[str, Any]:
    configs = getattr(model, "peft_config", None)
    if not configs:
        return {"method": "full"}
    name = getattr(model, "active_adapter", "default")
    config = configs.get(name) or next(iter(configs.values()))
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind != "LORA":
        raise InputError(f"the model has adapters of type {kind}; plans are made of LoRA")
    options: dict[str, Any] = {key: getattr(config, own) for key, own in LORA_KEYS.items()}
    options |= {"method": "lora", "use_rslora": bool(config.use_rslora), "use_dora": bool(config.use_dora)}
    if not isinstance(config.init_lora_weights, bool):
        options["lora_init"] = str(config.init_lora_weights)
    layers = [_names(config.target_modules)] if config.target_modules else []
    if config.target_parameters and layers and layers[0].startswith(REGEX):
        raise InputError(
            f"target_modules is {layers[0].removeprefix(REGEX)}; beside target_parameters names are planned"
        )
    options["lora_targets"] = ",".join([*layers, *(config.target_parameters or ())])
    if config.exclude_modules:
        options["lora_exclude"] = _names(config.exclude_modules)
    copies = set(getattr(config, "modules_to_save", None) or ())
    if copies and copies <= {"embed_tokens", "lm_head"}:
        options["train_embeddings"] = True
    return options


def _names(modules: Any) -> str:
    """peft's names of modules as options have them: text that is no word of its own is a regular expression."""
    if isinstance(modules, str):
        return modules if modules == ALL_LINEAR else REGEX + modules
    return ",".join(sorted(modules))


def _frozen_options(base: Any) -> dict[str, Any]:
    """The parts of which nothing is trained."""
    parts = Parts(base)
    trains: dict[Part, bool] = {}
    for name, parameter in base.named_parameters():
        part = parts[name]
        trains[part] = trains.get(part, False) or parameter.requires_grad
    return {f"train_{part.value}": False for part, is_trained in trains.items() if not is_trained}


def _full_options(base: Any) -> dict[str, Any]:
    """The parts whose own weights are trained, all of them, beside adapters."""
    parts = Parts(base)
    own: dict[Part, set[bool]] = {}
    for name, parameter in base.named_parameters():
        if "lora_" not in name and "modules_to_save" not in name:
            own.setdefault(parts[name], set()).add(parameter.requires_grad)
    return {f"full_{part.value}": True for part, trained in own.items() if trained == {True}}


def _type_options(base: Any, method: str, arguments: Any) -> dict[str, Any]:
    """Types of weights in plain PyTorch and DDP, where they stay as they are loaded."""
    floats = [parameter for parameter in base.parameters() if parameter.is_floating_point()]
    own = {parameter.dtype for parameter in floats if method == "full" or not parameter.requires_grad}
    adapters = {parameter.dtype for parameter in floats if parameter.requires_grad}
    if not (arguments.bf16 or arguments.fp16):
        return {"precision": "fp32"} if own == {torch.float32} else {}
    options: dict[str, Any] = {}
    if own == {torch.float32}:
        options["weight_dtype"] = "float32"
    elif method == "full" and own <= set(SIXTEEN_BITS):
        options["weight_dtype"] = "model"
    if method != "full":
        options["adapter_dtype"] = "float32" if adapters == {torch.float32} else "model"
    return options
