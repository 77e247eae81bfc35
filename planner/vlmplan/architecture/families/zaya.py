"""Zaya: attention whose queries and keys pass through convolutions, and experts chosen by what the layer before said.

Source: transformers 5.23 ``models/zaya/modeling_zaya.py`` and ``configuration_zaya.py``. The residual is float32. Every
layer but the first gets the router's hidden states of the one before, to which gradients come back: layers are run one
by one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import keep_state
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import DecoderShape, RotaryContext, decoder_shape, stack_of_kinds
from vlmplan.architecture.families.moe import Experts, top, written_anew
from vlmplan.architecture.families.partial_rotary import KindsRotatedDecoder, partly_rotated
from vlmplan.architecture.modules import Linear, Module, RMSNorm, Stack
from vlmplan.architecture.ops import Grads, chunks, only
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

HYBRID, SLIDING = "hybrid", "hybrid_sliding"
"""Kinds of layers, which differ in their window alone."""
ROTARY_FRACTION = 0.5
"""Of a file without ``rope_parameters`` (``ZayaConfig.__post_init__``)."""


class Convolution(Module):
    """``nn.Conv1d`` without padding, ``num_taps`` tokens to one of the result."""

    def __init__(self, channels: int, num_groups: int, num_taps: int) -> None:
        self.weight = Parameter(channels, channels // num_groups, num_taps)
        self.bias = Parameter(channels)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, num_tokens = x.shape
        shape = (batch, channels, num_tokens - self.weight.shape[2] + 1)
        return ops.convolution(x, self.weight, self.bias, shape)


class ZayaProjection(Module):
    """``ZayaCCAProjection``: queries, keys and values (batch, tokens, heads, head_dim). Half of each token's values
    are of the token before."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        self.shape = shape
        width, queries, keys = shape.hidden_size, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(width, queries, bias=shape.qkv_bias)
        self.k_proj = Linear(width, keys, bias=shape.qkv_bias)
        self.v_proj_current = Linear(width, keys // 2, bias=shape.qkv_bias)
        self.v_proj_delayed = Linear(width, keys // 2, bias=shape.qkv_bias)
        taps = config.integer("cca_time0"), config.integer("cca_time1")
        self.num_padded = sum(taps) - len(taps)
        channels = queries + keys
        self.conv_qk_depthwise = Convolution(channels, channels, taps[0])
        self.conv_qk_grouped = Convolution(channels, shape.num_heads + shape.num_kv_heads, taps[1])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, num_tokens, width = x.shape
        shape, tape = self.shape, x.tape
        rows, groups = (batch, num_tokens), shape.num_heads // shape.num_kv_heads
        queries = (*rows, shape.num_heads, shape.head_dim)
        keys = (*rows, shape.num_kv_heads, shape.head_dim)
        q = self.q_proj(x)
        k = self.k_proj(x)
        channels = q.shape[2] + k.shape[2]
        both = ops.concatenate([q, k], (*rows, channels))
        q_residual, k_residual = q.view(*queries), k.view(*keys)
        if groups > 1:
            k_residual = chunks.repeat_heads(k_residual, *queries)
        q_residual = ops.add(q_residual, k_residual)
        q_residual = ops.scale(q_residual)
        k_residual = ops.mean(q_residual.view(*keys[:3], groups, shape.head_dim), keys)
        both = chunks.pad(both.view(batch, channels, num_tokens), batch, channels, num_tokens + self.num_padded)
        keep_state(both, batch, channels, self.num_padded)
        both = self.conv_qk_depthwise(both)
        both = self.conv_qk_grouped(both)
        query = ops.add(ops.slice_last(both.view(*rows, channels), q.shape[2]).view(*queries), q_residual)
        key = ops.add(ops.slice_last(both.view(*rows, channels), k.shape[2]).view(*keys), k_residual)
        current = self.v_proj_current(x)
        delayed = self.v_proj_delayed(x)
        first = self.v_proj_delayed(tape.tensor((batch, 1, width), x.dtype))
        half = current.shape[2]
        v_delayed = ops.concatenate([first, ops.part(delayed, batch, num_tokens - 1, half)], delayed.shape)
        keep_state(delayed, batch, half)
        value = ops.concatenate([current, v_delayed], (*rows, 2 * half))
        return query, key, value.view(*keys)


def row_lengths(x: Tensor) -> Tensor:
    """``x.norm(p=2, dim=-1, keepdim=True)``: saves x and its result. Under autocast that is float32, which the kernel
    makes of x as it is, so that x is not cast, but its gradient.

    Source: ``linalg_vector_norm`` in torch 2.13 ``derivatives.yaml``, ``linalg_vector_norm_backward`` in
    ``FunctionsManual.cpp``: x by its length, times a number a row; ``AT_FORALL_FP32_SET_OPT_DTYPE`` in
    ``autocast_mode.h``.
    """
    tape, dtype = x.tape, x.dtype
    wide = x
    if tape.autocast is not None and dtype is not DType.FLOAT32:
        dtype = DType.FLOAT32
        wide = Tensor(x.storage, x.shape, dtype, tape.node((x,), written_anew, meta=(x.shape, x.dtype)))
    node = tape.node((wide,), _row_lengths_backward, (x.detached(),) if x.requires_grad else (), x.shape)
    out = tape.tensor((*x.shape[:-1], 1), dtype, node)
    tape.save(node, out)
    tape.move(x.num_bytes)
    return out


def _row_lengths_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    by_length = g.tape.tensor(node.meta, g.dtype)
    out = g.tape.tensor(node.meta, g.dtype)
    g.tape.move(2 * by_length.num_bytes + 2 * out.num_bytes)
    return (out,)


class ZayaNorm(Module):
    """``ZayaQKNorm``: all queries and keys of one length, keys times a factor of their head."""

    def __init__(self, num_kv_heads: int) -> None:
        self.temp = Parameter(num_kv_heads)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q = ops.mul(q, _inverse_lengths(q))
        k = ops.mul(k, _inverse_lengths(k))
        return q, ops.mul(k, ops.expand_weight(self.temp, (*self.temp.shape, 1), k.tape))


def _inverse_lengths(x: Tensor) -> Tensor:
    """``number / length.clamp_min(eps)``: a reciprocal, times the number."""
    return ops.scale(ops.unary(ops.clamp(row_lengths(x), num_limits=1), saves_output=True))


class ZayaAttention(Module):
    """``ZayaAttention``."""

    def __init__(self, config: Config, shape: DecoderShape, window: int | None) -> None:
        self.shape, self.window = shape, window
        self.o_proj = Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=shape.output_bias)
        self.qkv_proj = ZayaProjection(config, shape)
        self.qk_norm = ZayaNorm(shape.num_kv_heads)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        q, k, v = self.qkv_proj(x)
        q, k = self.qk_norm(q, k)
        q, k, v = (part.view(part.shape[0], part.shape[2], part.shape[1], part.shape[3]) for part in (q, k, v))
        q, k = partly_rotated(q, k, context.cos, context.sin)
        return self.o_proj(context.attended(q, k, v, window=self.window, scores=self.shape.scores))


class ResidualScaling(Module):
    """``ZayaResidualScaling``: the sum of what a block made and the residual, each shifted and scaled."""

    def __init__(self, width: int) -> None:
        self.hidden_states_scale = Parameter(width)
        self.hidden_states_bias = Parameter(width)
        self.residual_scale = Parameter(width)
        self.residual_bias = Parameter(width)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = ops.mul(ops.add(x, self.hidden_states_bias), self.hidden_states_scale)
        residual = ops.mul(ops.add(residual, self.residual_bias), self.residual_scale)
        return ops.add(x, residual)


class RouterMlp(Module):
    """``ZayaRouterMLP``."""

    def __init__(self, width: int, num_classes: int) -> None:
        self.norm = RMSNorm(width)
        self.fc1 = Linear(width, width, bias=True)
        self.fc2 = Linear(width, width, bias=True)
        self.out_proj = Linear(width, num_classes)
        self.act_fn = ops.activation_module("gelu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        x = self.act_fn(self.fc1(x))
        x = self.act_fn(self.fc2(x))
        return self.out_proj(x)


class ZayaRouter(Module):
    """``ZayaRouter``: logits, score and index of each token's expert, and the hidden states for the next router.

    One class more than there are experts is for tokens that pass by them, which still are put through the first one,
    with a score of zero. ``is_first``: nothing comes from a layer before.
    """

    def __init__(self, config: Config, width: int, *, is_first: bool) -> None:
        own_width, self.num_classes = config.integer("router_hidden_size"), config.integer("num_experts") + 1
        self.down_proj = Linear(width, own_width, bias=True)
        if not is_first:
            self.router_states_scale = Parameter(own_width)
        self.router_mlp = RouterMlp(own_width, self.num_classes)

    def forward(self, x: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        tape, (batch, num_tokens, _) = x.tape, x.shape
        hidden = self.down_proj(x)
        if before is not None:
            hidden = ops.add(hidden, ops.mul(before, self.router_states_scale))
        handed_on = ops.copy(ops.part(hidden, *hidden.shape))
        logits = self.router_mlp(hidden)
        probabilities = ops.softmax(logits)
        # What only decides which expert is chosen: no gradient comes back.
        choice = tape.tensor(probabilities.shape, DType.FLOAT32)
        best = tape.tensor((batch, num_tokens, 1), DType.FLOAT32)
        scores, indices = top(probabilities, 1, gathers=True)
        passes_by = tape.tensor(indices.shape, DType.BOOL)
        scores = chunks.masked_fill(scores, passes_by)
        indices = tape.tensor(indices.shape, DType.INT64)
        del choice, best
        rows = batch * num_tokens
        return logits.view(rows, self.num_classes), scores.view(rows, 1), indices.view(rows, 1), handed_on


class ZayaBlock(Module):
    """``ZayaSparseMoeBlock``."""

    def __init__(self, config: Config, shape: DecoderShape, *, is_first: bool) -> None:
        width, inner = shape.hidden_size, config.integer("moe_intermediate_size")
        self.gate: Any = ZayaRouter(config, width, is_first=is_first)
        self.experts = Experts(config.integer("num_experts"), width, inner, activation=shape.activation)

    def forward(self, x: Tensor, *before: Tensor) -> tuple[Tensor, Tensor]:
        _logits, scores, indices, handed_on = self.gate(x, *before)
        flat = x.view(x.numel // x.shape[2], x.shape[2])
        return self.experts(flat, indices, scores).view(*x.shape), handed_on


class ZayaLayer(Module):
    """``ZayaDecoderLayer``: the residual and what the router hands on."""

    def __init__(self, config: Config, shape: DecoderShape, window: int | None, *, is_first: bool) -> None:
        width = shape.hidden_size
        self.self_attn = ZayaAttention(config, shape, window)
        self.mlp = ZayaBlock(config, shape, is_first=is_first)
        self.input_layernorm = RMSNorm(width)
        self.post_attention_layernorm = RMSNorm(width)
        self.post_attention_residual_scale = ResidualScaling(width)
        self.post_mlp_residual_scale = ResidualScaling(width)

    def forward(self, x: Tensor, context: RotaryContext, *before: Tensor) -> tuple[Tensor, Tensor]:
        residual = x
        x = self.input_layernorm(ops.to(residual, self.input_layernorm.weight.dtype))
        x = self.self_attn(x, context)
        residual = self.post_attention_residual_scale(x, residual)
        x = self.post_attention_layernorm(ops.to(residual, self.post_attention_layernorm.weight.dtype))
        x, handed_on = self.mlp(x, *before)
        return self.post_mlp_residual_scale(x, residual), handed_on


class ZayaDecoder(KindsRotatedDecoder):
    """``ZayaModel``."""

    def __init__(self, shape: DecoderShape, layers: Stack) -> None:
        super().__init__(shape, layers)
        self.input_hidden_states_scale = Parameter(shape.hidden_size)
        self.input_hidden_states_bias = Parameter(shape.hidden_size)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape = x.tape
        with tape.section("positions"):
            tape.prefetch()  # for the module of the positions
            context_of = self.contexts(x, backend)

        def call(layer: Any, x: Tensor, *before: Tensor) -> Any:
            return layer(x, context_of(layer), *before)

        inputs: tuple[Tensor, ...] = (self.entering(x),)
        for index in range(self.shape.num_layers):
            inputs = self.layers.run_one(index, call, *inputs)
        hidden, *handed_on = inputs
        with tape.section("norm"):
            norm: Any = self.final_norm
            hidden = norm(ops.to(hidden, norm.weight.dtype))
            del handed_on
        return hidden

    def entering(self, x: Tensor) -> Tensor:
        with x.tape.section("scaling"):
            x = ops.mul(ops.add(x, self.input_hidden_states_bias), self.input_hidden_states_scale)
            return ops.to(x, DType.FLOAT32)


def _windows(config: Config, num_layers: int) -> tuple[int | None, ...]:
    types = config.layer_types() or (HYBRID,) * num_layers
    if not set(types) <= {HYBRID, SLIDING}:
        raise not_allowed(CONFIG, "layer_types", sorted(set(types)), f"names out of {HYBRID} and {SLIDING}")
    return tuple(config.integer("sliding_window") if kind == SLIDING else None for kind in types)


def _rotary_widths(config: Config, head_dim: int, windows: Sequence[int | None]) -> dict[int | None, int]:
    parameters = config.mapping("rope_parameters") if config.get("rope_parameters") else None
    widths: dict[int | None, int] = {}
    for window in dict.fromkeys(windows):
        kind = HYBRID if window is None else SLIDING
        fraction = (
            ROTARY_FRACTION if parameters is None else parameters.mapping(kind).number("partial_rotary_factor", 1.0)
        )
        widths[window] = int(head_dim * fraction)
    return widths


def decoder(config: Config) -> ZayaDecoder:
    shape = decoder_shape(config)
    if config.integer("num_experts_per_tok") != 1:
        raise not_allowed(CONFIG, "num_experts_per_tok", config.get("num_experts_per_tok"), "1")
    if shape.num_heads % shape.num_kv_heads:
        allowed = f"a number that divides the {shape.num_heads} heads"
        raise not_allowed(CONFIG, "num_key_value_heads", shape.num_kv_heads, allowed)
    shape = replace(shape, windows=_windows(config, shape.num_layers))
    kinds = [(window, index == 0) for index, window in enumerate(shape.windows)]
    layers = stack_of_kinds(kinds, lambda kind: ZayaLayer(config, shape, kind[0], is_first=kind[1]))
    made = ZayaDecoder(shape, layers)
    made.rotary_widths = _rotary_widths(config, shape.head_dim, shape.windows)
    return made


class Zaya(CausalLM):
    """``ZayaForCausalLM``."""

    attention_linears = ("q_proj", "k_proj", "v_proj_current", "v_proj_delayed", "o_proj")


def causal_lm(decoder: Module, config: Config) -> Zaya:
    """``ZayaForCausalLM``, whose head may have a bias."""
    return Zaya(decoder, config, has_bias=config.boolean("lm_head_bias"))
