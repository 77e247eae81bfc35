"""BioGPT and XGLM: scaled embeddings, layer norms first, an MLP of two Linears, dropout behind each part.

Source: transformers 5.23 ``models/biogpt/modeling_biogpt.py`` and ``models/xglm/modeling_xglm.py``. BioGPT learns its
positions; XGLM adds constants, and its eager attention, of which there is no other, is written out. ``layerdrop``, the
chance to skip a layer, is not described: a step that skips none is the largest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, cached
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.attention_kernels import folded, product
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma import ScaledEmbedding
from vlmplan.architecture.families.gpt2 import GPT2Context
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack, require_positions
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType

POSITION_OFFSET = 2
"""Rows of the position table in front of the first position (``BioGptLearnedPositionalEmbedding``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BioGptShape:
    """The dimensions of a decoder, and its probabilities of dropout. ``learns_positions``: BioGPT does."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_positions: int
    vocab_size: int
    activation: str
    learns_positions: bool
    attention_dropout: float
    hidden_dropout: float
    activation_dropout: float


class BioGptAttention(Module):
    """``BioGptAttention``, ``XGLMAttention``."""

    def __init__(self, shape: BioGptShape) -> None:
        self.shape, width = shape, shape.hidden_size
        self.k_proj = Linear(width, width, bias=True)
        self.v_proj = Linear(width, width, bias=True)
        self.q_proj = Linear(width, width, bias=True)
        self.out_proj = Linear(width, width, bias=True)

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        batch, num_tokens, width = x.shape
        head = (batch, self.shape.num_heads, num_tokens, width // self.shape.num_heads)
        q = self.q_proj(x).view(*head)
        k = self.k_proj(x).view(*head)
        v = self.v_proj(x).view(*head)
        scores = Scores(dropout=self.shape.attention_dropout, upcasts=False, casts_back=False)
        out = attend(context.backend, q, k, v, is_causal=True, mask=context.mask, scores=scores)
        return self.out_proj(out)


class XglmAttention(BioGptAttention):
    """``XGLMAttention``: queries, keys and values are written out head by head, and scores have a least value."""

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        """The layer has the weights until it ends."""
        batch, num_tokens, width = x.shape
        head = (batch, self.shape.num_heads, num_tokens, width // self.shape.num_heads)
        q = ops.scale(self.q_proj(x)).view(*head)
        k, v = cached(self.k_proj(x).view(*head), self.v_proj(x).view(*head))
        q = folded(q, copies=batch > 1)
        if x.tape.key_cache is None:  # what is kept is written out
            k = folded(k, copies=batch > 1)
            v = folded(v, copies=batch > 1)
        weights = product(q, k, (*head[:3], num_tokens), head[3])
        assert context.mask is not None
        weights = ops.add(weights, context.mask)
        weights = ops.maximum(weights)
        if weights.dtype is DType.FLOAT16:
            weights = ops.to(ops.softmax(weights, DType.FLOAT32), DType.FLOAT16)
        else:
            weights = ops.softmax(weights)
        x.tape.layer_locals.append(weights.detached())
        probabilities = ops.dropout(weights, self.shape.attention_dropout, is_module=False)
        out = product(probabilities, v, head, num_tokens)
        out = ops.copy(out, batch, num_tokens, width)
        out = self.out_proj(out)
        del q, k, weights, probabilities
        return out


class BioGptLayer(Module):
    """``BioGptDecoderLayer``, ``XGLMDecoderLayer``."""

    def __init__(self, shape: BioGptShape) -> None:
        self.shape, width = shape, shape.hidden_size
        self.self_attn = (BioGptAttention if shape.learns_positions else XglmAttention)(shape)
        self.self_attn_layer_norm = LayerNorm(width)
        self.fc1 = Linear(width, shape.intermediate_size, bias=True)
        self.fc2 = Linear(shape.intermediate_size, width, bias=True)
        self.final_layer_norm = LayerNorm(width)
        self.activation_fn: Callable[[Tensor], Tensor] = ops.activation_module(shape.activation)

    def forward(self, x: Tensor, context: GPT2Context) -> Tensor:
        """The last operation that saves anything is the layer's own dropout: there backward runs the layer again, and
        what that gathers goes when the layer's backward is over."""
        shape = self.shape
        x.tape.enter_block()
        residual = x
        x = self.self_attn_layer_norm(x)
        x = self.self_attn(x, context)
        x = ops.dropout(x, shape.hidden_dropout, is_module=False)
        x = ops.add(residual, x)
        residual = x
        x = self.final_layer_norm(x)
        if shape.learns_positions:  # BioGPT names the result of the first Linear
            x = self.fc1(x)
            x = self.activation_fn(x)
        else:
            x = self.activation_fn(self.fc1(x))
        x = ops.dropout(x, shape.activation_dropout, is_module=False)
        x = self.fc2(x)
        x = ops.dropout(x, shape.hidden_dropout, is_module=False)
        x = ops.add(residual, x)
        x.tape.leave_block()
        return x


class BioGptDecoder(Module):
    """``BioGptModel``, ``XGLMModel``."""

    def __init__(self, shape: BioGptShape) -> None:
        self.shape = shape
        self.embed_tokens = ScaledEmbedding(shape.vocab_size, shape.hidden_size)
        if shape.learns_positions:
            self.embed_positions = Embedding(shape.num_positions + POSITION_OFFSET, shape.hidden_size)
        self.layers = Stack.of(BioGptLayer(shape), shape.num_layers, label="layers")
        self.layer_norm = LayerNorm(shape.hidden_size)

    @property
    def buffer_bytes(self) -> int:
        """The constants that XGLM adds, in the type in which its weights are read; packed ones are in 16 bits then."""
        if self.shape.learns_positions:
            return 0
        first: Any = self.layers.kinds[0]
        linear = getattr(first.fc1, "base_layer", first.fc1)
        dtype = linear.weight.dtype if isinstance(linear, Linear) else DType.BFLOAT16
        return (self.shape.num_positions + POSITION_OFFSET) * self.shape.hidden_size * dtype.num_bytes

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embed_tokens(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        """x, the embeddings, stays beside what dropout makes of it until this returns."""
        tape, shape = x.tape, self.shape
        with tape.section("positions"):
            longest = x.shape[1] if backend.sequences is None else backend.sequences.longest
            kept = tape.tensor(x.shape[:2], DType.FLOAT32) if shape.learns_positions else None  # a mask of ones
            context = GPT2Context(backend, causal_masks(x, backend, (None,)).get(None))
            position_ids = tape.tensor((1, x.shape[1]), DType.INT64)
            if shape.learns_positions:
                require_positions(longest, shape.num_positions)
                positions = self.embed_positions(ops.shift(position_ids))
            else:
                positions = tape.tensor((1, *x.shape[1:]), x.dtype)
            embedded = [ops.dropout(ops.add(x, positions), shape.hidden_dropout, is_module=False)]
            named = positions if shape.learns_positions else None
            del positions
        hidden = self.layers.run(embedded.pop(), lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            hidden = self.layer_norm(hidden)
        del kept, named
        return hidden


class BioGpt(Model):
    """``BioGptForCausalLM``."""

    EMBEDDINGS = "biogpt.embed_tokens"
    HEAD = "output_projection"
    attention_linears = ("q_proj", "k_proj", "v_proj", "out_proj")

    def __init__(self, decoder: BioGptDecoder, *, ties_weights: bool) -> None:
        self.biogpt = decoder
        self.output_projection = Linear(decoder.shape.hidden_size, decoder.shape.vocab_size)
        if ties_weights:
            self.tie_weights()

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        return self.biogpt.forward(self.biogpt.embed(ids), backend)


def decoder(config: Config) -> BioGptDecoder:
    is_xglm = config.model_type == "xglm"
    if is_xglm and config.boolean("add_cross_attention"):
        raise InputError("config.json: add_cross_attention is set; XGLM can be planned without it only")
    names = ("ffn_dim", "activation_function", "attention_dropout", "dropout")
    if not is_xglm:
        names = ("intermediate_size", "hidden_act", "attention_probs_dropout_prob", "hidden_dropout_prob")
    width, activation, attention_dropout, hidden_dropout = names
    shape = BioGptShape(
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer(width),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=config.integer("num_attention_heads"),
        num_positions=config.integer("max_position_embeddings"),
        vocab_size=config.integer("vocab_size"),
        activation=config.text(activation),
        learns_positions=not is_xglm,
        attention_dropout=config.number(attention_dropout),
        hidden_dropout=config.number(hidden_dropout),
        activation_dropout=config.number("activation_dropout"),
    )
    return BioGptDecoder(shape)


def causal_lm(decoder: BioGptDecoder, config: Config) -> Any:
    if config.model_type == "biogpt":
        return BioGpt(decoder, ties_weights=config.boolean("tie_word_embeddings"))
    causal = CausalLM(decoder, config)
    causal.attention_linears = BioGpt.attention_linears
    return causal
