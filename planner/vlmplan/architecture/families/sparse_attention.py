"""Latent attention to the tokens that an indexer chooses: DeepSeek-V3.2's, and GLM-5's after it.

Source: transformers 5.23 ``models/{deepseek_v32,glm_moe_dsa}/modeling_*.py``. The indexer runs under ``torch.no_grad``:
no gradient comes to its weights. Which keys a token does not see is a mask: scores of all pairs are computed. Its own
scores, of all heads, tokens and keys, are float32. GLM-5 hands what a layer has chosen on to the next, which may take
it for its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmplan.architecture import ops
from vlmplan.architecture.attention import by_head
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.compressed_attention import indexed_products
from vlmplan.architecture.families.latent_attention import LatentAttention, LatentShape, rotated_in_pairs
from vlmplan.architecture.families.llama import RotaryContext
from vlmplan.architecture.families.moe import top
from vlmplan.architecture.modules import LayerNorm, Linear, Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerShape:
    """The dimensions of an indexer."""

    hidden_size: int
    q_rank: int
    num_heads: int
    head_dim: int
    rotary_width: int
    num_chosen: int
    """Keys for each token, at the most."""
    is_interleaved: bool

    def num_chosen_of(self, num_tokens: int) -> int:
        return min(self.num_chosen, num_tokens)


def indexer_shape(config: Config, latent: LatentShape) -> IndexerShape:
    return IndexerShape(
        hidden_size=latent.hidden_size,
        q_rank=config.integer("q_lora_rank"),
        num_heads=config.integer("index_n_heads"),
        head_dim=config.integer("index_head_dim"),
        rotary_width=latent.rotary_width,
        num_chosen=config.integer("index_topk"),
        is_interleaved=config.model_type == "glm_moe_dsa",
    )


class TokenIndexer(Module):
    """``DeepseekV32Indexer``, ``GlmMoeDsaIndexer``."""

    def __init__(self, shape: IndexerShape) -> None:
        self.shape = shape
        self.wq_b = Linear(shape.q_rank, shape.num_heads * shape.head_dim)
        self.wk = Linear(shape.hidden_size, shape.head_dim)
        self.k_norm = LayerNorm(shape.head_dim)
        self.weights_proj = Linear(shape.hidden_size, shape.num_heads)

    def forward(self, x: Tensor, q_latent: Tensor, context: RotaryContext, mask: Tensor) -> Tensor:
        """Positions of keys (batch, tokens, k) in 32 bit."""
        outside, x.tape.has_no_graph = x.tape.has_no_graph, True
        chosen = self._chosen(x.detached(), q_latent.detached(), context, mask)
        x.tape.has_no_graph = outside
        return chosen

    def _chosen(self, x: Tensor, q_latent: Tensor, context: RotaryContext, mask: Tensor) -> Tensor:
        tape, shape = x.tape, self.shape
        batch, num_tokens, _ = x.shape
        rows = (batch, num_tokens)
        q = self.wq_b(q_latent).view(*rows, shape.num_heads, shape.head_dim)
        q_rotated, q_pass = self._parts(q)
        k = self.k_norm(self.wk(x)).view(*rows, 1, shape.head_dim)
        k_rotated, k_pass = self._parts(k)
        q_rotated, k_rotated = self._rotated(q_rotated, context), self._rotated(k_rotated, context)
        q = ops.concatenate([q_rotated, q_pass], q.shape)
        k = ops.concatenate([k_rotated, k_pass], k.shape).view(*rows, shape.head_dim)
        if tape.key_cache is not None:
            k = tape.key_cache.kept(k)
        scores = ops.scale(indexed_products(q, k, is_in_order=True))
        scores = ops.relu(scores)
        weights = ops.scale(ops.to(self.weights_proj(x), DType.FLOAT32))
        chosen_by = chunks.product(
            weights.view(*rows, 1, shape.num_heads), scores, (*rows, 1, num_tokens), scores.shape[2]
        )
        chosen_by = chosen_by.view(*rows, num_tokens)
        if mask.dtype is DType.BOOL:
            chosen_by = chunks.masked_fill(chosen_by, tape.tensor(chosen_by.shape, DType.BOOL))
        else:
            chosen_by = ops.add(chosen_by, mask.view(*mask.shape[:1], *mask.shape[2:]))
        indices = top(chosen_by, shape.num_chosen_of(num_tokens))[1]
        chosen = tape.tensor(indices.shape, DType.INT32)
        tape.move(indices.num_bytes + chosen.num_bytes)
        del q_rotated, q_pass, k_rotated, k_pass, weights, q, k, scores
        return chosen

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        *rows, width = x.shape
        rotated = self.shape.rotary_width
        first, rest = ops.split(x, (*rows, rotated), (*rows, width - rotated))
        return first, rest

    def _rotated(self, x: Tensor, context: RotaryContext) -> Tensor:
        """x with positions, (batch, tokens, heads, rotated elements)."""
        num_tokens, width = x.shape[1], self.shape.rotary_width
        if self.shape.is_interleaved:
            half = (1, num_tokens, 1, width // 2)
            return rotated_in_pairs(x, context.cos.view(*half), context.sin.view(*half))
        whole = (1, num_tokens, 1, width)
        return ops.rotate(x, context.cos.view(*whole), context.sin.view(*whole))


class ChoiceContext(RotaryContext):
    """What a layer's attention is called with where what it has chosen is handed on, or was chosen before it."""

    __slots__ = ("chosen",)

    def __init__(self, context: RotaryContext, chosen: Tensor | None) -> None:
        super().__init__(context.backend, context.cos, context.sin, context.masks)
        self.chosen = chosen


class SparseLatentAttention(LatentAttention):
    """``DeepseekV32Attention``, ``GlmMoeDsaAttention``; ``indexer`` is None where a layer before has chosen."""

    def __init__(self, shape: LatentShape, indexer: IndexerShape | None) -> None:
        super().__init__(shape)
        self.indexer = None if indexer is None else TokenIndexer(indexer)

    def queries(self, x: Tensor) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
        q_latent = self.q_a_layernorm(self.q_a_proj(x))
        return by_head(self.q_b_proj(q_latent), self.shape.num_heads), q_latent, ()

    def mask(
        self, x: Tensor, q_latent: Tensor | None, context: RotaryContext
    ) -> tuple[Tensor | None, Sequence[Tensor]]:
        assert q_latent is not None
        causal = context.masks[None]
        chosen = None if self.indexer is None else self.indexer(x, q_latent, context, causal)
        if isinstance(context, ChoiceContext):
            chosen = context.chosen = context.chosen if chosen is None else chosen
        assert chosen is not None
        mask, is_hidden = mask_of_chosen(causal, chosen)
        return mask, (chosen, is_hidden)


def mask_of_chosen(causal: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The causal mask without the keys that are not ``chosen``, and which those are."""
    tape, num_tokens = chosen.tape, causal.shape[-1]
    shape = (chosen.shape[0], 1, num_tokens, num_tokens)
    ones = tape.tensor(shape, DType.BOOL)
    wide = tape.tensor(chosen.shape, DType.INT64)
    is_hidden = tape.tensor(shape, DType.BOOL)
    tape.move(2 * is_hidden.num_bytes + wide.num_bytes)
    del ones, wide
    if causal.dtype is DType.BOOL:
        is_seen = tape.tensor(shape, DType.BOOL)
        mask = tape.tensor(shape, DType.BOOL)
        tape.move(4 * mask.num_bytes)
        del is_seen
    else:
        mask = tape.tensor(shape, causal.dtype)
        tape.move(2 * mask.num_bytes)
    return mask, is_hidden
