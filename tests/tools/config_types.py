"""Write ``planner/vlmplan/data/config_types.json``: what transformers' configuration classes take.

Its classes are strict dataclasses (``huggingface_hub.dataclasses``): a value of another type than the field's is
refused when config.json is read, and so is what their validators object to. What these say of rotations, of the kinds
of layers and of the padding token is found out by asking the classes. Run with transformers installed after its version
in constraints.txt has changed:

    python tests/tools/config_types.py
"""

import collections.abc
import copy
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.configuration_utils import (
    _LEGACY_LAYER_TYPE_REMAP,
    ALLOWED_ATTN_LAYER_TYPES,
    ALLOWED_MLP_LAYER_TYPES,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tools.config_defaults import ANY_NUMBER, NEWER_TYPES
from tools.config_defaults import OUTPUT as DEFAULTS

OUTPUT = DEFAULTS.parent / "config_types.json"
ANY, NEVER = "any", "never"
SCALARS = {int: "int", float: "float", bool: "bool", str: "str", type(None): "null", dict: "dict", list: "list"}
OTHER_ROTATIONS = ("default", "mrope", "su", "axial", "xdrope", "ntk_alpha")
"""Names that some class has or takes for another, beside those of ``ROPE_INIT_FUNCTIONS``."""
NUMBERS = {
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "short_mscale": 1.0,
    "long_mscale": 1.0,
    "original_max_position_embeddings": 1024,
}
LISTS = ("short_factor", "long_factor")
PADDED = r"Embedding\(\s*config\.vocab_size[^()]*(padding_idx|pad_token_id)"
UNKNOWN = "none_of_them"


def kind(annotation: Any) -> Any:
    """What JSON may hold for an annotation: a word, an object, or a list of which one holds."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any or isinstance(annotation, str | typing.ForwardRef):
        return ANY
    if annotation is None:
        return "null"
    if origin in (typing.Union, types.UnionType):
        found = [kind(arg) for arg in args]
        parts = [part for one in found for part in (one if isinstance(one, list) else [one])]
        unique = {json.dumps(part): part for part in parts if part != NEVER}
        return ANY if ANY in parts else [unique[text] for text in sorted(unique)]
    if origin is typing.Literal:
        return {"one_of": list(args)}
    if origin is list:
        return {"list": kind(args[0])}
    if origin is dict:
        return {"dict": [kind(arg) for arg in args]}
    if origin is collections.abc.Sequence:
        return ["str", {"list": kind(args[0])}]
    return SCALARS.get(annotation, NEVER)


def fields(config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """The kind of each field that has a validator, as the nearest strict class has it. Annotations that are strings are
    looked at by nobody: those of ``PreTrainedConfig`` itself."""
    strict = next(cls for cls in config_class.__mro__ if "__validators__" in vars(cls))
    kinds = {name: kind(strict.__dataclass_fields__[name].type) for name in strict.__validators__}
    return {name: found for name, found in sorted(kinds.items()) if found != ANY}


def is_taken(make: Callable[[], object]) -> bool:
    try:
        make()
    except Exception:
        return False
    return True


def rotations(config_class: type[PreTrainedConfig], config: PreTrainedConfig) -> dict[str, list[str]] | None:
    """The keys that each rotation must have, of those that class and model know; None of a class without, or whose
    model never looks a name up."""
    if "rope_parameters" not in config_class.__dataclass_fields__ or "ROPE_INIT_FUNCTIONS[" not in modeling(config):
        return None
    if config.is_heterogeneous or not hasattr(config, "num_attention_heads"):
        return None
    if any(isinstance(part, dict) for part in (config.rope_parameters or {}).values()):
        return None  # of a class with rotations of its own by kind of layer
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    head = {"head_dim": width} if "head_dim" in config_class.__dataclass_fields__ else {}
    partial = (config.rope_parameters or {}).get("partial_rotary_factor", 1.0)
    full = NUMBERS | dict.fromkeys(LISTS, [1.0] * (int(width * partial) // 2))

    def rotated(name: str, values: dict[str, Any]) -> str:
        parameters = {"rope_type": name, "partial_rotary_factor": partial, **copy.deepcopy(values)}
        return config_class(rope_parameters=parameters, **head).rope_parameters["rope_type"]

    found: dict[str, list[str]] = {}
    looked_up = (*ROPE_INIT_FUNCTIONS, "default", config_class.default_rope_type)
    for name in (*OTHER_ROTATIONS, *sorted(ROPE_INIT_FUNCTIONS)):
        if is_taken(lambda name=name: looked_up.index(rotated(name, full))):
            lacking = {key: {other: value for other, value in full.items() if other != key} for key in full}
            found[name] = [
                key for key, values in lacking.items() if not is_taken(lambda v=values, name=name: rotated(name, v))
            ]
    return found if any(found.values()) else None


def checks_layers(config_class: type[PreTrainedConfig], config: PreTrainedConfig) -> list[str]:
    """Of ``layer_types`` and ``mlp_layer_types``, those of which the class takes known kinds alone, one for a layer."""
    num_layers = getattr(config, "num_hidden_layers", None)
    found: list[str] = []
    for key, known in (("layer_types", "full_attention"), ("mlp_layer_types", "dense")):
        if not isinstance(num_layers, int):
            continue
        wrong = ([UNKNOWN] * num_layers, [known] * (num_layers + 1))
        if not any(is_taken(lambda value=value, key=key: config_class(**{key: value})) for value in wrong):
            found.append(key)
    return found


def pads(config: PreTrainedConfig) -> bool:
    """Whether the model's embedding has a row for the padding token, so that the vocabulary must have it. Where the
    defaults of a class make no model, its source says so."""
    if not isinstance(getattr(config, "vocab_size", None), int):
        return False
    model_class = modeling_auto.MODEL_MAPPING.get(type(config), None)
    with torch.device("meta"):
        config.pad_token_id = 0
        if model_class is None or not is_taken(lambda: model_class._from_config(config)):
            return bool(
                re.search(r"Embedding\(\s*config\.vocab_size[^()]*(padding_idx|pad_token_id)", modeling(config))
            )
        config.pad_token_id = config.vocab_size
        return not is_taken(lambda: model_class._from_config(config))


def modeling(config: PreTrainedConfig) -> str:
    """The source of the models of a configuration."""
    source = Path(inspect.getfile(type(config)))
    path = source.with_name(source.name.replace("configuration_", "modeling_"))
    return path.read_text() if path.is_file() else ""


def flat_section(config_class: type[PreTrainedConfig]) -> str | None:
    """The section that takes the keys of a file which has no such section (older files of Qwen2-VL)."""
    for key in config_class.sub_configs_defaults or {}:
        made: list[PreTrainedConfig] = []
        is_taken(lambda made=made: made.append(config_class(vocab_size=ANY_NUMBER)))
        if made and getattr(getattr(made[0], key, None), "vocab_size", None) == ANY_NUMBER:
            return key
    return None


def entry(config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    config = config_class()
    found = {
        "rotations": rotations(config_class, config),
        "layers": checks_layers(config_class, config),
        "flat": flat_section(config_class),
        "even_heads": is_taken(lambda: config_class(head_dim=64)) and not is_taken(lambda: config_class(head_dim=65)),
        "pads": pads(config),
    }
    return {"fields": fields(config_class), **{key: value for key, value in found.items() if value}}


def table() -> dict[str, Any]:
    """The entries by model_type; their kinds and rotations, of which many have the same, by place in a list."""
    names = json.loads(DEFAULTS.read_text())["model_types"]
    entries = {name: entry(CONFIG_MAPPING[name]) for name in names if name in CONFIG_MAPPING}
    kinds = unique(found for one in entries.values() for found in one["fields"].values())
    rotated = unique(one["rotations"] for one in entries.values() if "rotations" in one)
    for one in entries.values():
        one["fields"] = by_kind(one["fields"], kinds)
        if "rotations" in one:
            one["rotations"] = rotated.index(one["rotations"])
    older = json.loads(OUTPUT.read_text())["model_types"] if OUTPUT.is_file() else {}
    entries |= {name: older[name] for name in NEWER_TYPES if name not in entries and name in older}
    return {
        "source": f"transformers {transformers.__version__} (Apache-2.0), models/*/configuration_*.py",
        "kinds": kinds,
        "rotations": rotated,
        "layers": {
            "layer_types": [
                *ALLOWED_ATTN_LAYER_TYPES,
                *_LEGACY_LAYER_TYPE_REMAP,
            ],
            "mlp_layer_types": [*ALLOWED_MLP_LAYER_TYPES],
        },
        "model_types": dict(sorted(entries.items())),
    }


def by_kind(kind_by_name: Mapping[str, Any], kinds: list[Any]) -> dict[str, str]:
    """The names of each kind, which is said by its place."""
    found: dict[str, list[str]] = {}
    for name, one in kind_by_name.items():
        found.setdefault(str(kinds.index(one)), []).append(name)
    return {place: " ".join(names) for place, names in found.items()}


def unique(values: Iterable[Any]) -> list[Any]:
    found = {json.dumps(value, sort_keys=True): value for value in values}
    return [found[text] for text in sorted(found)]


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(table(), indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{OUTPUT.name}: {OUTPUT.stat().st_size} bytes\n")
