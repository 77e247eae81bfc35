"""Gemma 3n text decoders: AltUp around every layer, LAuReL, a second embedding for each layer, shared keys and values.

Source: transformers 5.23 ``models/gemma3n/modeling_gemma3n.py``. Against Gemma 4: four versions of the hidden states
pass from layer to layer (``gemma3n_altup``); beside attention goes a residual of low rank (LAuReL); the first layers'
MLPs keep the largest activations alone, whose limit comes from the mean and the deviation of all.
"""

from collections.abc import Sequence
from typing import Any, cast

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.gemma import Masks
from vlmplan.architecture.families.gemma3n_altup import (
    AltUp,
    add_to_others,
    magnitude,
    mean_of_versions,
    stacked,
    version,
    with_magnitude,
)
from vlmplan.architecture.families.gemma4 import (
    Gemma4Attention,
    Gemma4Context,
    Gemma4Decoder,
    Gemma4Text,
    store,
)
from vlmplan.architecture.families.gemma4_experts import Gemma4Norm
from vlmplan.architecture.families.gemma4_shape import FULL, SLIDING, Gemma4Shape, LayerKind, sharing_modes
from vlmplan.architecture.families.llama import GatedMlp
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

PATTERN = 5
"""``Gemma3nTextConfig.__post_init__``: without ``layer_types`` every fifth layer sees everything."""
NUM_SPARSE_LAYERS, DEFAULT_SPARSITY = 10, 0.95
"""The same: without ``activation_sparsity_pattern`` the first ten layers are sparse, if there are more than ten."""


class Gemma3nAttention(Gemma4Attention):
    """``Gemma3nTextAttention``: Gemma 4's, with its modules in another order."""

    def _own_keys_and_values(self, width: int, key_width: int, *, bias: bool) -> None:
        self.k_proj = Linear(width, key_width, bias=bias)
        self.v_proj = Linear(width, key_width, bias=bias)
        self.k_norm = Gemma4Norm(self.kind.head_dim)
        self.v_norm = Gemma4Norm(None)

    def _keys_and_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        batch, num_tokens, _ = x.shape
        heads = (batch, self.kind.num_kv_heads, num_tokens, self.kind.head_dim)
        k = self.k_proj(x).view(*heads)
        k = self.k_norm(k)
        k = ops.rotate(k, cos, sin)
        v = self.v_proj(x).view(*heads)
        v = self.v_norm(v)
        return k, v


class Gemma3nMlp(GatedMlp):
    """``Gemma3nTextMLP``."""

    def __init__(self, width: int, kind: LayerKind, *, activation: str) -> None:
        super().__init__(width, kind.intermediate_size, activation=activation)
        self.is_sparse = kind.is_sparse

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        if self.is_sparse:
            gate = _gaussian_topk(gate)
        activations = self.act_fn(gate)
        up = self.up_proj(x)
        return self.down_proj(ops.mul(activations, up))


def _gaussian_topk(x: Tensor) -> Tensor:
    """``_gaussian_topk``: what lies above the mean and some deviations of its row, else zero."""
    mean = ops.mean_last(x)
    deviation = _deviation(x)
    cutoff = ops.add(mean, ops.scale(deviation))
    return ops.relu(ops.subtract(x, cutoff))


def _deviation(x: Tensor) -> Tensor:
    """``torch.std(x, dim=-1, keepdim=True)``: saves x and its result.

    Backward makes the mean again and two tensors of x's size (``var_backward`` in ``FunctionsManual.cpp``).
    """
    tape = x.tape
    node = tape.node((x,), _deviation_backward, (x.detached(),))
    out = tape.tensor((*x.shape[:-1], 1), x.dtype, node)
    tape.save(node, out)
    tape.move(x.num_bytes)
    return out


def _deviation_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    tape, x = g.tape, node.saved[0]
    assert isinstance(x, Tensor)
    row_values = [tape.tensor(g.shape, g.dtype) for _ in range(3)]
    centred = tape.tensor(x.shape, x.dtype)
    out = tape.tensor(x.shape, x.dtype)
    tape.move(5 * x.num_bytes, num_kernels=3)
    del row_values, centred
    return (out,)


class Laurel(Module):
    """``Gemma3nTextLaurelBlock``: a residual of low rank."""

    def __init__(self, width: int, rank: int) -> None:
        self.linear_left = Linear(width, rank)
        self.linear_right = Linear(rank, width)
        self.post_laurel_norm = Gemma4Norm(width)

    def forward(self, x: Tensor) -> Tensor:
        low = self.linear_left(x)
        low = self.linear_right(low)
        normed = self.post_laurel_norm(low)
        return ops.add(x, normed)


class Gemma3nLayer(Module):
    """``Gemma3nTextDecoderLayer``."""

    def __init__(self, shape: Gemma4Shape, config: Config, kind: LayerKind) -> None:
        self.kind, width = kind, shape.hidden_size
        self.self_attn = Gemma3nAttention(shape, kind)
        self.mlp = Gemma3nMlp(width, kind, activation=shape.activation)
        self.input_layernorm = Gemma4Norm(width)
        self.post_attention_layernorm = Gemma4Norm(width)
        self.pre_feedforward_layernorm = Gemma4Norm(width)
        self.post_feedforward_layernorm = Gemma4Norm(width)
        self.act_fn = ops.activation_module(shape.activation)
        self.altup = AltUp(config)
        self.laurel = Laurel(width, config.integer("laurel_rank"))
        self.per_layer_input_gate = Linear(width, shape.per_layer_width)
        self.per_layer_projection = Linear(shape.per_layer_width, width)
        self.post_per_layer_input_norm = Gemma4Norm(width)
        self.scales_corrected = config.boolean("altup_correct_scale")

    def forward(
        self, x: Tensor, context: Gemma4Context, per_layer: Tensor, shared: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        predictions = self.altup.predict(x)
        active = version(predictions)
        active_normed = self.input_layernorm(active)
        laurel = self.laurel(active_normed)
        attn, *stored = self.self_attn(active_normed, context, shared)
        if stored:
            store(context, self.kind.layer_type, stored)
        attn = self.post_attention_layernorm(attn)
        attn_gated = ops.add(active, attn)
        attn_laurel = ops.scale(ops.add(attn_gated, laurel))
        attn_norm = self.pre_feedforward_layernorm(attn_laurel)
        attn_ffw = self.mlp(attn_norm)
        attn_ffw_norm = self.post_feedforward_layernorm(attn_ffw)
        activated = ops.add(attn_laurel, attn_ffw_norm)
        corrected = self.altup.correct(predictions, activated)
        first = ops.copy(version(corrected))
        if self.scales_corrected:
            first = self.altup.scale_corrected_output(first)
        first = self.per_layer_input_gate(first)
        first = self.act_fn(first)
        first = ops.mul(first, per_layer)
        first = self.per_layer_projection(first)
        first = self.post_per_layer_input_norm(first)
        corrected = add_to_others(corrected, first)
        return (corrected, *stored)


class Gemma3nDecoder(Gemma4Decoder):
    """``Gemma3nTextModel``."""

    def __init__(self, shape: Gemma4Shape, config: Config) -> None:
        super().__init__(shape, config)
        self.num_versions, width = config.integer("altup_num_inputs"), shape.hidden_size
        self.altup_projections = Projections(width, self.num_versions - 1)
        self.altup_unembed_projections = Projections(width, self.num_versions - 1)

    def _layer(self, config: Config, kind: LayerKind) -> Module:
        return Gemma3nLayer(self.shape, config, kind)

    def embed_per_layer(self, ids: Tensor) -> Tensor:
        """``get_per_layer_inputs``: (batch, tokens, layers * width), of ids that lie in the table."""
        with ids.tape.section("embedding_per_layer"):
            is_in_table = ids.tape.tensor(ids.shape, DType.BOOL)
            ids = ids.tape.tensor(ids.shape, DType.INT64)
            embedded = self.embed_tokens_per_layer(ids)
            del is_in_table
            return embedded

    def forward(
        self, x: Tensor, per_layer: list[Tensor], backend: AttentionBackend, masks: Masks | None = None
    ) -> Tensor:
        """``per_layer`` and ``masks`` are as in ``Gemma4Decoder.forward``."""
        tape = x.tape
        parts = self._project(x, per_layer)
        with tape.section("positions"):
            by_type = self._masks(x, backend, masks)
        with tape.section("altup_projections"):
            target = ops.power(magnitude(x))
            versions = [x]
            for projection in self.altup_projections.each():
                projected = ops.to(projection(x), x.dtype)
                versions.append(with_magnitude(projected, target))
            hidden = stacked(versions)
        with tape.section("rotary"):
            context = Gemma4Context(backend, self._positions(x), by_type)
        hidden = self._run_layers(hidden, parts, context)
        with tape.section("altup_unembed_projections"):
            target = ops.power(magnitude(version(hidden)))
            versions = [version(hidden)]
            for projection in self.altup_unembed_projections.each():
                projected = ops.to(projection(version(hidden)), x.dtype)
                versions.append(with_magnitude(projected, target))
            hidden = stacked(versions)
            hidden = mean_of_versions(hidden)
        with tape.section("norm"):
            return self.norm(hidden)

    def _projected(self, x: Tensor) -> Tensor:
        """Scaled in place."""
        return ops.scale_in_place(self.per_layer_model_projection(x))


class Projections(Module):
    """An ``nn.ModuleList`` of Linears of one shape, each with weights of its own."""

    def __init__(self, width: int, count: int) -> None:
        for index in range(count):
            setattr(self, str(index), Linear(width, width))

    def each(self) -> list[Any]:
        return list(self.modules_by_name.values())


def gemma3n_shape(config: Config) -> Gemma4Shape:
    """The shape of a Gemma 3n decoder from its text config."""
    num_versions, active = config.integer("altup_num_inputs"), config.get("altup_active_idx")
    if not isinstance(active, int) or not -num_versions <= active < num_versions:
        raise not_allowed(CONFIG, "altup_active_idx", active, f"the place of one of {num_versions} versions")
    return Gemma4Shape(
        hidden_size=config.integer("hidden_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        vocab_size=config.integer("vocab_size"),
        activation=config.text("hidden_activation"),
        window=config.integer("sliding_window"),
        kinds=_layer_kinds(config),
        has_bias=config.boolean("attention_bias"),
        keys_are_values=False,
        per_layer_width=config.integer("hidden_size_per_layer_input"),
        per_layer_vocab_size=config.integer("vocab_size_per_layer_input"),
        scores=Scores(dropout=config.number("attention_dropout")),
    )


def _layer_kinds(config: Config) -> tuple[LayerKind, ...]:
    """Type, sharing, heads and MLP of each layer. Source: ``Gemma3nTextConfig.__post_init__``."""
    num_layers = config.integer("num_hidden_layers")
    types = config.layer_types() or [FULL if (at + 1) % PATTERN == 0 else SLIDING for at in range(num_layers)]
    if not set(types) <= {FULL, SLIDING}:
        raise not_allowed(CONFIG, "layer_types", sorted(set(types)), f"names out of {FULL} and {SLIDING}")
    heads = config.integer("head_dim"), config.integer("num_key_value_heads")
    sizes, sparsities = _intermediate_sizes(config, num_layers), _sparsities(config, num_layers)
    modes = sharing_modes(config, types)
    return tuple(
        LayerKind(name, mode, *heads, size, sparsity > 0)
        for name, mode, size, sparsity in zip(types, modes, sizes, sparsities, strict=True)
    )


def _intermediate_sizes(config: Config, num_layers: int) -> tuple[int, ...]:
    """One number for all layers, or a list with one for each."""
    if not isinstance(config.get("intermediate_size"), list):
        return (config.integer("intermediate_size"),) * num_layers
    sizes = config.integers("intermediate_size")
    if len(sizes) != num_layers or min(sizes) <= 0:
        raise not_allowed(CONFIG, "intermediate_size", list(sizes), f"a positive integer, or a list of {num_layers}")
    return sizes


def _sparsities(config: Config, num_layers: int) -> Sequence[float]:
    """The part of its activations that each layer's MLP drops; above 0 it looks for them."""
    pattern: object = config.get("activation_sparsity_pattern")
    if pattern is None:
        num_sparse = NUM_SPARSE_LAYERS if num_layers > NUM_SPARSE_LAYERS else 0
        return [DEFAULT_SPARSITY] * num_sparse + [0.0] * (num_layers - num_sparse)
    numbers = cast(list[object], pattern) if isinstance(pattern, list) else [None]
    found = [float(each) for each in numbers if isinstance(each, int | float)]
    if len(found) != len(numbers) or len(found) != num_layers:
        raise not_allowed(CONFIG, "activation_sparsity_pattern", numbers, f"a list of {num_layers} numbers")
    return found


def decoder(config: Config) -> Gemma3nDecoder:
    return Gemma3nDecoder(gemma3n_shape(config), config)


causal_lm = Gemma4Text
