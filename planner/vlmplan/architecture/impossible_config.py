"""What no model can have, whatever its family: heads that do not divide their layer, no layers, or a million of them.

transformers refuses most of it when a model is built, some only when it runs; a plan of it would be of no model.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from vlmplan.architecture.config import CONFIG, MAX_LAYERS, ROTATIONS, Config, class_table
from vlmplan.architecture.rotated_sections import check_rotated_sections
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed, shown

NUM_LAYERS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "depth", "layers"),
    *("num_global_layers", "resampler_depth", "encoder_layers", "decoder_layers"),
)
"""What configurations call the depth of a stack."""
MAY_BE_ZERO = ("encoder_layers", "decoder_layers")
"""Of models that have one of the two."""
HEADS = {
    "num_attention_heads": ("hidden_size",),
    "n_head": ("n_embd",),
    "n_heads": ("dim", "d_model"),
    "num_heads": ("embed_dim", "hidden_size"),
    "attention_heads": ("hidden_size",),
}
"""What configurations call the number of heads, and the width that they divide, the first that there is."""
HEAD_WIDTHS = ("head_dim", "kv_channels", "d_kv", "head_size", "attention_head_size", "key_length")
"""Parts of names that say how wide a head is, which then need not divide anything."""
KV_HEADS = "num_key_value_heads"
TYPES_THAT_ROUND = {"glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"}
"""Their heads are as wide as the whole part of the division, which their class's own default leaves a rest of
(transformers 5.23 ``modeling_glm4_moe.py``, ``modeling_glm4v_moe.py``, ``modeling_qwen3_omni_moe.py``:
``hidden_size // num_attention_heads``)."""

WEIGHT_TYPES = ("dtype", "torch_dtype")
TORCH_TYPES = ("bfloat16", "float16", "float32", "float64")
OTHER_TORCH_TYPES = (
    *("half", "float", "double", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "float4_e2m1fn_x2"),
)
"""Floating types that torch 2.13 has beside ``TORCH_TYPES``, by all of their names."""


def check_config(values: Mapping[str, Any]) -> None:
    """Raise InputError for what no model can have, in the configuration or in a section of it, by its key."""
    is_known = values.get("model_type") in class_table()
    for section, path in _sections(values):
        for key in NUM_LAYERS:
            _check_depth(section.own(key), f"{path}{key}", least=0 if key in MAY_BE_ZERO else 1)
        if (
            is_known and section.get("model_type") not in TYPES_THAT_ROUND
        ):  # of others transformers knows which heads have a width of their own
            _check_width(section, path)
        _check_kv_heads(section, path)
        if section.model_type in class_table():
            _check_weight_type(section, path)
            _check_rotation(section, path)
    check_rotated_sections(values)


def _sections(values: Mapping[str, Any]) -> Iterator[tuple[Config, str]]:
    """The configuration and its sections, with the defaults of their classes, and the beginning of their keys."""
    top = Config(values)
    yield top, ""
    for key, value in values.items():
        if isinstance(value, Mapping) and key.endswith("config") and key != "quantization_config":
            yield top.section(key), f"{key}."


def _check_depth(value: object, key: str, *, least: int) -> None:
    if value is None or isinstance(value, list | tuple | Mapping):
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least or value % 1:
        raise not_allowed(CONFIG, key, value, f"a whole number of {least} or more")
    if value > MAX_LAYERS:
        raise InputError(f"{CONFIG}: {key} is {shown(value)}; at most {MAX_LAYERS:,} can be planned")


def _check_weight_type(section: Config, path: str) -> None:
    """A name that torch has (``PreTrainedConfig.__post_init__``), or an object of them by part of the model."""
    for key in WEIGHT_TYPES:
        value = section.own(key)
        if value is not None and not isinstance(value, Mapping) and value not in (*TORCH_TYPES, *OTHER_TORCH_TYPES):
            raise not_allowed(CONFIG, f"{path}{key}", value, f"one of {', '.join(TORCH_TYPES)}")


def _check_rotation(section: Config, path: str) -> None:
    """An object, or one of them by kind of layer: with the name of a rotation, and its factor where it has one."""
    for key in ROTATIONS:
        value = section.own(key)
        if not value:
            continue
        if not isinstance(value, Mapping):
            raise not_allowed(CONFIG, f"{path}{key}", value, "a mapping")
        own = cast(Mapping[str, object], value)
        by_kind = {f"{key}.{name}": _object(part) for name, part in own.items()}
        for name, part in {key: own, **by_kind}.items():
            rotation = Config(part, path=f"{path}{name}")
            rotation.text("rope_type")
            rotation.text("type")
            rotation.number("factor")


def _object(value: object) -> Mapping[str, object]:
    """Nothing of what is no object."""
    return cast(Mapping[str, object], value) if isinstance(value, Mapping) else {}


def _check_width(section: Config, path: str) -> None:
    has_width = any(section.get(key) is not None for key in section.names() if any(part in key for part in HEAD_WIDTHS))
    for key, widths in HEADS.items():
        heads = _count(section.get(key))
        if heads is None:
            continue
        name = next((name for name in widths if _count(section.get(name)) is not None), None)
        width = None if name is None else _count(section.get(name))
        if width is not None and width % heads and not has_width:
            raise InputError(
                f"{CONFIG}: {path}{key} is {heads:,}, which does not divide {path}{name}, {width:,}; attention needs "
                f"heads of equal width"
            )


def _check_kv_heads(section: Config, path: str) -> None:
    heads, kv_heads = _count(section.get("num_attention_heads")), _count(section.get(KV_HEADS))
    if heads is not None and kv_heads is not None and heads % kv_heads:
        raise InputError(
            f"{CONFIG}: {path}{KV_HEADS} is {kv_heads:,}, which does not divide {path}num_attention_heads, {heads:,}; "
            f"each key-value head serves as many heads"
        )


def _count(value: object) -> int | None:
    """A number of heads or a width; None for anything but a positive whole number, which the caller refuses if it needs
    the value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
