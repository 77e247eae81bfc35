"""Reading Hugging Face ``config.json``: typed, with the defaults of transformers' classes, every error a sentence."""

import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed, shown
from vlmplan.recipe.libraries import PLANNED_TRANSFORMERS, TransformersVersion

CONFIG = "config.json"
ROTATIONS = ("rope_scaling", "rope_parameters")
"""What configurations call the rotation of queries and keys, an object; transformers takes it for none where it is
false, 0 or empty, and the first where both are there (5.23 ``modeling_rope_utils.py``,
``convert_rope_params_to_dict``)."""
MAX_INTEGER = 10**8
"""What no width, count or size in a configuration comes near; more is a mistake, and too much to compute with."""
MAX_LAYERS = 1000
"""The same for the depth of a stack."""
LAYER_KEYS = frozenset(
    (
        *("num_hidden_layers", "num_global_layers", "depth", "layers", "resampler_depth", "conf_num_hidden_layers"),
        *("num_blocks", "encoder_layers", "decoder_layers"),
        "altup_num_inputs",  # each of which has projections of its own
    )
)


@cache
def class_table() -> Mapping[str, Any]:
    """Defaults, sections and aliases of transformers' configuration classes by model_type."""
    text = (Path(__file__).parents[1] / "data" / "config_defaults.json").read_text(encoding="utf-8")
    return json.loads(text)["model_types"]


class Config:
    """One (sub-)configuration.

    A key that the file leaves out has the default of its class; an explicit null stays null, which for some keys
    (``sliding_window``) means something else than leaving it out. Aliases (``n_embd`` for ``hidden_size``) work both
    ways. ``release`` is that of the classes which read it.
    """

    __slots__ = ("_defaults", "_fields", "_names", "_sections", "_values", "model_type", "path", "release")

    def __init__(
        self,
        values: Mapping[str, Any],
        model_type: str | None = None,
        path: str = "",
        release: TransformersVersion = PLANNED_TRANSFORMERS,
    ) -> None:
        self.model_type: str = model_type or values.get("model_type") or ""
        entry: Mapping[str, Any] = class_table().get(self.model_type, {})
        self._fields: Mapping[str, str] = entry.get("aliases", {})
        self._names: dict[str, list[str]] = {}
        self._values, self.path, self.release = values, path, release
        self._defaults: Mapping[str, Any] = entry.get("defaults", {})
        self._sections: Mapping[str, Any] = entry.get("sections", {})
        for alias, field in self._fields.items():
            self._names.setdefault(field, []).append(alias)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def names(self) -> Iterable[str]:
        """The keys of the file and of the defaults of its class."""
        return {*self._values, *self._defaults}

    def own(self, key: str) -> Any:
        """What the file has under this very name."""
        return self._values.get(key)

    def has_key(self, key: str) -> bool:
        """Whether the file has this very name, with null too."""
        return key in self._values

    def has_own(self, key: str) -> bool:
        """Whether the file itself has ``key``, rather than the default of its class."""
        return any(name in self._values for name in self._same(key))

    def get(self, key: str) -> Any:
        """The value of ``key``: as the file has it (null too), else the default of the class, else None.

        Of two names in one file the one that is no field of the class counts: transformers sets fields first and what
        else the file has behind them (``wrap_init_to_accept_kwargs`` of ``configuration_utils.py``).
        """
        for name in self._same(key):
            if name in self._values:
                return self._values[name]
        return self._defaults.get(key, self._defaults.get(self._fields.get(key, key)))

    def _same(self, key: str) -> list[str]:
        """The names that mean the same as ``key``, those that are fields of the class last."""
        field = self._fields.get(key, key)
        return sorted([*self._names.get(field, ()), field], key=self._defaults.__contains__)

    def section(self, key: str, *, is_flat: bool = False) -> "Config":
        """The nested configuration ``key`` with the model_type that transformers gives it.

        ``is_flat``: where the file has no such section, its values stand at this level (older Qwen-VL files).
        """
        spec: Mapping[str, Any] = self._sections.get(key, {})
        value = self._values.get(key)
        if value is None:
            value = self._values if is_flat else spec.get("values", {})
        if not isinstance(value, Mapping):
            raise not_allowed(CONFIG, self._name(key), value, "a mapping")
        values = cast(Mapping[str, Any], value)
        own_type = None if spec.get("is_fixed") or values is self._values else values.get("model_type")
        if own_type is not None and not isinstance(own_type, str):
            raise not_allowed(CONFIG, f"{self._name(key)}.model_type", own_type, "a string")
        return Config(values, own_type or spec.get("model_type"), self._name(key), self.release)

    def sections(self) -> Iterable["Config"]:
        """The nested configurations that the file itself has."""
        return [self.section(key) for key in self._sections if isinstance(self._values.get(key), Mapping)]

    def changed(self, values: Mapping[str, Any]) -> "Config":
        """The same with ``values`` in the place of its own, as the class that it is part of has them."""
        return Config({**self._values, **values}, self.model_type, self.path, self.release)

    def mapping(self, key: str) -> "Config":
        """The object ``key`` with what it says and nothing else; empty where it is missing or null."""
        value: object = self.get(key)
        if not value:
            return Config({}, path=self._name(key))
        if not isinstance(value, Mapping):
            raise not_allowed(CONFIG, self._name(key), value, "a mapping")
        return Config(cast(Mapping[str, Any], value), path=self._name(key))

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer. Raises InputError if it is missing or anything else."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise InputError(f"{CONFIG}: {self._name(key)} is missing; a positive integer is needed")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise not_allowed(CONFIG, self._name(key), value, "a positive integer")
        most = MAX_LAYERS if key in LAYER_KEYS else MAX_INTEGER
        if value > most:
            raise InputError(f"{CONFIG}: {self._name(key)} is {shown(value)}; at most {most:,} can be planned")
        return value

    def count(self, key: str) -> int:
        """An integer that may be 0. Raises InputError if it is missing or anything else."""
        return 0 if self.get(key) == 0 else self.integer(key)

    def optional_integer(self, key: str) -> int | None:
        """A positive integer, or None where the value is null or 0."""
        return self.integer(key) if self.get(key) else None

    def number(self, key: str, default: float = 0.0) -> float:
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise not_allowed(CONFIG, self._name(key), value, "a number")
        return float(value)

    def positive_number(self, key: str, default: float = 0.0) -> float:
        value = self.number(key, default)
        if not value > 0:
            raise not_allowed(CONFIG, self._name(key), value, "a number above 0")
        return value

    def boolean(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise not_allowed(CONFIG, self._name(key), value, "true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise not_allowed(CONFIG, self._name(key), value, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of integers; a single integer counts as a list of one, null as none."""
        value = self.get(key)
        if value is None:
            return ()
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        items: list[Any] = list(cast(list[Any], value)) if isinstance(value, list | tuple) else [None]
        if not all(isinstance(item, int) for item in items):
            raise not_allowed(CONFIG, self._name(key), self.get(key), "a list of integers")
        return tuple(items)

    def layer_types(self) -> tuple[str, ...] | None:
        """What kind each layer is; None where the file does not say.

        Raises InputError for anything but a name for each of ``num_hidden_layers``, as transformers does
        (``PreTrainedConfig.validate_layer_type``).
        """
        return self.names_by_layer("layer_types")

    def names_by_layer(self, key: str) -> tuple[str, ...] | None:
        """A list with a name for each of ``num_hidden_layers``; None where the file does not say."""
        value: object = self.get(key)
        if value is None:
            return None
        names: list[object] = list(cast(list[object], value)) if isinstance(value, list | tuple) else [value]
        num_layers = self.integer("num_hidden_layers")
        if len(names) != num_layers or not all(isinstance(name, str) for name in names):
            raise not_allowed(CONFIG, self._name(key), names, f"a list of {num_layers} names, one a layer")
        return tuple(str(name) for name in names)

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key
