"""Megatron-BERT: a BERT with norms before attention and MLP and behind all layers, and attention that is written out.

Source: transformers 5.23 ``models/megatron_bert/modeling_megatron_bert.py``. The class has no fused attention.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import cached
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.attention_kernels import product
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.bert import (
    Bert,
    BertEmbeddings,
    BertIntermediate,
    BertModel,
    BertSelfAttention,
    BertShape,
    bert_shape,
)
from vlmplan.architecture.families.bert_pre_norm import PlainOutput
from vlmplan.architecture.families.held_weights import HoldingContext, stack_of_holding
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.modules import LayerNorm, Module
from vlmplan.architecture.tensor import Tensor


class MegatronEmbeddings(BertEmbeddings):
    """``MegatronBertEmbeddings``, to which positions are added in place."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__(shape, norms=False)

    def added(self, summed: Tensor, positions: Tensor) -> Tensor:
        return ops.add_in_place(summed, positions)


class MegatronSelfAttention(BertSelfAttention):
    """``MegatronBertSelfAttention``: (result, weights)."""

    def forward(self, x: Tensor, context: Any) -> Any:
        shape, (batch, num_tokens, width) = self.shape, x.shape
        heads = (batch, shape.num_heads, num_tokens, width // shape.num_heads)
        several = batch > 1
        q = self.query(x).view(*heads)
        k = self.key(x).view(*heads)
        v = self.value(x).view(*heads)
        q, k, v = self.positioned(q, k, v, context)
        k, v = cached(k, v)
        scores_shape = (*heads[:3], k.shape[2])
        scores = product(q, k, scores_shape, heads[-1], copies=(several, several))
        scores = ops.scale(scores)
        if context.mask is not None:
            scores = ops.add(scores, context.mask)
        weights = ops.softmax(scores)
        weights = ops.dropout(weights, shape.scores.dropout)
        out = product(weights, v, heads, k.shape[2], copies=(False, several))
        out = ops.copy(out, batch, num_tokens, width)
        del scores
        return out, weights

    def positioned(self, q: Tensor, k: Tensor, v: Tensor, context: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as they meet."""
        return q, k, v


class MegatronAttention(Module):
    """``MegatronBertAttention``: (result, weights)."""

    def __init__(self, shape: BertShape) -> None:
        self.ln = LayerNorm(shape.hidden_size)
        self.self = MegatronSelfAttention(shape)
        self.output = PlainOutput(shape, shape.hidden_size, shape.dropout)

    def forward(self, x: Tensor, context: HoldingContext) -> tuple[Tensor, Tensor]:
        normed = self.ln(x)
        attended, weights = self.modules_by_name["self"](normed, context)
        out = self.output(attended, x)
        del normed, attended
        return out, weights


class MegatronLayer(Module):
    """``MegatronBertLayer``."""

    def __init__(self, shape: BertShape) -> None:
        self.dropout = shape.scores.dropout
        self.attention = MegatronAttention(shape)
        self.ln = LayerNorm(shape.hidden_size)
        self.intermediate = BertIntermediate(shape)
        self.output = PlainOutput(shape, shape.intermediate_size, shape.dropout)

    def forward(self, x: Tensor, context: HoldingContext) -> Tensor:
        held = context.held(x)
        attended, weights = self.attention(x, context)
        normed = self.ln(attended)
        between = self.intermediate(normed)
        out = self.output(between, attended)
        context.hold(weights, dropout=self.dropout)
        del weights, held, attended, normed, between
        return out


class MegatronEncoder(Module):
    """``MegatronBertEncoder``."""

    def __init__(self, shape: BertShape) -> None:
        self.layer = stack_of_holding(lambda: MegatronLayer(shape), shape.num_layers)
        self.ln = LayerNorm(shape.hidden_size)


class MegatronModel(BertModel):
    """``MegatronBertModel`` without a pooler."""

    def __init__(self, shape: BertShape) -> None:
        self.shape = shape
        self.embeddings = MegatronEmbeddings(shape)
        self.encoder = MegatronEncoder(shape)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        with x.tape.section("positions"):
            mask = causal_masks(x, backend, (None,)).get(None) if self.shape.is_causal else None
            context = HoldingContext(backend, mask)
        hidden = self.encoder.layer.run(x, lambda layer, x: layer(x, context))
        with x.tape.section("norm"):
            return self.encoder.ln(hidden)


causal_lm = Bert
"""``MegatronBertForCausalLM``."""


def decoder(config: Config) -> MegatronModel:
    return MegatronModel(bert_shape(config))
