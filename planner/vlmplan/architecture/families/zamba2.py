"""Zamba2: Mamba-2 in every layer, and in some before it a transformer block that several layers share.

Source: transformers 5.23 ``models/zamba2/modeling_zamba2.py`` and ``configuration_zamba2.py``. A block takes hidden
states and embeddings side by side; layers that share one have a low-rank change of their own for some of its Linears,
all of which the block holds. A layer inside a layer with a block is checkpointed within that layer's checkpoint.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.checkpointing import named_input
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import Attention, Decoder, DecoderShape, RotaryContext
from vlmplan.architecture.families.nemotron_h import OLD_NAMES
from vlmplan.architecture.families.packed_patches import Sequential
from vlmplan.architecture.families.state_space import (
    NamedInputMixer,
    StateSpaceKeys,
    StateSpaceShape,
    state_space_shape,
)
from vlmplan.architecture.layer_calls import Calls
from vlmplan.architecture.modules import Linear, Module, RMSNorm, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed

LINEAR, HYBRID = "linear_attention", "hybrid"
DEFAULT_HYBRIDS = (*range(6, 43, 6), 47, 51)
"""The layers with a block of a file that does not say (``Zamba2Config.__post_init__``)."""
DEFAULT_LAYERS = 54
MIXER_KEYS = StateSpaceKeys(
    num_heads="n_mamba_heads",
    head_dim="mamba_headdim",
    num_groups="mamba_ngroups",
    state_size="mamba_d_state",
    num_taps="mamba_d_conv",
    chunk_size="chunk_size",
    activation="hidden_act",
    has_bias="add_bias_linear",
    convolution_bias="use_conv_bias",
)


def low_rank(in_features: int, rank: int, out_features: int) -> Module:
    return Sequential({"0": Linear(in_features, rank), "1": Linear(rank, out_features)})


def changed(change: Any, x: Tensor) -> Tensor:
    """What a low-rank change makes of x."""
    return ops.called(lambda x: change["1"](change["0"](x)), x)


class Use:
    """One of the layers that use a block: ``place`` among all layers with a block, ``places`` of those that have this
    one."""

    def __init__(self, place: int, places: Sequence[int], rank: int) -> None:
        self.place, self.places, self.rank = place, places, rank

    def changes(self, in_features: int, out_features: int) -> Sequential:
        """The low-rank changes of a Linear by all layers that have the block."""
        return Sequential({str(place): low_rank(in_features, self.rank, out_features) for place in self.places})


class SharedAttention(Attention):
    """``Zamba2Attention``: of twice the width; ``shape`` has that, and ``width`` is the hidden states'."""

    def __init__(self, shape: DecoderShape, width: int, use: Use, *, has_positions: bool, is_changed: bool) -> None:
        super().__init__(shape, None)
        self.o_proj = Linear(shape.num_heads * shape.head_dim, width)
        self.has_positions = has_positions
        self.place, self.is_changed = str(use.place), is_changed
        if is_changed:
            twice = shape.hidden_size
            self.linear_q_adapter_list = use.changes(twice, twice)
            self.linear_k_adapter_list = use.changes(twice, twice)
            self.linear_v_adapter_list = use.changes(twice, twice)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.is_changed:
            q = ops.add(q, changed(self.linear_q_adapter_list[self.place], x))
            k = ops.add(k, changed(self.linear_k_adapter_list[self.place], x))
            v = ops.add(v, changed(self.linear_v_adapter_list[self.place], x))
        q, k = self.by_head(q, shape.num_heads), self.by_head(k, shape.num_kv_heads)
        return q, k, v.view(batch, shape.num_kv_heads, num_tokens, shape.head_dim)

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        return super().positioned(q, k, context) if self.has_positions else (q, k)


class SharedMlp(Module):
    """``Zamba2MLP``."""

    def __init__(self, shape: DecoderShape, width: int, use: Use) -> None:
        inner = shape.intermediate_size
        self.gate_up_proj = Linear(width, 2 * inner, bias=shape.mlp_bias)
        self.down_proj = Linear(inner, width, bias=shape.mlp_bias)
        self.act_fn = ops.activation_module(shape.activation)
        self.gate_up_proj_adapter_list = use.changes(width, 2 * inner)
        self.place = str(use.place)

    def forward(self, x: Tensor) -> Tensor:
        up = self.gate_up_proj(x)
        up = ops.add(up, changed(self.gate_up_proj_adapter_list[self.place], x))
        half = (*up.shape[:-1], up.shape[-1] // 2)
        gate, up = ops.split(up, half, half)
        x = ops.mul(self.act_fn(gate), up)
        return self.down_proj(x)


class SharedBlock(Module):
    """``Zamba2AttentionDecoderLayer``, which has no residual."""

    def __init__(self, config: Config, shape: DecoderShape, use: Use) -> None:
        width = config.integer("hidden_size")
        self.self_attn = SharedAttention(
            shape,
            width,
            use,
            has_positions=config.boolean("use_mem_rope"),
            is_changed=config.boolean("use_shared_attention_adapter"),
        )
        self.feed_forward = SharedMlp(shape, width, use)
        self.input_layernorm = RMSNorm(2 * width)
        self.pre_ff_layernorm = RMSNorm(width)

    def forward(self, x: Tensor, embedded: Tensor, context: RotaryContext) -> Tensor:
        x = ops.concatenate([x, ops.shared(embedded)], (*x.shape[:-1], 2 * x.shape[-1]))
        x = self.input_layernorm(x)
        x = self.self_attn(x, context)
        x = self.pre_ff_layernorm(x)
        x = self.feed_forward(x)
        x.tape.layer_locals.clear()  # they are the block's, not the layer's
        return x


class MambaLayer(Module):
    """``Zamba2MambaDecoderLayer``."""

    def __init__(self, shape: StateSpaceShape) -> None:
        self.mamba = NamedInputMixer(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size)

    def forward(self, x: Tensor, context: RotaryContext, attended: Tensor | None = None) -> Tensor:
        residual = x
        x = x if attended is None else ops.add(x, attended)
        x = self.input_layernorm(x)
        x = self.mamba(x, context)
        return ops.add(residual, x)


class HybridLayer(Module):
    """``Zamba2HybridLayer``."""

    def __init__(self, width: int, mamba: MambaLayer, block: SharedBlock) -> None:
        self.linear = Linear(width, width)
        self.mamba_decoder = mamba
        self.shared_transformer = block

    def forward(self, x: Tensor, context: RotaryContext, embedded: Tensor) -> Tensor:
        attended = self.shared_transformer(x, embedded, context)
        attended = named_input(self.linear(attended))
        return self.mamba_decoder(x, context, attended)


class Zamba2Decoder(Decoder):
    """``Zamba2Model``."""

    NORM = "final_layernorm"

    def __init__(self, shape: DecoderShape, width: int, layers: Stack, *, has_positions: bool) -> None:
        super().__init__(replace(shape, hidden_size=width), layers)
        self.has_positions = has_positions
        self.ROTARY_MODULES = Decoder.ROTARY_MODULES if has_positions else ()

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape = x.tape
        with tape.section("positions"):
            embedded = ops.copy(x)
            tape.prefetch()  # for the module of the positions
            context_of = self.contexts(x, backend)
        sharing = [at for at, layer in enumerate(self.layers.kinds) if isinstance(layer, HybridLayer)]
        hidden = self.layers.run_each(x, Calls(context_of, _run_layer), embedded, sharing=sharing)
        with tape.section("norm"):
            return self.final_norm(hidden)

    def windows_of(self, layer: Any) -> Sequence[int | None]:
        return (None,) if isinstance(layer, HybridLayer) else ()

    def positions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.has_positions:
            return super().positions(x)
        nothing = x.tape.tensor((0,), x.dtype)
        return nothing, nothing


def _run_layer(context: RotaryContext, layer: Any, x: Tensor, embedded: Tensor) -> Tensor:
    return layer(x, context, embedded) if isinstance(layer, HybridLayer) else layer(x, context)


def share_weights(modules: Sequence[Module]) -> None:
    """Give all modules, equal ones of as many layers, the weights of the first; none if it is alone. One layer alone
    uses a low-rank change."""
    first, *others = modules
    if not others:
        return
    named = list(first.named_modules())
    for name, module in named:
        for parameter in module.parameters_by_name.values():
            parameter.shared_uses = 1 if "_adapter_list" in name else len(modules)
    for other in others:
        for (_, module), (_, further) in zip(named, other.named_modules(), strict=True):
            for name, parameter in module.parameters_by_name.items():
                setattr(further, name, parameter)


def layer_types(config: Config) -> Sequence[str]:
    """What each layer is: a mixer alone, or one behind a block."""
    names = config.names_by_layer("layers_block_type")
    if names is None:
        num_layers = config.integer("num_hidden_layers")
        if num_layers != DEFAULT_LAYERS:
            needed = f"{DEFAULT_LAYERS} where layers_block_type is not given"
            raise not_allowed(CONFIG, "num_hidden_layers", num_layers, needed)
        return [HYBRID if index in DEFAULT_HYBRIDS else LINEAR for index in range(num_layers)]
    types = [OLD_NAMES.get(name, name) for name in names]
    if not {HYBRID} <= set(types) <= {LINEAR, HYBRID}:
        needed = f"names out of {LINEAR} and {HYBRID}, the latter one of them"
        raise not_allowed(CONFIG, "layers_block_type", sorted(set(types)), needed)
    return types


def _stack(config: Config, shape: DecoderShape) -> Stack:
    """Layers with a block are kinds of their own, as they hold weights of each other."""
    width, num_blocks = config.integer("hidden_size"), config.integer("num_mem_blocks")
    inner_width = config.integer("mamba_expand") * width
    num_heads = config.integer(MIXER_KEYS.num_heads)
    mixer = replace(
        state_space_shape(config, MIXER_KEYS, inner_width=inner_width, head_dim=max(inner_width // num_heads, 1)),
        activation="silu",
        convolution_bias=True,
    )
    types = layer_types(config)
    num_hybrids = types.count(HYBRID)
    rank = config.integer("adapter_rank")
    uses = [Use(place, range(place % num_blocks, num_hybrids, num_blocks), rank) for place in range(num_hybrids)]
    blocks = [SharedBlock(config, shape, use) for use in uses]
    if config.boolean("tie_word_embeddings"):  # which says so of all weights (``get_expanded_tied_weights_keys``)
        for first in range(min(num_blocks, num_hybrids)):
            share_weights(blocks[first::num_blocks])
    make = partial(MambaLayer, mixer)
    kinds: list[Module] = [*([make()] if LINEAR in types else []), *(HybridLayer(width, make(), one) for one in blocks)]
    hybrids = iter(range(len(kinds) - num_hybrids, len(kinds)))
    stack = Stack(kinds, [next(hybrids) if kind == HYBRID else 0 for kind in types], label="layers")
    stack.alike = [int(isinstance(kind, HybridLayer)) for kind in kinds]
    return stack


def decoder(config: Config) -> Zamba2Decoder:
    width, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    shape = DecoderShape(
        hidden_size=2 * width,
        intermediate_size=config.optional_integer("intermediate_size") or 4 * width,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=config.optional_integer("num_key_value_heads") or num_heads,
        head_dim=2 * width // num_heads,
        vocab_size=config.integer("vocab_size"),
        mlp_bias=config.boolean("add_bias_linear"),
        activation=config.text("hidden_act"),
        scores=Scores(dropout=config.number("attention_dropout")),
    )
    return Zamba2Decoder(shape, width, _stack(config, shape), has_positions=config.boolean("use_mem_rope"))
