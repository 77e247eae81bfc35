"""BERT for generation: one type of tokens, and a head without a dense layer before it.

Source: transformers 5.23 ``models/bert_generation/modeling_bert_generation.py``.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.bert import Bert, BertEncoder, BertModel, BertShape, bert_shape
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, require_positions
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.reused_layers import layers_result
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class BertGenerationEmbeddings(Module):
    """``BertGenerationEmbeddings``."""

    def __init__(self, shape: BertShape) -> None:
        self.shape = shape
        self.word_embeddings = Embedding(shape.vocab_size, shape.hidden_size)
        self.position_embeddings = Embedding(shape.num_positions, shape.hidden_size)
        self.LayerNorm = LayerNorm(shape.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        num_tokens = ids.shape[1]
        require_positions(num_tokens, self.shape.num_positions)
        words = self.word_embeddings(ids)
        # A part of a table of numbers that is there anyway.
        position_ids = Tensor(ids.tape.tensor((0,), DType.INT64).storage, (1, num_tokens), DType.INT64)
        positions = self.position_embeddings(position_ids)
        summed = ops.add(words, positions)
        summed = self.LayerNorm(summed)
        summed = ops.dropout(summed, self.shape.dropout)
        del words, positions
        return summed


class BertGenerationEncoder(BertModel):
    """``BertGenerationEncoder``."""

    def __init__(self, shape: BertShape) -> None:
        self.shape = shape
        self.embeddings: Any = BertGenerationEmbeddings(shape)
        self.encoder = BertEncoder(shape)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        return layers_result(super().forward(x, backend))

    @property
    def buffer_bytes(self) -> int:
        """``position_ids`` of all positions."""
        return self.shape.num_positions * DType.INT64.num_bytes


class PlainHead(Module):
    """``BertGenerationOnlyLMHead``, which holds the head's bias too."""

    def __init__(self, shape: BertShape) -> None:
        self.bias = Parameter(shape.vocab_size)
        self.decoder: Any = Linear(shape.hidden_size, shape.vocab_size, bias=True)
        self.decoder.bias = self.bias

    def forward(self, x: Tensor) -> Tensor:
        """What the head gets."""
        return x


class BertGeneration(Bert):
    """``BertGenerationDecoder``."""

    HEAD = "lm_head.decoder"
    AROUND = "lm_head"

    def around(self, shape: BertShape) -> Module:
        return PlainHead(shape)


causal_lm = BertGeneration


def decoder(config: Config) -> BertGenerationEncoder:
    return BertGenerationEncoder(bert_shape(config))
