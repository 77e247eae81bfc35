"""What transformers refuses when it reads a config.json, or when it builds the model: values of another type than the
field of the configuration's class, rotations without their keys, kinds of layers that do not fit, a padding token that
the vocabulary does not have.

Its classes are strict dataclasses (``huggingface_hub.dataclasses``), whose fields and validators
``data/config_types.json`` has (``tests/tools/config_types.py`` writes it).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from vlmplan.architecture.config import CONFIG, ROTATIONS, Config
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed, shown
from vlmplan.notes import listed

WORDS = {
    "int": "an integer",
    "float": "a number with a decimal point",
    "bool": "true or false",
    "str": "a string",
    "null": "null",
    "dict": "an object",
    "list": "a list",
    "any": "anything",
}
PLURALS = {"int": "integers", "float": "numbers with a decimal point", "bool": "true or false", "str": "strings"}
NUMBERS_OF_ROTATIONS = {
    "yarn": ("beta_fast", "beta_slow", "original_max_position_embeddings"),
    "llama3": ("original_max_position_embeddings",),
}
"""Numbers that ``validate_rope`` compares, beside those that a rotation must have."""
MAY_BE_NULL = ("beta_fast", "beta_slow")
LISTS = ("short_factor", "long_factor")
OWN_LONG_ROTATION = "short_mscale"
"""What only a class needs that looks at its factors when it runs (PhiMoE)."""
OLDER_SECTIONS = {"molmo2": ("vit_config", "molmo2_vision")}
"""Sections that a class reads under a name of published files too, and the model_type of their own class
(``Molmo2Config.__post_init__``)."""
SMALL_HEAD = 4
"""Heads of at most this width may be odd (``validate_rope``)."""


@cache
def _table() -> Mapping[str, Any]:
    text = (Path(__file__).parents[1] / "data" / "config_types.json").read_text(encoding="utf-8")
    return json.loads(text)


def check_types(values: Mapping[str, Any]) -> None:
    """Raise InputError for what transformers refuses in the configuration or in a section of it, by its key."""
    for section in _sections(Config(values)):
        entry = _entry(section)
        _check_fields(section, entry)
        _check_labels(section)
        _check_layers(section, entry.get("layers", ()))
        if "rotations" in entry and section.get("position_embedding_type") in (None, "rope"):
            _check_rotations(section, _table()["rotations"][entry["rotations"]])
        if entry.get("pads"):
            _check_padding(section)
        if "flat" in entry and section.own(entry["flat"]) is None:  # which takes the fields of its class, not all keys
            flat = section.section(entry["flat"], is_flat=True)
            _check_fields(flat, _entry(flat))


def _entry(section: Config) -> Mapping[str, Any]:
    """What the table has of the section's class; of a class that is not there no field."""
    return _table()["model_types"].get(section.model_type, {"fields": {}})


def _sections(config: Config) -> Iterator[Config]:
    """The configuration and those within, down to the last, each with the type of its class."""
    yield config
    for section in config.sections():
        yield from _sections(section)
    older, model_type = OLDER_SECTIONS.get(config.model_type, ("", ""))
    if isinstance(config.own(older), Mapping):
        yield Config(config.own(older), model_type, older)


def _name(section: Config, key: str) -> str:
    return f"{section.path}.{key}" if section.path else key


def _check_fields(section: Config, entry: Mapping[str, Any]) -> None:
    for place, names in entry["fields"].items():
        kind = _table()["kinds"][int(place)]
        for key in names.split():
            if section.has_key(key) and not _is(section.own(key), kind):
                raise not_allowed(CONFIG, _name(section, key), section.own(key), _words(kind))


def _is(value: object, kind: Any) -> bool:
    """Whether ``type_validator`` of ``huggingface_hub.dataclasses`` takes the value."""
    if isinstance(kind, list):
        return any(_is(value, one) for one in cast(list[Any], kind))
    if isinstance(kind, dict):
        return _is_within(value, cast(dict[str, Any], kind))
    if kind in ("int", "float"):
        number = {"int": int, "float": float}[kind]
        is_infinite = kind == "float" and isinstance(value, dict) and value.keys() == {"__float__"}
        return is_infinite or (isinstance(value, number) and not isinstance(value, bool))
    kinds = {"bool": bool, "str": str, "null": type(None), "dict": dict, "list": list}
    return kind == "any" or (kind in kinds and isinstance(value, kinds[kind]))


def _is_within(value: object, kind: dict[str, Any]) -> bool:
    if "one_of" in kind:
        return value in kind["one_of"]
    if "list" in kind:
        return isinstance(value, list) and all(_is(item, kind["list"]) for item in cast(list[object], value))
    of_keys, of_values = kind["dict"]
    return isinstance(value, dict) and all(
        _is(key, of_keys) and _is(item, of_values) for key, item in cast(dict[object, object], value).items()
    )


def _words(kind: Any) -> str:
    if isinstance(kind, list):
        if kind[:2] == ["float", "int"]:
            kind = ["number", *kind[2:]]
        return " or ".join("a number" if one == "number" else _words(one) for one in cast(list[Any], kind))
    if isinstance(kind, str):
        return WORDS[kind]
    if "one_of" in kind:
        return " or ".join(json.dumps(one) for one in kind["one_of"])
    if "list" in kind:
        of: Any = kind["list"]
        return f"a list of {PLURALS[of]}" if isinstance(of, str) and of in PLURALS else "a list"
    return "an object"


def _check_labels(section: Config) -> None:
    """``PreTrainedConfig.__post_init__``, which makes as many labels as it is told to, or as the file names."""
    labels: object = section.own("id2label")
    count: object = section.own("num_labels")
    if labels is None and section.has_key("num_labels") and not isinstance(count, int):
        raise not_allowed(CONFIG, _name(section, "num_labels"), count, "an integer")
    if labels is not None and not isinstance(labels, dict):
        raise not_allowed(CONFIG, _name(section, "id2label"), labels, "an object")
    named = cast(Mapping[str, object], labels or {})
    for key in named:
        if not key.strip().lstrip("+-").isdecimal():
            raise not_allowed(CONFIG, _name(section, "id2label"), named, "an object with numbers as its keys")
    num_labels = count if labels is None else len(named)
    if section.own("problem_type") == "single_label_classification" and num_labels == 1:
        raise InputError(
            f"{CONFIG}: {_name(section, 'problem_type')} is single_label_classification with one label; transformers "
            f"takes two or more, or regression"
        )


def _check_layers(section: Config, keys: Sequence[str]) -> None:
    """``PreTrainedConfig.validate_layer_type``, and before it ``remap_legacy_layer_types``, which every class calls."""
    kinds, num_layers = section.own("layer_types"), section.get("num_hidden_layers")
    if isinstance(kinds, int | float):
        raise not_allowed(CONFIG, _name(section, "layer_types"), kinds, "a list")
    for key in keys:
        value: object = section.own(key)
        if value is None:
            return
        known = _table()["layers"][key]
        names = cast(list[object], value) if isinstance(value, list) else [value]
        if not isinstance(value, list) or not all(name in known for name in names):
            raise not_allowed(CONFIG, _name(section, key), names, f"a list of {listed(known)}")
        if isinstance(num_layers, int) and len(names) != num_layers:
            raise InputError(
                f"{CONFIG}: {_name(section, key)} has {len(names):,} entries for the "
                f"{num_layers:,} of num_hidden_layers; transformers takes one for each"
            )


def _check_rotations(section: Config, needed_by_type: Mapping[str, Sequence[str]]) -> None:
    """``validate_rope``, and what the model's rotary embedding computes with."""
    key = next((key for key in ROTATIONS if section.own(key)), None)
    own: Mapping[str, Any] = {} if key is None else section.own(key)
    if not isinstance(own, dict):
        raise not_allowed(CONFIG, _name(section, key or ""), own, "an object")
    parts = {} if own.keys() & {"rope_type", "type"} else own
    by_layers: dict[str, Mapping[str, Any]] = {
        f"{key}.{name}": cast(Mapping[str, Any], part) for name, part in parts.items() if isinstance(part, dict)
    }
    for name, part in (by_layers or {key or "": own}).items():
        _check_rotation(_name(section, name), part, needed_by_type)
        if "rope_theta" not in part and section.has_key("rope_theta"):
            _check_number(_name(section, "rope_theta"), section.own("rope_theta"))
        _check_widths(section, name, part)


def _check_rotation(path: str, part: Mapping[str, Any], needed_by_type: Mapping[str, Sequence[str]]) -> None:
    rotation = part.get("rope_type", part.get("type", "default"))
    if not isinstance(rotation, str) or rotation not in needed_by_type:
        raise not_allowed(CONFIG, f"{path}.rope_type", rotation, f"one of {', '.join(needed_by_type)}")
    for key in needed_by_type[rotation]:
        if key not in part:
            raise InputError(f"{CONFIG}: {path} of the type {rotation} has no {key}; transformers needs it")
        if key not in LISTS:
            if part[key] is not None or rotation != "yarn":  # which then takes the lengths that it is for
                _check_number(f"{path}.{key}", part[key])
        elif not isinstance(part[key], list) and OWN_LONG_ROTATION not in needed_by_type[rotation]:
            raise not_allowed(CONFIG, f"{path}.{key}", part[key], "a list of numbers")
    for key in ("rope_theta", *NUMBERS_OF_ROTATIONS.get(rotation, ())):
        if key in part and not (part[key] is None and key in MAY_BE_NULL):
            _check_number(f"{path}.{key}", part[key])


def _check_number(path: str, value: object) -> None:
    if not isinstance(value, int | float):
        raise not_allowed(CONFIG, path, value, "a number")


def _check_widths(section: Config, name: str, part: Mapping[str, Any]) -> None:
    """Heads of an even width, and a factor for each pair of what is rotated of one."""
    width = section.get("head_dim")
    share = part.get("partial_rotary_factor", section.get("partial_rotary_factor"))
    rotated = share if isinstance(share, int | float) else 1.0
    is_whole = isinstance(width, int) and int(width * rotated) == width
    has_even_heads = _table()["model_types"][section.model_type].get("even_heads", False)
    if has_even_heads and is_whole and width > SMALL_HEAD and width % 2:
        raise InputError(
            f"{CONFIG}: {_name(section, 'head_dim')} is {shown(width)}; transformers turns heads of an even width alone"
        )
    heads, hidden = section.get("num_attention_heads"), section.get("hidden_size")
    if width is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        width = hidden // heads
    for key in LISTS if OWN_LONG_ROTATION not in part else ():
        factors = part.get(key)
        if not isinstance(factors, list) or not isinstance(width, int):
            continue
        num_pairs = int(width * rotated) // 2
        if len(cast(list[object], factors)) not in (1, num_pairs):
            raise InputError(
                f"{CONFIG}: {_name(section, name)}.{key} has {len(cast(list[object], factors)):,} factors; the model "
                f"needs {num_pairs:,}, half of what is rotated of a head"
            )


def _check_padding(section: Config) -> None:
    """``torch.nn.Embedding``: 'Padding_idx must be within num_embeddings'."""
    padding, vocabulary = section.own("pad_token_id"), section.get("vocab_size")
    if isinstance(padding, int) and isinstance(vocabulary, int) and not -vocabulary <= padding < vocabulary:
        raise InputError(
            f"{CONFIG}: {_name(section, 'pad_token_id')} is {shown(padding)}, but vocab_size is {shown(vocabulary)}; "
            f"the embedding needs a row for it"
        )
