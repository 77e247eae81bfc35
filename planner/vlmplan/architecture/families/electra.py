"""ELECTRA as a language model: a BERT whose embeddings have a width of their own, to which its head's input comes back.

Source: transformers 5.23 ``models/electra/modeling_electra.py``. The head's bias is its own.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import bert
from vlmplan.architecture.families.bert import BertEmbeddings, BertEncoder, BertModel, BertShape
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.modules import LayerNorm, Linear, Module
from vlmplan.architecture.tensor import Tensor


class ElectraModel(BertModel):
    """``ElectraModel``."""

    def __init__(self, shape: BertShape) -> None:
        self.shape = shape
        self.embeddings = BertEmbeddings(shape)
        if shape.embedding_size != shape.hidden_size:
            self.embeddings_project = Linear(shape.embedding_size, shape.hidden_size, bias=True)
        self.encoder = BertEncoder(shape)

    def embed(self, ids: Tensor) -> Tensor:
        embedded = super().embed(ids)
        if self.shape.embedding_size == self.shape.hidden_size:
            return embedded
        with ids.tape.section("projection"):
            return self.embeddings_project(embedded)


class GeneratorPredictions(Module):
    """``ElectraGeneratorPredictions``."""

    def __init__(self, hidden_size: int, embedding_size: int) -> None:
        self.LayerNorm = LayerNorm(embedding_size)
        self.dense = Linear(hidden_size, embedding_size, bias=True)
        self.activation = ops.activation_module("gelu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        x = self.activation(x)
        return self.LayerNorm(x)


class Electra(Model):
    """``ElectraForCausalLM``."""

    EMBEDDINGS = "electra.embeddings.word_embeddings"
    HEAD = "generator_lm_head"
    attention_linears = bert.Bert.attention_linears

    def __init__(self, decoder: ElectraModel, config: Config) -> None:
        self.electra = decoder
        self.generator_predictions = GeneratorPredictions(decoder.shape.hidden_size, decoder.shape.embedding_size)
        self.generator_lm_head: Any = Linear(decoder.shape.embedding_size, decoder.shape.vocab_size, bias=True)
        if config.boolean("tie_word_embeddings"):
            self.tie_weights()

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        """What the head gets; what the decoder returns is there until the loss is made."""
        hidden = self.electra.forward(self.electra.embed(ids), backend)
        ids.tape.locals.append(hidden.detached())
        with ids.tape.section("before the head"):
            return self.generator_predictions(hidden)


causal_lm = Electra


def decoder(config: Config) -> ElectraModel:
    return ElectraModel(bert.bert_shape(config))
