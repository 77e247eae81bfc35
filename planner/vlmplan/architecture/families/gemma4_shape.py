"""What a Gemma 4 decoder's configuration says: its dimensions, and what tells its layers apart.

Source: transformers 5.23 ``models/gemma4/configuration_gemma4.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vlmplan.architecture.attention_backend import Scores
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import Choice

FULL, SLIDING = "full_attention", "sliding_attention"
GLOBAL_HEAD_DIM = 512
"""``Gemma4TextConfig.__post_init__``: the default of ``global_head_dim``, which is no field of the class."""
UNIFIED = "gemma4_unified_text"
"""The model_type of decoders whose layers have neither parts of a second embedding nor experts, whatever a file says:
``Gemma4UnifiedTextConfig`` has no such fields."""
PATTERN = 6
"""The same: without ``layer_types`` every sixth layer sees everything."""


class Sharing(Choice):
    """What a layer does with keys and values (``kv_sharing_modes``)."""

    NONE = "none"
    STORE = "store"
    REUSE = "reuse"


class LayerKind(NamedTuple):
    """What tells the layers of one decoder apart."""

    layer_type: str
    sharing: Sharing
    head_dim: int
    num_kv_heads: int
    intermediate_size: int
    is_sparse: bool = False
    """Whether its MLP keeps the largest activations alone (``activation_sparsity_pattern`` of Gemma 3n)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Shape:
    """The dimensions of a Gemma 4 decoder."""

    hidden_size: int
    num_layers: int
    num_heads: int
    vocab_size: int
    activation: str
    window: int
    kinds: tuple[LayerKind, ...]
    has_bias: bool
    keys_are_values: bool
    per_layer_width: int
    """Width of the part of the second embedding that each layer gets; 0 where there is none."""
    per_layer_vocab_size: int
    scores: Scores

    @property
    def num_shared(self) -> int:
        """Layers at the end that attend over keys and values of others."""
        return sum(kind.sharing is Sharing.REUSE for kind in self.kinds)

    @property
    def layer_types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind.layer_type for kind in self.kinds))


def gemma4_shape(config: Config) -> Gemma4Shape:
    """The shape of a Gemma 4 decoder from its text config. Raises InputError for an encoder."""
    if config.get("use_bidirectional_attention") == "all":
        raise InputError("config.json: use_bidirectional_attention is all; only causal Gemma models can be planned")
    per_layer_width = config.optional_integer("hidden_size_per_layer_input") or 0
    if config.model_type == UNIFIED:
        per_layer_width = 0
    return Gemma4Shape(
        hidden_size=config.integer("hidden_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        vocab_size=config.integer("vocab_size"),
        activation=config.text("hidden_activation"),
        window=config.integer("sliding_window"),
        kinds=layer_kinds(config),
        has_bias=config.boolean("attention_bias"),
        keys_are_values=config.boolean("attention_k_eq_v"),
        per_layer_width=per_layer_width,
        per_layer_vocab_size=config.integer("vocab_size_per_layer_input") if per_layer_width else 0,
        scores=Scores(dropout=config.number("attention_dropout")),
    )


def layer_kinds(config: Config) -> tuple[LayerKind, ...]:
    """Type, sharing and heads of each layer.

    Source: ``Gemma4TextConfig.__post_init__`` and ``kv_sharing_modes``. The last layer sees everything, whatever
    ``layer_types`` says.
    """
    num_layers = config.integer("num_hidden_layers")
    types = list(config.layer_types() or [FULL if (at + 1) % PATTERN == 0 else SLIDING for at in range(num_layers)])
    types[-1] = FULL
    if not set(types) <= {FULL, SLIDING}:
        raise not_allowed(CONFIG, "layer_types", sorted(set(types)), f"names out of {FULL} and {SLIDING}")
    sharing = sharing_modes(config, types)
    wide = 2 if config.boolean("use_double_wide_mlp") else 1
    kinds: list[LayerKind] = []
    for at, (name, mode) in enumerate(zip(types, sharing, strict=True)):
        intermediate_size = config.integer("intermediate_size") * (wide if mode is Sharing.REUSE else 1)
        kinds.append(LayerKind(name, mode, *_heads(config, at, name), intermediate_size))
    return tuple(kinds)


def sharing_modes(config: Config, types: Sequence[str]) -> list[Sharing]:
    """``kv_sharing_modes`` of layers of these ``types``. Raises InputError where one has no other to share with."""
    num_shared = config.optional_integer("num_kv_shared_layers") or 0
    first_shared = len(types) - num_shared
    owners = types[: max(first_shared, 0)]
    if num_shared and set(owners) != set(types):
        raise InputError(
            f"config.json: num_kv_shared_layers is {num_shared}, which leaves no layer of each type before them "
            f"whose keys and values they could share"
        )
    last = {name: max(at for at, other in enumerate(owners) if other == name) for name in set(owners)}
    modes = [Sharing.REUSE if at >= first_shared else Sharing.NONE for at in range(len(types))]
    for at in last.values() if num_shared or config.release.stores_unshared_keys else ():
        modes[at] = Sharing.STORE
    return modes


def _heads(config: Config, index: int, layer_type: str) -> tuple[int, int]:
    """(width of a head, heads of keys) of one layer; files of transformers 5.23 list what differs by layer."""
    head_dim, num_kv_heads = config.integer("head_dim"), config.integer("num_key_value_heads")
    if config.get("per_layer_config"):
        listed = config.mapping("per_layer_config")
        own = listed.mapping(next((key for key in listed.names() if key.isdigit() and int(key) == index), str(index)))
        return own.integer("head_dim", head_dim), own.integer("num_key_value_heads", num_kv_heads)
    if layer_type != FULL:
        return head_dim, num_kv_heads
    if config.boolean("attention_k_eq_v"):
        num_kv_heads = config.integer("num_global_key_value_heads", num_kv_heads)
    return config.integer("global_head_dim", GLOBAL_HEAD_DIM), num_kv_heads
