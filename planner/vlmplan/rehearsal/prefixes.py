"""A model whose layers are of several kinds, told from rehearsals of its first layers alone.

Only prefixes can be rehearsed: config.json says how many layers there are, and few say which. So the model is cut
behind the first layer, and behind each layer of a kind that none after the first has had. A difference of two such
rehearsals is what a layer of the new kind adds.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

from vlmplan.architecture.generic.model import build_generic
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict
from vlmplan.models.description import TEXT_SECTIONS
from vlmplan.models.tree import ProbedModelFiles

NUM_LAYERS_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""What configurations call the number of layers of the language model."""
OTHER_KEYS = ("num_blocks",)
"""Keys that say the same number again (xLSTM)."""
MOST_LAYERS = 16
"""A kind that first comes behind so many is not rehearsed: each further layer makes rehearsing slower (assumed)."""
LEAST_LAYERS: Mapping[str, int] = {"rwkv": 2}
"""Layers that the class of a type has at the least: RWKV's weights are drawn by the number of layers behind the first,
by which transformers divides."""
TYING_TYPES = frozenset({"zamba"})
"""Types of which transformers refuses a model with one layer that could share its weights with others, and no other."""
BY_LAYER = "per_layer_config"
"""What transformers 5 calls what some layers have in another way, by their numbers (``configuration_utils.py``)."""
LETTERS = "pattern"
"""End of the names of texts with a letter for each layer (``hybrid_override_pattern``)."""


@dataclass(frozen=True, slots=True)
class BytesByKind:
    """Bytes with the first ``num_first`` layers, and what each further one of a kind adds; below 0: takes away."""

    first: int
    further: Mapping[int, int]
    num_first: int = 1

    def of(self, pattern: Sequence[int]) -> int:
        """Bytes with all layers of ``pattern``; those of a kind that was not rehearsed add what most others do.

        >>> BytesByKind(100, {0: 10, 1: 40}).of([0, 0, 1, 0, 2])
        200
        """
        most = max(self.further.values(), default=0)
        return self.first + sum(self.further.get(kind, most) for kind in pattern[self.num_first :])


def lengths(pattern: Sequence[int], num_first: int = 1) -> list[int]:
    """How many layers are rehearsed: the first ``num_first``, and up to each that is the first of its kind behind them.

    >>> lengths([0, 0, 0]), lengths([0, 1, 1, 0, 2]), lengths([0]), lengths([0, 1, 1, 0], 2)
    ([1, 2], [1, 2, 4, 5], [1], [2, 3, 4])
    """
    behind = pattern[num_first:MOST_LAYERS]
    return [num_first, *(index + num_first + 1 for index, kind in enumerate(behind) if kind not in behind[:index])]


def by_kind(pattern: Sequence[int], measured: Mapping[int, int]) -> BytesByKind:
    """What each further layer of a kind takes, from the bytes that were measured at each of ``lengths``.

    >>> by_kind([0, 1, 1, 0], {1: 100, 2: 140, 4: 190}).further
    {1: 40, 0: 10}
    """
    further: dict[int, int] = {}
    num_first, *others = sorted(measured)
    for length in others:
        before = measured[num_first] + sum(further[kind] for kind in pattern[num_first : length - 1])
        further[pattern[length - 1]] = measured[length] - before
    return BytesByKind(measured[num_first], further, num_first)


def layer_pattern(model: ProbedModelFiles) -> tuple[int, ...]:
    """The kind of each layer of the language model, by structure. Raises InputError where its layers cannot be told."""
    layers = build_generic(model.layout).layers
    count = num_layers_of(model.config)
    if layers is None or count is None:
        raise InputError(f"config.json does not say how many layers {model.id} has")
    if len(layers.pattern) != count:
        raise InputError(f"config.json says {count} layers of {model.id}, whose model has {len(layers.pattern)}")
    return tuple(layers.alike[kind] for kind in layers.pattern)


def num_first_layers(model: ProbedModelFiles) -> int:
    """Layers that a prefix has at the least."""
    least = LEAST_LAYERS.get(model.model_type, 1)
    layers = build_generic(model.layout).layers if model.model_type in TYING_TYPES else None
    if layers is None:
        return least
    weights = [[weight for _, weight in kind.named_parameters()] for kind in layers.kinds]
    sharing = [at for at, kind in enumerate(layers.pattern) if any(one.shared_uses for one in weights[kind])]
    return max(least, *(at + 1 for at in sharing[1:2]), 1)


def num_layers_of(config: Mapping[str, Any]) -> int | None:
    """Layers of the language model that a config.json describes; None where it does not say."""
    key = _key_of(_text_section(config))
    return None if key is None else int(_text_section(config)[key])


def shortened(config: Mapping[str, Any], num_layers: int) -> JsonDict:
    """``config`` with the first ``num_layers`` layers of its language model: what has an entry for each, or for some,
    is cut too."""
    values = deepcopy(dict(config))
    section = _text_section(values)
    key = _key_of(section)
    assert key is not None
    whole = section[key]
    for name, value in list(section.items()):
        is_text = isinstance(value, str) and name.endswith(LETTERS)
        if (is_text or isinstance(value, list)) and len(cast(Sequence[Any], value)) == whole:
            section[name] = value[:num_layers]
        if name == BY_LAYER and isinstance(value, dict):
            by_layer = cast(JsonDict, value)
            section[name] = {at: of_layer for at, of_layer in by_layer.items() if int(at) < num_layers}
    counts = [name for name in (*NUM_LAYERS_KEYS, *OTHER_KEYS) if section.get(name) == whole]
    section.update(dict.fromkeys(counts, num_layers))
    return values


def _text_section(config: Mapping[str, Any]) -> JsonDict:
    for name in TEXT_SECTIONS:
        section = config.get(name)
        if isinstance(section, dict):
            return cast(JsonDict, section)
    return cast(JsonDict, config)


def _key_of(section: Mapping[str, Any]) -> str | None:
    return next((key for key in NUM_LAYERS_KEYS if isinstance(section.get(key), int) and section[key] > 0), None)
