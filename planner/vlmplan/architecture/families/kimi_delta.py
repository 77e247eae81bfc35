"""Kimi delta attention: a gated delta rule whose decay is another for each element of a key, in chunks of 64 tokens.

Source: transformers 5.23 ``models/kimi_linear/modeling_kimi_linear.py`` (``chunk_kimi_delta_attention``,
``KimiLinearDeltaAttention``, ``KimiLinearForgetGate``, ``KimiLinearRMSNormGated``). It is what runs without
flash-linear-attention and causal-conv1d: pairs of the tokens of each chunk are written out for every element of a key,
in float32, and the inverse of each chunk's matrix is made row by row, in place. With them the convolution and the rule
are one operation each (``ops.delta_kernels``, ``ops.kimi_kernels``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmplan.architecture import ops
from vlmplan.architecture.attention import keep_state
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gated_delta import CHUNK, CausalConvolution, as_float, kept_last
from vlmplan.architecture.families.llama import RotaryContext
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.ops import chunks, delta_kernels
from vlmplan.architecture.ops.kimi_kernels import fla_kimi_rule
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaShape:
    """The dimensions of Kimi delta attention: keys and values have as many heads, as wide."""

    hidden_size: int
    num_heads: int
    head_dim: int
    num_taps: int
    activation: str

    @property
    def width(self) -> int:
        """The width of all heads together."""
        return self.num_heads * self.head_dim


def kimi_delta_shape(config: Config) -> KimiDeltaShape:
    """The shape of a text configuration's delta attention: ``linear_attn_config``, which published files have, goes
    first."""
    own = config.mapping("linear_attn_config")
    return KimiDeltaShape(
        hidden_size=config.integer("hidden_size"),
        num_heads=own.integer("num_heads", config.integer("linear_num_heads")),
        head_dim=own.integer("head_dim", config.integer("linear_head_dim")),
        num_taps=own.integer("short_conv_kernel_size", config.integer("linear_conv_kernel_dim")),
        activation=config.text("hidden_act"),
    )


class ForgetGate(Module):
    """``KimiLinearForgetGate``: the log of the decay by token, head and element."""

    def __init__(self, shape: KimiDeltaShape) -> None:
        self.shape = shape
        self.dt_bias = Parameter(shape.width)
        self.A_log = Parameter(1, 1, shape.num_heads, 1)
        self.f_a_proj = Linear(shape.hidden_size, shape.head_dim)
        self.f_b_proj = Linear(shape.head_dim, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        tape = x.tape
        gate = self.f_b_proj(self.f_a_proj(x))
        steps = ops.add(ops.to(gate, DType.FLOAT32), as_float(self.dt_bias, tape))
        rate = ops.unary(as_float(self.A_log, tape), saves_output=True)
        is_large = tape.tensor(steps.shape, DType.BOOL)
        shifted = ops.shift(ops.unary(steps, saves_output=True))
        softplus = ops.where(is_large, steps, ops.unary(shifted, saves_input=True))
        del is_large, shifted
        return ops.mul(softplus, ops.scale(rate))


class SigmoidGatedNorm(Module):
    """``KimiLinearRMSNormGated``: an RMS norm and times ``sigmoid(gate)``, all in float32."""

    def __init__(self, width: int) -> None:
        self.weight = Parameter(width)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        dtype, tape = x.dtype, x.tape
        x = ops.to(x, DType.FLOAT32)
        variance = ops.mean_last(ops.power(x))
        x = ops.mul(x, ops.unary(ops.shift(variance), saves_output=True))
        x = ops.mul(x, ops.cast_weight(self.weight, DType.FLOAT32, tape), y_is_first=True)
        x = ops.mul(x, ops.sigmoid(ops.to(gate, DType.FLOAT32)))
        return ops.to(x, dtype)


class KimiDeltaAttention(ReadingModule):
    """``KimiLinearDeltaAttention``. Its layer calls it by keyword, and it hands its convolution's weight to a function
    without calling that module."""

    takes_keywords = True

    def __init__(self, shape: KimiDeltaShape) -> None:
        self.shape = shape
        hidden_size, width = shape.hidden_size, shape.width
        self.q_proj = Linear(hidden_size, width)
        self.k_proj = Linear(hidden_size, width)
        self.v_proj = Linear(hidden_size, width)
        self.conv1d = CausalConvolution(3 * width, shape.num_taps)
        self.forget_gate = ForgetGate(shape)
        self.b_proj = Linear(hidden_size, shape.num_heads)
        self.g_a_proj = Linear(hidden_size, shape.head_dim)
        self.g_b_proj = Linear(shape.head_dim, width)
        self.o_norm = SigmoidGatedNorm(shape.head_dim)
        self.o_proj = Linear(width, hidden_size)
        self._activation = ops.activation_module(shape.activation)

    def read_modules(self) -> Sequence[Module]:
        return (self.conv1d,)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        heads = (batch, num_tokens, shape.num_heads, shape.head_dim)
        wide = (batch, num_tokens, 3 * shape.width)
        mixed = ops.concatenate([self.q_proj(x), self.k_proj(x), self.v_proj(x)], wide)
        mixed = mixed.view(batch, 3 * shape.width, num_tokens)
        keep_state(mixed, batch, 3 * shape.width, shape.num_taps)
        mixed = self._convolved(mixed, uses_fla=context.backend.uses_fla)
        q, k, v = ops.split(mixed, heads, heads, heads)
        decay = self.forget_gate(x).view(*heads)
        beta = ops.sigmoid(self.b_proj(x))
        rule = fla_kimi_rule if context.backend.uses_fla else chunked_kimi_rule
        out, _last_recurrent_state = kept_last(rule(q, k, v, decay, beta))
        gate = self.g_b_proj(self.g_a_proj(x))
        rows = (batch * num_tokens * shape.num_heads, shape.head_dim)
        out = self.o_norm(out.view(*rows), gate.view(*rows))
        return self.o_proj(out.view(batch, num_tokens, shape.width))

    def _convolved(self, x: Tensor, *, uses_fla: bool) -> Tensor:
        """``causal_conv1d_fn``, and all of its tokens cut out of its result by their number from the end: the gradient
        of that lies token after token, and is copied for the kernel, channel after channel."""
        if uses_fla:
            result = delta_kernels.causal_convolution(x, self.conv1d.weight, copies_gradient=True)
        else:
            result = ops.to(self._activation(self.conv1d.forward(x)), x.dtype)
        return ops.part(result, *result.shape)


def unit_rows(x: Tensor) -> Tensor:
    """``l2norm``: x over the root of the sum of its squares."""
    squares = ops.total(ops.mul(x, x), (*x.shape[:-1], 1))
    return chunks.divide(x, ops.unary(ops.shift(squares), saves_output=True))


def chunked_kimi_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """``chunk_kimi_delta_attention``, and its last state; its local names are kept, since each keeps a tensor alive to
    the end.

    Shapes: q, k, v, decay, in float32, and the result (batch, tokens, heads, width), beta (batch, tokens, heads).
    """
    dtype, (batch, num_tokens, num_heads, width) = q.dtype, q.shape
    num_chunks = -(-num_tokens // CHUNK)
    # (batch, heads, chunks, tokens of a chunk, ...)
    rows = (batch, num_heads, num_chunks, CHUNK)
    pairs = (*rows, CHUNK, width)
    q, k, v, beta, decay = _padded(q, k, v, beta, decay, rows)
    v_beta = ops.mul(v, beta.view(*rows, 1))
    k_beta = ops.mul(k, beta.view(*rows, 1))
    decay = chunks.cumulative_sum(decay)
    mask, strict_mask = (q.tape.tensor((CHUNK, CHUNK), DType.BOOL) for _ in range(2))
    decay_mask = _decays(decay, strict_mask, pairs)
    attention = _products_of_pairs(k_beta, k, decay_mask, pairs)
    attention = ops.scale(chunks.masked_fill(attention, mask))
    attention, row, sub = _inverted(attention)
    attention = ops.shift(attention)
    v = chunks.product(attention, v_beta, v_beta.shape, CHUNK)
    k_cum_decay = chunks.product(attention, ops.mul(k_beta, chunks.exponential(decay)), k_beta.shape, CHUNK)
    state = q.tape.tensor((batch, num_heads, width, width), v.dtype)
    out = q.tape.tensor(v.shape, v.dtype)
    q.tape.move(out.num_bytes)
    out, state = _scan(q, k, v, decay, decay_mask, k_cum_decay, mask, state, out)
    del strict_mask, row, sub
    out = out.view(batch, num_heads, num_chunks * CHUNK, width)
    if num_tokens % CHUNK:
        out = ops.part(out, batch, num_heads, num_tokens, width)
    return ops.to(ops.copy(out, batch, num_tokens, num_heads, width), dtype), state


def _padded(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, rows: tuple[int, int, int, int]
) -> list[Tensor]:
    """All head after head, in float32 and in whole chunks; q and k of unit length."""
    q, k, v, beta, decay = [ops.to(ops.copy(x), DType.FLOAT32) for x in (q, k, v, beta, decay)]
    q = unit_rows(q)
    k = unit_rows(k)
    q = ops.scale(chunks.pad(q, *rows, q.shape[-1]))
    k = chunks.pad(k, *rows, k.shape[-1])
    v = chunks.pad(v, *rows, v.shape[-1])
    decay = chunks.pad(decay, *rows, decay.shape[-1])
    return [q, k, v, chunks.pad(beta, *rows), decay]


def _decays(decay: Tensor, mask: Tensor, pairs: tuple[int, ...]) -> Tensor:
    """The decay from each token of a chunk to each behind it, by element."""
    *rows, size, _, width = pairs
    differences = chunks.difference(decay.view(*rows, size, 1, width), decay.view(*rows, 1, size, width), pairs)
    differences = chunks.masked_fill(differences, mask)
    return chunks.exponential(differences)


def _products_of_pairs(x: Tensor, y: Tensor, decay_mask: Tensor, pairs: tuple[int, ...]) -> Tensor:
    """``(x.unsqueeze(-2) * y.unsqueeze(-3) * decay_mask).sum(dim=-1)``, of a chunk of ``decay_mask`` or of all."""
    *rows, size, _, width = pairs
    products = chunks.outer(x.view(*rows, size, 1, width), y.view(*rows, 1, size, width), pairs)
    is_chunk = decay_mask.shape != pairs
    products = ops.mul(products, chunks.select(decay_mask, *pairs) if is_chunk else decay_mask)
    return ops.total(products, pairs[:-1])


def _inverted(attention: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loop over rows, each of which takes those before it; and what its local names hold in the end."""
    *rows, size, _ = attention.shape
    row = sub = attention
    for index in range(1, size):
        row = ops.copy(ops.part(chunks.select(attention, *rows, size), *rows, index))
        sub = ops.copy(ops.part(ops.part(attention, *rows, index, size), *rows, index, index))
        update = ops.total(ops.mul(sub, row.view(*rows, index, 1)), (*rows, index))
        attention = chunks.put_slice(attention, ops.add(row, update))
        del update
    return attention, row, sub


def _scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    decay_mask: Tensor,
    k_cum_decay: Tensor,
    mask: Tensor,
    state: Tensor,
    out: Tensor,
) -> tuple[Tensor, Tensor]:
    """The loop over chunks: each reads the state of those before it, and adds to it."""
    batch, num_heads, num_chunks, size, width = q.shape
    rows, pairs = (batch, num_heads, size, width), (batch, num_heads, size, size, width)
    for _ in q.tape.turns(num_chunks):
        q_i, k_i, v_i, g_i = (chunks.select(x, *rows) for x in (q, k, v, decay))
        inter_chunk = chunks.product(ops.mul(q_i, chunks.exponential(g_i)), state, rows, width)
        within = _products_of_pairs(q_i, k_i, decay_mask, pairs)
        within = chunks.masked_fill(within, mask)
        v_prime = chunks.product(chunks.select(k_cum_decay, *rows), state, rows, width)
        v_new = ops.subtract(v_i, v_prime)
        out = chunks.put_slice(out, ops.add(inter_chunk, chunks.product(within, v_new, rows, size)))
        last = chunks.exponential(chunks.select(g_i, batch, num_heads, width)).view(batch, num_heads, width, 1)
        decayed = ops.mul(state, last)
        remaining = chunks.exponential(chunks.difference(ops.part(g_i, batch, num_heads, 1, width), g_i, rows))
        state = ops.add(decayed, chunks.product(ops.mul(k_i, remaining), v_new, state.shape, size))
        del last, decayed, remaining
    return out, state
