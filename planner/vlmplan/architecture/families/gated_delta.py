"""The gated delta rule: linear attention whose state is a matrix per head, computed in chunks of 64 tokens.

Source: transformers 5.23 ``models/qwen3_5/modeling_qwen3_5.py`` (``torch_chunk_gated_delta_rule``,
``Qwen3_5GatedDeltaNet``, ``Qwen3_5RMSNormGated``). It is what runs without flash-linear-attention and causal-conv1d:
everything in float32, and a loop over chunks that writes each chunk's result into one tensor. With them the convolution
and the rule are one operation each (``ops.delta_kernels``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.attention import keep_state
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import RotaryContext
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.ops import chunks, delta_kernels
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import ForwardTape, Tensor
from vlmplan.units import DType

CHUNK = 64
"""``chunk_size``, which no model sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """The dimensions of a gated delta net."""

    hidden_size: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    """Width of one head of the keys, and of the values."""
    num_taps: int
    activation: str
    gate_activation: str = "silu"
    """Of what the result is multiplied with."""

    @property
    def key_width(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.num_value_heads * self.value_dim


def delta_shape(config: Config) -> DeltaShape:
    """The dimensions of the gated delta nets of a Hugging Face text config."""
    return DeltaShape(
        hidden_size=config.integer("hidden_size"),
        num_key_heads=config.integer("linear_num_key_heads"),
        num_value_heads=config.integer("linear_num_value_heads"),
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        num_taps=config.integer("linear_conv_kernel_dim"),
        activation=config.text("hidden_act"),
    )


class CausalConvolution(Module):
    """``nn.Conv1d`` with one group per channel."""

    def __init__(self, channels: int, num_taps: int, *, bias: bool = False) -> None:
        self.weight = Parameter(channels, 1, num_taps)
        self.bias: Parameter | None = Parameter(channels) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, channels, tokens), which is cast to the weight's type first."""
        return chunks.causal_convolution(ops.to(x, self.weight.dtype), self.weight, self.bias)


class GatedRMSNorm(Module):
    """``Qwen3_5RMSNormGated``: an RMS norm, then times the ``activation`` of a gate in float32."""

    def __init__(self, width: int, activation: str = "silu") -> None:
        self.weight = Parameter(width)
        self._activated = ops.ACTIVATIONS[activation]

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        dtype = x.dtype
        x = ops.to(x, DType.FLOAT32)
        variance = ops.mean_last(ops.power(x))
        x = ops.mul(x, ops.unary(ops.shift(variance), saves_output=True))
        x = ops.mul(ops.to(x, dtype), self.weight, y_is_first=True)
        x = ops.mul(x, self._activated(ops.to(gate, DType.FLOAT32)))
        return ops.to(x, dtype)


class Projections(NamedTuple):
    """Queries, keys and values side by side, the gate, what becomes ``beta`` and the decay; and what they come from."""

    mixed: Tensor
    z: Tensor
    b: Tensor
    a: Tensor
    joined: Sequence[Tensor] = ()
    held: Sequence[Tensor] = ()


class GatedDeltaNet(ReadingModule):
    """``Qwen3_5GatedDeltaNet``; who derives from it projects otherwise. Its layer calls it by keyword, and it hands its
    convolution's weight to a function without calling that module."""

    takes_keywords = True

    def __init__(self, shape: DeltaShape) -> None:
        self.shape = shape
        self.dt_bias = Parameter(shape.num_value_heads)
        self.A_log = Parameter(shape.num_value_heads)
        self.conv1d = CausalConvolution(2 * shape.key_width + shape.value_width, shape.num_taps)
        self.make_projections()
        self._activation = ops.activation_module(shape.activation)

    def make_projections(self) -> None:
        """What comes behind the convolution in the order of parameters."""
        shape = self.shape
        self.norm = GatedRMSNorm(shape.value_dim, shape.gate_activation)
        self.out_proj = Linear(shape.value_width, shape.hidden_size)
        self.in_proj_qkv = Linear(shape.hidden_size, 2 * shape.key_width + shape.value_width)
        self.in_proj_z = Linear(shape.hidden_size, shape.value_width)
        self.in_proj_b = Linear(shape.hidden_size, shape.num_value_heads)
        self.in_proj_a = Linear(shape.hidden_size, shape.num_value_heads)

    def read_modules(self) -> Sequence[Module]:
        return (self.conv1d,)

    def projected(self, x: Tensor) -> Projections:
        """What the Linears make of x."""
        return Projections(self.in_proj_qkv(x), self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x))

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        keys = (batch, num_tokens, shape.num_key_heads, shape.key_dim)
        values = (batch, num_tokens, shape.num_value_heads, shape.value_dim)
        # Of what is projected, ``held`` lives to the end, ``joined`` until the convolution is over.
        mixed, z, b, a, joined, _held = self.projected(x)
        uses_fla = context.backend.uses_fla
        mixed = mixed.view(batch, mixed.shape[-1], num_tokens)
        keep_state(mixed, batch, mixed.shape[1], shape.num_taps)
        mixed = delta_kernels.causal_convolution(mixed, self.conv1d.weight) if uses_fla else self._convolved(mixed)
        q, k, v = ops.split(mixed, keys, keys, values)
        del joined
        beta = ops.sigmoid(b)
        decay = self._decay(a)
        rule = delta_kernels.fla_delta_rule if uses_fla else chunked_delta_rule
        out, _last_recurrent_state = kept_last(rule(q, k, v, decay, beta))
        rows = batch * num_tokens * shape.num_value_heads
        out = self.norm(out.view(rows, shape.value_dim), z.view(rows, shape.value_dim))
        return self.out_proj(out.view(batch, num_tokens, shape.value_width))

    def _convolved(self, x: Tensor) -> Tensor:
        """``causal_conv1d_fn``: back in x's type, which the convolution need not have under autocast."""
        return ops.to(self._activation(self.conv1d.forward(x)), x.dtype)

    def _decay(self, a: Tensor) -> Tensor:
        """``-A_log.float().exp() * softplus(a.float() + dt_bias)``: log of the decay by token and head."""
        tape = a.tape
        rate = ops.scale(ops.unary(as_float(self.A_log, tape), saves_output=True))
        steps = ops.unary(ops.add(ops.to(a, DType.FLOAT32), self.dt_bias), saves_input=True)
        return ops.mul(steps, rate)


def kept_last(result: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """What a rule returns, its output and its last state, of which a copy is kept where text is generated; otherwise
    it is let go."""
    out, state = result
    keep_state(state)
    return out, None if state.tape.key_cache is None else state


def as_float(weight: Parameter, tape: ForwardTape) -> Tensor:
    """``weight.float()``."""
    cast = ops.cast_weight(weight, DType.FLOAT32, tape)
    return cast if isinstance(cast, Tensor) else ops.expand_weight(cast, cast.shape, tape)


def unit_rows(x: Tensor) -> Tensor:
    """``l2norm``: x by the root of the sum of its squares."""
    squares = ops.total(ops.mul(x, x), (*x.shape[:-1], 1))
    inverse = ops.unary(ops.shift(squares), saves_output=True)
    return ops.mul(x, inverse)


def chunked_delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """``torch_chunk_gated_delta_rule``, and its last state; its local names are kept: each keeps a tensor alive to the
    end.

    Shapes: q, k (batch, tokens, key heads, key width), v and the result (batch, tokens, value heads, value width),
    decay, in float32, and beta (batch, tokens, value heads).
    """
    dtype, (batch, num_tokens, num_heads, value_dim), key_dim = v.dtype, v.shape, k.shape[-1]
    num_chunks = -(-num_tokens // CHUNK)
    # (batch, heads, chunks, tokens of a chunk, ...)
    rows = (batch, num_heads, num_chunks, CHUNK)
    squares = (*rows, CHUNK)
    q, k, v, beta, decay = _padded(q, k, v, beta, decay, rows)
    v_beta = ops.mul(v, beta.view(*rows, 1))
    k_beta = ops.mul(k, beta.view(*rows, 1))
    mask = q.tape.tensor((CHUNK, CHUNK), DType.BOOL)
    cum_decay = chunks.cumulative_sum(decay)
    pairwise = chunks.difference(cum_decay.view(*rows, 1), cum_decay.view(*rows[:3], 1, CHUNK), squares)
    pairwise = chunks.masked_fill(pairwise, mask)
    pairwise = chunks.exponential(pairwise)
    # What was float32 already and in whole chunks is still a transposed view, or like one: products copy it.
    is_transposed = dtype is DType.FLOAT32 and num_tokens % CHUNK == 0
    system = ops.mul(_pairs(k_beta, k, squares, copies=is_transposed), pairwise)
    attention = ops.mul(_pairs(q, k, squares, copies=is_transposed), pairwise)
    decayed_k_beta = ops.mul(k_beta, chunks.exponential(cum_decay).view(*rows, 1))
    new_values = chunks.solve_triangular(system, v_beta)
    k_cum_decay = chunks.solve_triangular(system, decayed_k_beta)
    state = chunks.zeros(q, batch, num_heads, key_dim, value_dim)
    out = chunks.zeros(q, *new_values.shape)
    q = ops.mul(q, chunks.exponential(cum_decay).view(*rows, 1))
    k = ops.mul(k, chunks.remaining_decay(cum_decay).view(*rows, 1))
    chunk_decay = chunks.exponential(ops.part(cum_decay, *rows[:3], 1))
    out, state = _scan(q, k, new_values, k_cum_decay, attention, chunk_decay, state, out)
    # The solver leaves matrices in columns, and what is made like them too, so that joining chunks copies.
    out = ops.copy(out) if num_chunks > 1 else out
    if num_tokens % CHUNK:
        out = ops.part(out, batch, num_heads, num_tokens, value_dim)
    return ops.to(out, dtype).view(batch, num_tokens, num_heads, value_dim), state


def _padded(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, rows: tuple[int, int, int, int]
) -> list[Tensor]:
    """All in float32 and in whole chunks, a head of q and k for each of v, q and k of unit length."""
    batch, num_heads = rows[:2]
    if k.shape[2] != num_heads:
        shape = (batch, k.shape[1], num_heads, k.shape[3])
        q = chunks.repeat_heads(q, *shape)
        k = chunks.repeat_heads(k, *shape)
    q, k, v, beta, decay = [ops.to(x, DType.FLOAT32) for x in (q, k, v, beta, decay)]
    q = unit_rows(q)
    k = unit_rows(k)
    q = ops.scale(q)
    q, k, v = [chunks.pad(x, *rows, x.shape[-1]) for x in (q, k, v)]
    beta, decay = [chunks.pad(x, *rows) for x in (beta, decay)]
    return [q, k, v, beta, decay]


def _pairs(x: Tensor, y: Tensor, shape: tuple[int, ...], *, copies: bool) -> Tensor:
    """``x @ y.transpose(-1, -2)`` within each chunk."""
    if copies:
        x, y = ops.copy(x), ops.copy(y)
    return chunks.product(x, y, shape, x.shape[-1])


def _scan(
    q: Tensor,
    k: Tensor,
    new_values: Tensor,
    k_cum_decay: Tensor,
    attention: Tensor,
    chunk_decay: Tensor,
    state: Tensor,
    out: Tensor,
) -> tuple[Tensor, Tensor]:
    """The loop over chunks: each reads the state of those before it, and adds to it."""
    batch, num_heads, num_chunks, size, key_dim = q.shape
    value_dim = new_values.shape[-1]
    keys, values = (batch, num_heads, size, key_dim), (batch, num_heads, size, value_dim)
    for _ in q.tape.turns(num_chunks):
        v_new = chunks.select(new_values, *values)
        v_new = chunks.difference(
            v_new, chunks.product(chunks.select(k_cum_decay, *keys), state, values, key_dim), values
        )
        inter_chunk = chunks.product(chunks.select(q, *keys), state, values, key_dim)
        within = chunks.product(chunks.select(attention, *keys[:3], size), v_new, values, size)
        out = chunks.put_slice(out, ops.add(inter_chunk, within))
        del within
        decayed = ops.mul(state, chunks.select(chunk_decay, batch, num_heads, 1, 1))
        state = ops.add(decayed, chunks.product(chunks.select(k, *keys), v_new, state.shape, size))
        del decayed
    return out, state
