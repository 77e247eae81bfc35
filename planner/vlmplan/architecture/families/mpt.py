"""MPT: ALiBi in float32, layer norms without biases, one projection for queries, keys and values, eager attention.

Source: transformers 5.23 ``models/mpt/modeling_mpt.py``, whose MLP is four times as wide whatever the file says. There
is no sdpa and no flash attention.
"""

from dataclasses import dataclass

from vlmplan.architecture import ops
from vlmplan.architecture.attention import cached
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.attention_kernels import product
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.held_weights import HoldingContext, stack_of_holding
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, require_positions
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class MptShape:
    """The dimensions of an MPT decoder; ``clips``: what is projected for attention is clamped."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_positions: int
    vocab_size: int
    clips: bool
    dropout: float

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


class MptContext(HoldingContext):
    """What every layer is called with besides the hidden states."""

    __slots__ = ("alibi",)

    def __init__(self, backend: AttentionBackend, mask: Tensor, alibi: Tensor) -> None:
        super().__init__(backend, mask)
        self.alibi = alibi


class MptAttention(Module):
    """``MptAttention``: (result, weights)."""

    def __init__(self, shape: MptShape) -> None:
        self.shape, width = shape, shape.hidden_size
        self.Wqkv = Linear(width, 3 * width)
        self.out_proj = Linear(width, width)

    def forward(self, x: Tensor, context: MptContext) -> tuple[Tensor, Tensor]:
        """The projection, and the scores, which ALiBi makes float32, live until attention ends."""
        batch, num_tokens, width = x.shape
        shape, several = self.shape, batch > 1
        heads = (batch, shape.num_heads, num_tokens, shape.head_dim)
        scores_shape = (batch, shape.num_heads, num_tokens, num_tokens)
        fused = self.Wqkv(x)
        if shape.clips:
            fused = ops.clamp(fused, num_limits=2)
        q, k, v = ops.split(fused, heads, heads, heads)
        k, v = cached(k, v)
        scores = product(q, k, scores_shape, shape.head_dim, copies=(several, several))
        scores = ops.scale(scores)
        scores = ops.add(scores, context.alibi)
        assert context.mask is not None
        scores = chunks.masked_fill(scores, context.mask)
        weights = ops.to(ops.softmax(scores), v.dtype)
        weights = ops.dropout(weights, shape.dropout, is_module=False)
        out = product(weights, v, heads, num_tokens, copies=(False, several))
        out = self.out_proj(ops.copy(out, batch, num_tokens, width))
        del fused, scores
        return out, weights


class MptMlp(Module):
    """``MptMLP``."""

    def __init__(self, shape: MptShape) -> None:
        width = shape.hidden_size
        self.up_proj = Linear(width, 4 * width)
        self.down_proj = Linear(4 * width, width)
        self.act, self.dropout = ops.activation_module("gelu"), shape.dropout

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = self.act(self.up_proj(x))
        out = self.down_proj(x)
        out = ops.dropout(out, self.dropout, is_module=False)
        return ops.add(out, residual)


class MptLayer(Module):
    """``MptBlock``."""

    def __init__(self, shape: MptShape) -> None:
        self.norm_1 = LayerNorm(shape.hidden_size, bias=False)
        self.attn = MptAttention(shape)
        self.norm_2 = LayerNorm(shape.hidden_size, bias=False)
        self.ffn = MptMlp(shape)
        self.dropout = shape.dropout

    def forward(self, x: Tensor, context: MptContext) -> Tensor:
        held = context.held(x)
        normed = self.norm_1(x)
        attended, weights = self.attn(normed, context)
        x = ops.add(ops.dropout(attended, self.dropout), x)
        normed = self.norm_2(x)
        out = self.ffn(normed, x)
        context.hold(weights)
        del weights, held, attended, normed
        return out


class MptDecoder(Module):
    """``MptModel``, which makes ALiBi for as many tokens as it has positions."""

    def __init__(self, shape: MptShape) -> None:
        self.shape = shape
        self.wte = Embedding(shape.vocab_size, shape.hidden_size)
        self.blocks = stack_of_holding(lambda: MptLayer(shape), shape.num_layers)
        self.norm_f = LayerNorm(shape.hidden_size, bias=False)

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.wte(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape, (batch, num_tokens, _) = x.tape, x.shape
        require_positions(num_tokens, self.shape.num_positions)
        with tape.section("positions"):
            alibi = tape.tensor((self.shape.num_heads, 1, self.shape.num_positions), DType.FLOAT32)
            mask = tape.tensor((batch, 1, num_tokens, num_tokens), DType.BOOL)
            shown = Tensor(alibi.storage, (1, self.shape.num_heads, 1, num_tokens), alibi.dtype)
            context = MptContext(backend, mask, shown)
        hidden = self.blocks.run(x, lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            return self.norm_f(hidden)


class Mpt(CausalLM):
    """``MptForCausalLM``."""

    DECODER = "transformer"
    EMBEDDINGS = "transformer.wte"
    attention_linears = ("Wqkv", "out_proj")


def decoder(config: Config) -> MptDecoder:
    attention = config.mapping("attn_config")
    shape = MptShape(
        hidden_size=config.integer("hidden_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        num_positions=config.integer("max_seq_len"),
        vocab_size=config.integer("vocab_size"),
        clips=bool(attention.get("clip_qkv")),
        dropout=attention.number("attn_pdrop"),
    )
    return MptDecoder(shape)


causal_lm = Mpt
