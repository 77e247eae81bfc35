"""The Q-Former: a BERT whose learned queries look at the image in every few layers.

Source: transformers 5.23 ``models/blip_2/modeling_blip_2.py``, ``Blip2QFormerModel``, and the copy in ``instructblip``,
which feeds the instruction's tokens beside the queries. Both run in the type of their weights and cast what comes in.
"""

from typing import NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class QFormerContext(NamedTuple):
    """What every layer is called with besides hidden states and image."""

    backend: AttentionBackend
    num_queries: int


class MultiHeadAttention(Module):
    """``Blip2QFormerMultiHeadAttention``, without its output projection."""

    def __init__(self, config: Config, key_width: int) -> None:
        width = config.integer("hidden_size")
        self.num_heads = config.integer("num_attention_heads")
        self.scores = Scores(dropout=config.number("attention_probs_dropout_prob"), upcasts=False, casts_back=False)
        self.query = Linear(width, width, bias=True)
        self.key = Linear(key_width, width, bias=True)
        self.value = Linear(key_width, width, bias=True)

    def forward(self, x: Tensor, states: Tensor, context: QFormerContext) -> Tensor:
        batch, num_tokens, width = x.shape
        head_dim = width // self.num_heads
        keys = (batch, self.num_heads, states.shape[1], head_dim)
        q = self.query(x).view(batch, self.num_heads, num_tokens, head_dim)
        k, v = self.key(states).view(*keys), self.value(states).view(*keys)
        return attend(context.backend, q, k, v, is_causal=False, scores=self.scores)


class ResidualOutput(Module):
    """``Blip2QFormerSelfOutput`` and ``Blip2QFormerOutput``: Linear, dropout, and a norm of the sum."""

    def __init__(self, config: Config, in_width: int) -> None:
        width = config.integer("hidden_size")
        self.dense = Linear(in_width, width, bias=True)
        self.LayerNorm = LayerNorm(width)
        self.dropout = config.number("hidden_dropout_prob")

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        x = self.dense(x)
        x = ops.dropout(x, self.dropout)
        return self.LayerNorm(ops.add(x, residual))


class QFormerAttention(Module):
    """``Blip2QFormerAttention``: over the hidden states themselves, or over an image of ``key_width``."""

    def __init__(self, config: Config, key_width: int) -> None:
        self.attention = MultiHeadAttention(config, key_width)
        self.output = ResidualOutput(config, config.integer("hidden_size"))

    def forward(self, x: Tensor, states: Tensor, context: QFormerContext) -> Tensor:
        return self.output(self.attention(x, states, context), x)


class Intermediate(Module):
    """``Blip2QFormerIntermediate``."""

    def __init__(self, config: Config) -> None:
        self.dense = Linear(config.integer("hidden_size"), config.integer("intermediate_size"), bias=True)
        self.intermediate_act_fn = ops.activation_module(config.text("hidden_act"))

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        return self.intermediate_act_fn(x)


class QFormerLayer(Module):
    """``Blip2QFormerLayer``: the text tokens, where there are any, have an MLP of their own."""

    def __init__(self, config: Config, *, image_width: int | None, has_text: bool) -> None:
        self.attention = QFormerAttention(config, config.integer("hidden_size"))
        self.crossattention = None if image_width is None else QFormerAttention(config, image_width)
        inner = config.integer("intermediate_size")
        if has_text:
            self.intermediate = Intermediate(config)
            self.output = ResidualOutput(config, inner)
        self.intermediate_query = Intermediate(config)
        self.output_query = ResidualOutput(config, inner)

    def forward(self, x: Tensor, image: Tensor, context: QFormerContext) -> Tensor:
        x = self.attention(x, x, context)
        batch, num_tokens, width = x.shape
        num_queries, num_text_tokens = context.num_queries, num_tokens - context.num_queries
        queries = head_of(x, num_queries)
        if self.crossattention is not None:
            queries = self.crossattention(queries, image, context)
        out = self.output_query(self.intermediate_query(queries), queries)
        if not num_text_tokens:
            return out
        text = ops.copy(ops.part(x, batch, num_text_tokens, width))
        text_out = self.output(self.intermediate(text), text)
        return ops.concatenate([out, text_out], (batch, num_tokens, width))


def head_of(x: Tensor, num_queries: int) -> Tensor:
    """``x[:, :num_queries]``: a slice, which the Linear behind it copies; x itself where that is all of it."""
    batch, num_tokens, width = x.shape
    return x if num_tokens == num_queries else ops.copy(ops.part(x, batch, num_queries, width))


class QFormerEncoder(Module):
    def __init__(self, config: Config, image_width: int, *, has_text: bool, label: str = "qformer") -> None:
        kinds = [
            QFormerLayer(config, image_width=image_width, has_text=has_text),
            QFormerLayer(config, image_width=None, has_text=has_text),
        ]
        frequency = config.integer("cross_attention_frequency")
        pattern = [0 if index % frequency == 0 else 1 for index in range(config.integer("num_hidden_layers"))]
        self.layer = Stack(kinds, pattern, label=label)


class QFormer(Module):
    """``Blip2QFormerModel``: queries only. ``label``: of its sections, where a model has several."""

    def __init__(self, config: Config, image_width: int, *, label: str = "qformer") -> None:
        self.label = label
        self.layernorm = LayerNorm(config.integer("hidden_size"))
        self.dropout = config.number("hidden_dropout_prob")
        has_text = config.boolean("use_qformer_text_input")
        self.encoder = QFormerEncoder(config, image_width, has_text=has_text, label=label)

    def forward(self, queries: Tensor, image: Tensor, backend: AttentionBackend) -> Tensor:
        with image.tape.section(f"{self.label}.embedding"):
            dtype = self.layernorm.weight.dtype
            x = self.layernorm(ops.to(queries, dtype))
            x = ops.dropout(x, self.dropout)
            image = ops.to(image, dtype)
        return run_layers(self.encoder, x, image, QFormerContext(backend, queries.shape[1]))


def run_layers(encoder: QFormerEncoder, x: Tensor, image: Tensor, context: QFormerContext) -> Tensor:
    """All layers one by one: those with cross-attention sum up the gradient of the image."""

    def call(layer: QFormerLayer, hidden: Tensor, image: Tensor) -> Tensor:
        return layer(hidden, image, context)

    return encoder.layer.run_each(x, call, image, sharing=set(encoder.layer.pattern))


class TextEmbeddings(Module):
    """``InstructBlipQFormerEmbeddings``: queries, and words with learned positions behind them."""

    INPUT_EMBEDDING = "word_embeddings"

    def __init__(self, config: Config) -> None:
        width, self.num_positions = config.integer("hidden_size"), config.integer("max_position_embeddings")
        self.word_embeddings = Embedding(config.integer("vocab_size"), width)
        self.position_embeddings = Embedding(self.num_positions, width)
        self.layernorm = LayerNorm(width)
        self.dropout = config.number("hidden_dropout_prob")

    def forward(self, ids: Tensor, queries: Tensor) -> Tensor:
        batch, num_queries, width = queries.shape
        num_text_tokens = ids.shape[1]
        words = self.word_embeddings(ids)
        positions = self.position_embeddings(ids.tape.tensor((1, num_text_tokens), DType.INT64))
        words = ops.add(words, positions)
        x = ops.concatenate([queries, words], (batch, num_queries + num_text_tokens, width))
        x = ops.to(x, self.layernorm.weight.dtype)
        x = self.layernorm(x)
        return ops.dropout(x, self.dropout)


class InstructQFormer(Module):
    """``InstructBlipQFormerModel``: queries and the instruction."""

    def __init__(self, config: Config, image_width: int) -> None:
        self.embeddings = TextEmbeddings(config)
        self.encoder = QFormerEncoder(config, image_width, has_text=True)

    def forward(self, ids: Tensor, queries: Tensor, image: Tensor, backend: AttentionBackend) -> Tensor:
        with image.tape.section("qformer.embedding"):
            x = self.embeddings(ids, queries)
        return run_layers(self.encoder, x, image, QFormerContext(backend, queries.shape[1]))
