"""OPT: learned positions, layer norms before or after each part, dropout; the language model of BLIP-2.

Source: transformers 5.23 ``models/opt/modeling_opt.py``. ``layerdrop``, the chance to skip a layer, is not described:
a step that skips none is the largest.
"""

from dataclasses import dataclass

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack, require_positions
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType

POSITION_OFFSET = 2
"""Rows of the position table in front of the first position (``OPTLearnedPositionalEmbedding``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptShape:
    """The dimensions of an OPT decoder. ``embedding_width`` is that of the token table and of the output head."""

    hidden_size: int
    embedding_width: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_positions: int
    vocab_size: int
    has_bias: bool
    norms_first: bool
    has_final_norm: bool
    activation: str
    dropout: float
    scores: Scores


class OptContext:
    """What every layer is called with besides the hidden states."""

    __slots__ = ("backend", "mask")

    def __init__(self, backend: AttentionBackend, mask: Tensor | None) -> None:
        self.backend, self.mask = backend, mask


class OptAttention(Module):
    """Attention whose queries are scaled before the kernel."""

    def __init__(self, shape: OptShape) -> None:
        self.shape = shape
        width, bias = shape.hidden_size, shape.has_bias
        self.k_proj = Linear(width, width, bias=bias)
        self.v_proj = Linear(width, width, bias=bias)
        self.q_proj = Linear(width, width, bias=bias)
        self.out_proj = Linear(width, width, bias=bias)

    def forward(self, x: Tensor, context: OptContext) -> Tensor:
        batch, num_tokens, width = x.shape
        num_heads = self.shape.num_heads
        head = (batch, num_heads, num_tokens, width // num_heads)
        q = ops.scale(self.q_proj(x)).view(*head)
        k, v = self.k_proj(x).view(*head), self.v_proj(x).view(*head)
        out = attend(context.backend, q, k, v, is_causal=True, mask=context.mask, scores=self.shape.scores)
        return self.out_proj(out)


class OptLayer(Module):
    """``OPTDecoderLayer``: its norms stand before attention and MLP, in the 350M model after them."""

    def __init__(self, shape: OptShape) -> None:
        self.shape = shape
        width = shape.hidden_size
        self.self_attn = OptAttention(shape)
        self.self_attn_layer_norm = LayerNorm(width)
        self.fc1 = Linear(width, shape.intermediate_size, bias=shape.has_bias)
        self.fc2 = Linear(shape.intermediate_size, width, bias=shape.has_bias)
        self.final_layer_norm = LayerNorm(width)
        self.activation_fn = ops.activation_module(shape.activation)

    def forward(self, x: Tensor, context: OptContext) -> Tensor:
        """Where norms stand first, the last operation that saves anything is the layer's own dropout: there backward
        runs the layer again, and what that gathers goes when the layer's backward is over."""
        shape = self.shape
        x.tape.enter_block()
        residual = x
        if shape.norms_first:
            x = self.self_attn_layer_norm(x)
        x = self.self_attn(x, context)
        x = ops.dropout(x, shape.dropout, is_module=False)
        x = ops.add(residual, x)
        if not shape.norms_first:
            x = self.self_attn_layer_norm(x)
        batch = x.shape
        x = x.view(x.numel // batch[-1], batch[-1])  # rows, whose gradients are no views
        residual = x
        if shape.norms_first:
            x = self.final_layer_norm(x)
        x = self.fc1(x)
        x = self.activation_fn(x)
        x = self.fc2(x)
        x = ops.dropout(x, shape.dropout, is_module=False)
        x = ops.add(residual, x).view(*batch)
        x.tape.leave_block()
        return x if shape.norms_first else self.final_layer_norm(x)


class OptDecoder(Module):
    """``OPTDecoder``."""

    def __init__(self, shape: OptShape) -> None:
        self.shape = shape
        width = shape.hidden_size
        projects = shape.embedding_width != width
        self.embed_tokens = Embedding(shape.vocab_size, shape.embedding_width)
        self.embed_positions = Embedding(shape.num_positions + POSITION_OFFSET, width)
        self.project_out: Linear | None = Linear(width, shape.embedding_width) if projects else None
        self.project_in: Linear | None = Linear(shape.embedding_width, width) if projects else None
        self.final_layer_norm: LayerNorm | None = LayerNorm(width) if shape.has_final_norm else None
        self.layers = Stack.of(OptLayer(shape), shape.num_layers, label="layers")

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embed_tokens(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape = x.tape
        require_positions(x.shape[1], self.shape.num_positions)
        with tape.section("positions"):
            # Positions are counted along the attention mask, so every sample has its own.
            position_ids = tape.tensor(x.shape[:2], DType.INT64)
            context = OptContext(backend, causal_masks(x, backend, (None,)).get(None))
            positions = self.embed_positions(ops.shift(position_ids))
            if self.project_in is not None:
                x = self.project_in(x)
            embedded = [ops.add(x, positions)]
        hidden = self.layers.run(embedded.pop(), lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            if self.final_layer_norm is not None:
                hidden = self.final_layer_norm(hidden)
            if self.project_out is not None:
                hidden = self.project_out(hidden)
            return hidden


class OptModel(Module):
    """``OPTModel``: a shell around the decoder."""

    def __init__(self, decoder: OptDecoder) -> None:
        self.decoder = decoder


class Opt(Model):
    """``OPTForCausalLM``, which BLIP-2 holds whole as its ``language_model``."""

    EMBEDDINGS = "model.decoder.embed_tokens"
    attention_linears = ("q_proj", "k_proj", "v_proj", "out_proj")

    def __init__(self, decoder: OptDecoder, *, ties_weights: bool) -> None:
        shape = decoder.shape
        self.model = OptModel(decoder)
        self.lm_head = Linear(shape.embedding_width, shape.vocab_size)
        if ties_weights:
            self.tie_weights()

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        decoder = self.model.decoder
        return decoder.forward(decoder.embed(ids), backend)


def opt_shape(config: Config) -> OptShape:
    """The shape of an OPT decoder. Raises InputError for layer norms without weights (Galactica)."""
    if not config.boolean("layer_norm_elementwise_affine", True):
        raise InputError("config.json: layer_norm_elementwise_affine is false; OPT can be planned with weights only")
    hidden_size = config.integer("hidden_size")
    norms_first = config.boolean("do_layer_norm_before", True)
    return OptShape(
        hidden_size=hidden_size,
        embedding_width=config.integer("word_embed_proj_dim", hidden_size),
        intermediate_size=config.integer("ffn_dim"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        num_positions=config.integer("max_position_embeddings"),
        vocab_size=config.integer("vocab_size"),
        has_bias=config.boolean("enable_bias", True),
        norms_first=norms_first,
        has_final_norm=norms_first and not config.boolean("_remove_final_layer_norm"),
        activation=config.text("activation_function", "relu"),
        dropout=config.number("dropout"),
        scores=Scores(dropout=config.number("attention_dropout")),
    )


def decoder(config: Config) -> OptDecoder:
    return OptDecoder(opt_shape(config))


def causal_lm(decoder: OptDecoder, config: Config) -> Opt:
    """``OPTForCausalLM``."""
    return Opt(decoder, ties_weights=config.boolean("tie_word_embeddings"))
