"""BART and what is built like it: an encoder that reads the prompt, and a decoder that attends to it and writes.

Source: transformers 5.23 ``models/{bart,blenderbot,blenderbot_small,marian,mbart,pegasus,plbart}/modeling_*.py``.
``layerdrop``, the chance to skip a layer, is not described: a step that skips none is the largest.

The encoder is given the mask of its padding, which sdpa's kernels take as a bias of (samples, 1, tokens, keys) each
time; the answers are padded on the right, where causal attention does not look, and need none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack, require_positions
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

OFFSET = 2
"""Rows of the position table in front of the first position (``BartLearnedPositionalEmbedding``)."""


class Kind(NamedTuple):
    """What differs between the types. ``offset`` rows are in front of the positions, of which every sample has its own
    or all share one row; ``is_sinusoidal`` ones are constants. ``clamps``: every layer limits float16 results, where
    BART's does so once it finds one that is infinite."""

    norms_first: bool = False
    norms_embedding: bool = True
    has_final_norm: bool = False
    clamps: bool = False
    offset: int = 0
    is_sinusoidal: bool = False
    norms_words: bool = False


KINDS: Mapping[str, Kind] = {
    "bart": Kind(offset=OFFSET),
    "blenderbot": Kind(norms_first=True, norms_embedding=False, has_final_norm=True, clamps=True),
    "blenderbot-small": Kind(norms_words=True),
    "marian": Kind(norms_embedding=False, is_sinusoidal=True),
    "mbart": Kind(norms_first=True, has_final_norm=True, clamps=True, offset=OFFSET),
    "pegasus": Kind(norms_first=True, norms_embedding=False, has_final_norm=True, clamps=True, is_sinusoidal=True),
    "plbart": Kind(offset=OFFSET),
}
"""``norms_words``: the decoder's norm comes before positions are added, not after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BartShape:
    """The dimensions of one of the two stacks."""

    kind: Kind
    width: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    num_positions: int
    vocab_size: int
    activation: str
    dropout: float
    activation_dropout: float
    scores: Scores


class Masks(NamedTuple):
    """What layers are called with besides hidden states: the mask of tokens, and that of the encoder's."""

    backend: AttentionBackend
    own: Tensor | None
    encoder: Tensor | None = None


class BartAttention(Module):
    """Attention among tokens, or to ``states`` of the encoder."""

    KEY_BIAS = True

    def __init__(self, shape: BartShape, *, is_causal: bool) -> None:
        self.shape, self.is_causal = shape, is_causal
        self.k_proj = Linear(shape.width, shape.width, bias=self.KEY_BIAS)
        self.v_proj, self.q_proj, self.out_proj = (Linear(shape.width, shape.width, bias=True) for _ in range(3))

    def forward(self, x: Tensor, states: Tensor, mask: Tensor | None, backend: AttentionBackend) -> Tensor:
        num_heads = self.shape.num_heads
        batch, num_tokens, width = x.shape
        head = (batch, num_heads, num_tokens, width // num_heads)
        key = (batch, num_heads, states.shape[1], width // num_heads)
        q = self.q_proj(x).view(*head)
        k, v = self.k_proj(states).view(*key), self.v_proj(states).view(*key)
        return self.out_proj(attend(backend, q, k, v, is_causal=self.is_causal, mask=mask, scores=self.shape.scores))


class BartLayer(Module):
    """A layer of the encoder, or with cross-attention one of the decoder; norms stand before each part, or after it."""

    ATTENTION: type[BartAttention] = BartAttention

    def __init__(self, shape: BartShape, *, is_decoder: bool) -> None:
        self.shape, self.is_decoder = shape, is_decoder
        self.self_attn = self.ATTENTION(shape, is_causal=is_decoder)
        if is_decoder:
            self.activation_fn = ops.activation_module(shape.activation)
        self.self_attn_layer_norm = LayerNorm(shape.width)
        if is_decoder:
            self.encoder_attn = self.ATTENTION(shape, is_causal=False)
            self.encoder_attn_layer_norm = LayerNorm(shape.width)
        else:
            self.activation_fn = ops.activation_module(shape.activation)
        self.fc1 = Linear(shape.width, shape.intermediate_size, bias=True)
        self.fc2 = Linear(shape.intermediate_size, shape.width, bias=True)
        self.final_layer_norm = LayerNorm(shape.width)

    def forward(self, x: Tensor, masks: Masks, states: Tensor | None = None) -> Tensor:
        """Where norms stand first, the last operation that saves anything is the layer's own dropout: there backward
        runs the layer again, and what that gathers goes when the layer's backward is over."""
        shape = self.shape
        norms_first, backend = shape.kind.norms_first, masks.backend
        x.tape.enter_block()
        residual = x
        if norms_first:
            x = self.self_attn_layer_norm(x)
        x = self.self_attn(x, x, masks.own, backend)
        x = ops.dropout(x, shape.dropout, is_module=False)
        x = ops.add(residual, x)
        if not norms_first:
            x = self.self_attn_layer_norm(x)
        if states is not None:
            residual = x
            if norms_first:
                x = self.encoder_attn_layer_norm(x)
            x = self.encoder_attn(x, states, masks.encoder, backend)
            x = ops.dropout(x, shape.dropout, is_module=False)
            x = ops.add(residual, x)
            if not norms_first:
                x = self.encoder_attn_layer_norm(x)
        residual = x
        if norms_first:
            x = self.final_layer_norm(x)
        x = self.fc1(x)
        x = self.activation_fn(x)
        x = ops.dropout(x, shape.activation_dropout, is_module=False)
        x = self.fc2(x)
        x = ops.dropout(x, shape.dropout, is_module=False)
        x = ops.add(residual, x)
        if not norms_first:
            x = self.final_layer_norm(x)
        x = x if self.is_decoder else self._limited(x)
        x.tape.leave_block()
        return x

    def _limited(self, x: Tensor) -> Tensor:
        if x.dtype is DType.FLOAT16 and self.shape.kind.clamps:
            return ops.clamp(x, num_limits=2)
        return x


class BartStack(Module):
    """``BartEncoder`` or ``BartDecoder``."""

    def __init__(self, shape: BartShape, *, is_decoder: bool) -> None:
        kind = shape.kind
        self.shape, self.is_decoder = shape, is_decoder
        self.embed_tokens = Embedding(shape.vocab_size, shape.width)
        self.embed_positions = Embedding(shape.num_positions + kind.offset, shape.width)
        self.embed_positions.weight.is_constant = kind.is_sinusoidal
        label = "decoder" if is_decoder else "encoder"
        self.layers = Stack.of(BartLayer(shape, is_decoder=is_decoder), shape.num_layers, label=label)
        self.layernorm_embedding = LayerNorm(shape.width) if kind.norms_embedding else None
        self.layer_norm = LayerNorm(shape.width) if kind.has_final_norm else None

    def positions(self, ids: Tensor) -> Tensor:
        """The embedded positions: a row of every sample where they are counted from an offset, else one row for all."""
        batch, num_tokens = ids.shape
        tape, offset = ids.tape, self.shape.kind.offset
        row = tape.tensor((num_tokens,), DType.INT64)
        if not offset:
            return self.embed_positions(row)
        places = tape.tensor((1 if self.is_decoder else batch, num_tokens), DType.INT64)
        return self.embed_positions(places)

    def embedded(self, words: Tensor, positions: Tensor) -> Tensor:
        """What the first layer gets."""
        norm = self.layernorm_embedding
        is_before = self.is_decoder and self.shape.kind.norms_words
        if norm is not None and is_before:
            words = norm(words)
        x = ops.add(words, positions)
        if norm is not None and not is_before:
            x = norm(x)
        return ops.dropout(x, self.shape.dropout, is_module=False)

    def forward(self, ids: Tensor, backend: AttentionBackend, states: Tensor | None = None) -> Tensor:
        with ids.tape.section("embedding" if states is None else "embedding.again"):
            words = ops.scale(self.embed_tokens(ids))
        return self.of_words(words, ids, backend, states)

    def of_words(self, words: Tensor, ids: Tensor, backend: AttentionBackend, states: Tensor | None = None) -> Tensor:
        """The stack behind the embedded ``words`` of ``ids``."""
        tape, name = ids.tape, self.layers.label
        with tape.section(f"{name}.positions"):
            positions = self.positions(ids)
            embedded = [self.embedded(words, positions)]
            mask = padding_mask(ids, ids if states is None else states, words.dtype, backend)
            own = None if states is None else causal_masks(words, backend, (None,)).get(None)
        x = self._through_layers(embedded, backend, own, mask, states)
        if self.layer_norm is not None:
            with tape.section(f"{name}.norm"):
                x = self.layer_norm(x)
        del words, positions  # local variables there too, which live until it returns
        return x

    def _through_layers(
        self,
        embedded: list[Tensor],
        backend: AttentionBackend,
        own: Tensor | None,
        padding: Tensor,
        states: Tensor | None,
    ) -> Tensor:
        """What is ``embedded``, and taken out of the list, through all layers. What they are given by position, the
        encoder's mask and the decoder's ``states``, is an input of each to checkpoints too; the decoder is given its
        mask of padding by name."""

        def encode(layer: BartLayer, hidden: Tensor, mask: Tensor) -> Tensor:
            return layer(hidden, Masks(backend, mask))

        def decode(layer: BartLayer, hidden: Tensor, seen: Tensor) -> Tensor:
            return layer(hidden, Masks(backend, own, padding), seen)

        if states is None:
            return self.layers.run_each(embedded.pop(), encode, padding)
        return self.layers.run_each(embedded.pop(), decode, states, sharing={0})


def padding_mask(ids: Tensor, keys: Tensor, dtype: DType, backend: AttentionBackend) -> Tensor:
    """``create_bidirectional_mask``: boolean, for eager attention in the hidden states' type."""
    shape = (ids.shape[0], 1, ids.shape[1], keys.shape[1])
    mask = ids.tape.tensor(shape, DType.BOOL)
    return ids.tape.tensor(shape, dtype) if backend.implementation == "eager" else mask


class BartModel(Module):
    """``BartModel``: both stacks, and the token table of both, which is theirs too where weights are tied."""

    def __init__(self, encoder: BartShape, decoder: BartShape, *, has_table: bool, ties_weights: bool) -> None:
        self.shared = Embedding(encoder.vocab_size, encoder.width) if has_table else None
        self.encoder = BartStack(encoder, is_decoder=False)
        self.decoder = BartStack(decoder, is_decoder=True)
        if self.shared is not None and ties_weights:
            self.encoder.embed_tokens.weight = self.decoder.embed_tokens.weight = self.shared.weight


class Bart(Model):
    """``BartForConditionalGeneration``."""

    EMBEDDINGS = "model.shared"
    attention_linears = ("q_proj", "k_proj", "v_proj", "out_proj")
    adds_to_logits = True
    narrows_loss = True

    def __init__(self, encoder: BartShape, decoder: BartShape, *, has_table: bool, ties_weights: bool) -> None:
        self.model = BartModel(encoder, decoder, has_table=has_table, ties_weights=ties_weights)
        self.lm_head = Linear(decoder.width, decoder.vocab_size)
        if ties_weights:
            self.lm_head.weight = self.model.decoder.embed_tokens.weight

    @property
    def buffer_bytes(self) -> int:
        """``final_logits_bias``, which is added to the logits: a number for each token."""
        return self.head.weight.shape[0] * self.buffer_dtype.num_bytes

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        require_bart_positions(self.model, batch)
        states = self.model.encoder(ids, backend)
        ids.tape.locals.append(states.detached())  # among the model's outputs
        answers = ids.tape.tensor(
            (batch.micro_batch, batch.target_tokens), ids.dtype
        )  # made of the labels, which are the batch's
        return self.model.decoder(answers, backend, states)


class BartOfTwoTables(Bart):
    EMBEDDINGS = "model.encoder.embed_tokens"


def require_bart_positions(model: BartModel, batch: Batch) -> None:
    """Raise InputError for more tokens than one of both stacks has positions for."""
    for stack, num_tokens, option in (
        (model.encoder, batch.num_tokens, "--seq-len"),
        (model.decoder, batch.target_tokens, "--target-len"),
    ):
        require_positions(num_tokens, stack.shape.num_positions, option=option)


def bart_shape(config: Config, part: str) -> BartShape:
    """The shape of the ``encoder`` or the ``decoder``."""
    vocab_size = config.integer("vocab_size")
    if part == "decoder":
        vocab_size = config.integer("decoder_vocab_size", vocab_size)
    return BartShape(
        kind=KINDS[config.model_type],
        width=config.integer("d_model"),
        num_layers=config.integer(f"{part}_layers"),
        num_heads=config.integer(f"{part}_attention_heads"),
        intermediate_size=config.integer(f"{part}_ffn_dim"),
        num_positions=config.integer("max_position_embeddings"),
        vocab_size=vocab_size,
        activation=config.text("activation_function"),
        dropout=config.number("dropout"),
        activation_dropout=config.number("activation_dropout"),
        scores=Scores(dropout=config.number("attention_dropout"), upcasts=False, casts_back=False),
    )


def build(config: Config) -> Bart:
    """The model with both stacks. Marian may have a token table for each (``share_encoder_decoder_embeddings``)."""
    has_table = config.boolean("share_encoder_decoder_embeddings", True)
    kind = Bart if has_table else BartOfTwoTables
    encoder, decoder = bart_shape(config, "encoder"), bart_shape(config, "decoder")
    return kind(encoder, decoder, has_table=has_table, ties_weights=config.boolean("tie_word_embeddings", True))
