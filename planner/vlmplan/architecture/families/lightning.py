"""Lightning attention: linear attention that decays by fixed rates, computed in blocks of tokens.

Source: transformers 5.23 ``models/minimax/modeling_minimax.py`` (``MiniMaxLightningAttention``). Within a block the
scores of all pairs of tokens are written out, and a matrix for each head takes what came before from block to block.
"""

from collections.abc import Mapping
from typing import ClassVar

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.attention_kernels import product
from vlmplan.architecture.families.llama import DecoderShape, RotaryContext
from vlmplan.architecture.modules import Linear, Module, RMSNorm
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class LightningContext(RotaryContext):
    """What every layer is called with besides the hidden states, and the type of its ``tables`` of decays."""

    __slots__ = ("table_dtype",)

    def __init__(
        self,
        backend: AttentionBackend,
        cos: Tensor,
        sin: Tensor,
        masks: Mapping[int | None, Tensor],
        *,
        table_dtype: DType,
    ) -> None:
        super().__init__(backend, cos, sin, masks)
        self.table_dtype = table_dtype


class LightningAttention(Module):
    """``MiniMaxLightningAttention``; its local names are kept: each keeps a tensor alive to the end."""

    LINEARS: ClassVar[tuple[str, ...]] = ("qkv_proj", "out_proj", "output_gate")

    def __init__(self, shape: DecoderShape, block_size: int) -> None:
        self.num_heads, self.head_dim, self.block_size = shape.num_heads, shape.head_dim, block_size
        width = shape.num_heads * shape.head_dim
        self.norm = RMSNorm(width)
        self.qkv_proj = Linear(shape.hidden_size, 3 * width)
        self.out_proj = Linear(width, shape.hidden_size)
        self.output_gate = Linear(shape.hidden_size, width)
        self.act_fn = ops.activation_module(shape.activation)

    @property
    def num_table_elements(self) -> int:
        """Of a rate for each head, the decay of each query and key of a block, and of each pair."""
        return self.num_heads * (1 + 2 * self.block_size + self.block_size**2)

    def forward(self, x: Tensor, context: LightningContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        heads = (batch, self.num_heads, num_tokens, self.head_dim)
        qkv_states = self.act_fn(self.qkv_proj(x))
        query_states, key_states, value_states = ops.split(qkv_states, heads, heads, heads)
        attn_weights_inter = x.tape.tensor((*heads[:2], self.head_dim, self.head_dim), value_states.dtype)
        attn_output: list[Tensor] = []
        # The heads of one sample are the batch of a product as they lie; those of several are not.
        copies = batch > 1 and self.num_heads > 1
        for start in range(0, num_tokens, self.block_size):
            size = min(self.block_size, num_tokens - start)
            q, k, v = (_block(states, size) for states in (query_states, key_states, value_states))
            rows, pairs = (*heads[:2], size, self.head_dim), (*heads[:2], size, size)
            query_decay = key_decay = _table(context, (self.num_heads, size, 1), x)
            diagonal_decay = _table(context, (1, self.num_heads, size, size), x)
            block_decay = _exponential(x.tape.tensor((self.num_heads, 1, 1), context.table_dtype))
            attn_weights_intra = product(q, k, pairs, self.head_dim, copies=(copies, copies))
            decayed = ops.mul(attn_weights_intra, diagonal_decay)
            attn_output_intra = product(decayed, v, rows, size, copies=(False, copies))
            decayed = ops.mul(q, query_decay)
            attn_output_inter = product(decayed, attn_weights_inter, rows, self.head_dim, copies=(copies, False))
            current_attn_output = ops.add(attn_output_inter, attn_output_intra)
            attn_output.append(current_attn_output)
            decayed = ops.mul(k, key_decay)
            next_attn_weights_inter = product(decayed, v, attn_weights_inter.shape, size, copies=(copies, copies))
            del decayed
            attn_weights_inter = ops.add(ops.mul(attn_weights_inter, block_decay), next_attn_weights_inter)
        if x.tape.key_cache is not None:
            x.tape.key_cache.hold_state(attn_weights_inter)
        out = ops.concatenate(attn_output, heads)
        attn_output.clear()
        out = ops.copy(out, batch, num_tokens, self.num_heads * self.head_dim)
        out = self.norm(out)
        out = ops.mul(ops.sigmoid(self.output_gate(x)), out)
        out = self.out_proj(out)
        x.tape.layer_locals.append(attn_weights_inter)
        return out


def _block(states: Tensor, size: int) -> Tensor:
    """``states[:, :, start : start + size]``; all of them are themselves, as indexing has it."""
    shape = (*states.shape[:2], size, states.shape[-1])
    return ops.viewed(states, *shape) if size == states.shape[2] else ops.part(states, *shape)


def _table(context: LightningContext, shape: tuple[int, ...], x: Tensor) -> Tensor:
    """A part of a table, which is there anyway."""
    return Tensor(x.tape.tensor((0,), context.table_dtype).storage, shape, context.table_dtype)


def _exponential(x: Tensor) -> Tensor:
    """``torch.exp`` of what needs no gradient, under autocast in float32 (``aten/src/ATen/autocast_mode.h``,
    AT_FORALL_FP32)."""
    return chunks.exponential(x if x.tape.autocast is None else ops.to(x, DType.FLOAT32))
