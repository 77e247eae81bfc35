"""RemBERT: a BERT whose embeddings and whose head have widths of their own, with attention that is written out.

Source: transformers 5.23 ``models/rembert/modeling_rembert.py``. The head is never tied, and its bias is its own.
"""

from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.bert import (
    Bert,
    BertEmbeddings,
    BertIntermediate,
    BertModel,
    BertShape,
    HeadAround,
    ResidualOutput,
    bert_shape,
    entering,
)
from vlmplan.architecture.families.held_weights import HoldingContext, stack_of_holding
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.families.megatron_bert import MegatronSelfAttention
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class RemBertEmbeddings(BertEmbeddings):
    """``RemBertEmbeddings``, in which positions are added in place."""

    has_buffered_types = False

    def added(self, summed: Tensor, positions: Tensor) -> Tensor:
        return ops.add_in_place(summed, positions)


class WrittenOutAttention(Module):
    """``RemBertAttention``; ``attention`` is what it calls ``self``."""

    def __init__(self, shape: BertShape, attention: Module) -> None:
        self.self = attention
        self.output = ResidualOutput(shape, shape.hidden_size)

    def forward(self, x: Tensor, context: HoldingContext) -> tuple[Tensor, Tensor]:
        attended, weights = self.modules_by_name["self"](entering(x), context)
        out = self.output(attended, x)
        del attended
        return out, weights


class WrittenOutLayer(Module):
    """``RemBertLayer``."""

    def __init__(self, shape: BertShape, attention: Module) -> None:
        self.dropout = shape.scores.dropout
        self.attention = WrittenOutAttention(shape, attention)
        self.intermediate = BertIntermediate(shape)
        self.output = ResidualOutput(shape, shape.intermediate_size)

    def forward(self, x: Tensor, context: HoldingContext) -> Tensor:
        held = context.held(x)
        attended, weights = self.attention(x, context)
        between = self.intermediate(attended)
        out = self.output(between, attended)
        context.hold(weights, dropout=self.dropout)
        del weights, held, attended, between
        return out


class RemBertEncoder(Module):
    """``RemBertEncoder``."""

    def __init__(self, shape: BertShape) -> None:
        self.embedding_hidden_mapping_in = Linear(shape.embedding_size, shape.hidden_size, bias=True)
        self.layer = stack_of_holding(lambda: WrittenOutLayer(shape, MegatronSelfAttention(shape)), shape.num_layers)


class RemBertModel(BertModel):
    """``RemBertModel`` without a pooler."""

    def __init__(self, shape: BertShape) -> None:
        self.shape = shape
        self.embeddings = RemBertEmbeddings(shape)
        self.encoder: Any = RemBertEncoder(shape)

    @property
    def buffer_bytes(self) -> int:
        """``position_ids`` of all positions."""
        return self.shape.num_positions * DType.INT64.num_bytes

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        """x, the embeddings, stay until it returns."""
        with x.tape.section("positions"):
            mask = causal_masks(x, backend, (None,)).get(None) if self.shape.is_causal else None
            context = HoldingContext(backend, mask)
        with x.tape.section("projection"):
            mapped = [self.encoder.embedding_hidden_mapping_in(x)]
        layers: Stack = self.encoder.layer
        return layers.run(mapped.pop(), lambda layer, hidden: layer(hidden, context))


class RemBertPredictions(Module):
    """``RemBertLMPredictionHead``."""

    def __init__(self, shape: BertShape, width: int) -> None:
        self.dense = Linear(shape.hidden_size, width, bias=True)
        self.decoder = Linear(width, shape.vocab_size, bias=True)
        self.activation = ops.activation_module(shape.activation)
        self.LayerNorm = LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        x = self.activation(x)
        return self.LayerNorm(x)


class RemBert(Bert):
    """``RemBertForCausalLM``."""

    EMBEDDINGS = "rembert.embeddings.word_embeddings"

    def __init__(self, decoder: RemBertModel, config: Config) -> None:
        self.rembert = decoder
        self.cls = HeadAround(RemBertPredictions(decoder.shape, config.integer("output_embedding_size")))


causal_lm = RemBert


def decoder(config: Config) -> RemBertModel:
    return RemBertModel(replace(bert_shape(config), embedding_size=config.integer("input_embedding_size")))
