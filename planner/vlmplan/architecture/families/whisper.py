"""Whisper: an encoder that hears thirty seconds of sound, and a decoder that attends to it and writes what is said.

Source: transformers 5.23 ``models/whisper/modeling_whisper.py`` (``WhisperForConditionalGeneration``). ``layerdrop``
and SpecAugment, which writes zeros into the spectrogram, are not described: both are off in what is published.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, heads_together
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.audio import halved
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.bart import BartAttention, BartLayer, BartShape, Kind, Masks
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.families.omni_audio import Convolution
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.model import Batch, Input, Model, Part
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module, Stack, require_positions
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

KIND = Kind(norms_first=True, norms_embedding=False, has_final_norm=True, clamps=True)


class WhisperAttention(BartAttention):
    """Queries are scaled before attention, and queries, keys and values laid out head after head."""

    KEY_BIAS = False

    def forward(self, x: Tensor, states: Tensor, mask: Tensor | None, backend: AttentionBackend) -> Tensor:
        num_heads = self.shape.num_heads
        q = _by_heads(ops.scale(self.q_proj(x)), num_heads)
        k, v = _by_heads(self.k_proj(states), num_heads), _by_heads(self.v_proj(states), num_heads)
        out = attend(backend, q, k, v, is_causal=self.is_causal, mask=mask, scores=self.shape.scores)
        if num_heads > 1 and x.shape[1] > 1:
            out = heads_together(backend, q, k, out, has_mask=mask is not None)
        return self.out_proj(out)


def _by_heads(x: Tensor, num_heads: int) -> Tensor:
    """x (batch, tokens, width) copied as (batch, heads, tokens, head_dim), where that is another order."""
    batch, num_tokens, width = x.shape
    shape = (batch, num_heads, num_tokens, width // num_heads)
    return ops.copy(x, *shape) if num_heads > 1 and num_tokens > 1 else x.view(*shape)


class WhisperLayer(BartLayer):
    ATTENTION = WhisperAttention


class WhisperEncoder(Module):
    """``WhisperEncoder``: convolutions over the spectrogram, the second of which halves its frames."""

    def __init__(self, shape: BartShape, num_bins: int) -> None:
        self.shape, self.num_bins = shape, num_bins
        self.conv1 = Convolution(num_bins, shape.width, num_axes=1)
        self.conv2 = Convolution(shape.width, shape.width, num_axes=1)
        self.embed_positions = Embedding(shape.num_positions, shape.width)
        self.embed_positions.weight.is_constant = True
        self.layers = Stack.of(WhisperLayer(shape, is_decoder=False), shape.num_layers, label="encoder")
        self.layer_norm = LayerNorm(shape.width)

    def forward(self, spectrograms: Tensor, backend: AttentionBackend) -> Tensor:
        tape, width = spectrograms.tape, self.shape.width
        batch, _, num_frames = spectrograms.shape
        num_places = halved(num_frames)
        with tape.section("encoder.embedding"):
            frames = ops.gelu(self.conv1(spectrograms, (batch, width, num_frames)))
            frames = ops.gelu(self.conv2(frames, (batch, width, num_places)))
            places = tape.tensor((num_places,), DType.INT64)
            x = ops.add(frames.view(batch, num_places, width), self.embed_positions(places))
            embedded = [ops.dropout(x, self.shape.dropout, is_module=False)]
            del x
        x = self.layers.run(embedded.pop(), lambda layer, hidden: layer(hidden, Masks(backend, None)))
        with tape.section("encoder.norm"):
            x = self.layer_norm(x)
        del frames, places  # local variables there too, which live until it returns
        return x


class WhisperDecoder(Module):
    """``WhisperDecoder``. Its positions are rows that are taken out of a table as indices take them."""

    def __init__(self, shape: BartShape) -> None:
        self.shape = shape
        self.embed_tokens = Embedding(shape.vocab_size, shape.width)
        self.embed_positions = Positions(shape.num_positions, shape.width)
        self.layers = Stack.of(WhisperLayer(shape, is_decoder=True), shape.num_layers, label="decoder")
        self.layer_norm = LayerNorm(shape.width)

    def forward(self, ids: Tensor, states: Tensor, backend: AttentionBackend) -> Tensor:
        tape = ids.tape
        with tape.section("embedding"):
            words = self.embed_tokens(ids)
        with tape.section("decoder.positions"):
            places = tape.tensor(ids.shape, DType.INT64)
            positions = self.embed_positions(places)
            embedded = [ops.dropout(ops.add(words, positions), self.shape.dropout, is_module=False)]
            own = causal_masks(words, backend, (None,)).get(None)

        def decode(layer: BartLayer, hidden: Tensor, seen: Tensor) -> Tensor:
            return layer(hidden, Masks(backend, own), seen)

        x = self.layers.run_each(embedded.pop(), decode, states, sharing={0})
        with tape.section("decoder.norm"):
            x = self.layer_norm(x)
        del words, places, positions  # local variables there too, which live until it returns
        return x


class Positions(Embedding):
    """``WhisperPositionalEmbedding``."""

    def forward(self, ids: Tensor) -> Tensor:
        return take_rows(self.weight, ids, (*ids.shape, self.weight.shape[-1]))


class WhisperModel(Module):
    """``WhisperModel``."""

    def __init__(self, encoder: WhisperEncoder, decoder: WhisperDecoder) -> None:
        self.encoder, self.decoder = encoder, decoder


class Whisper(Model):
    """``WhisperForConditionalGeneration``."""

    EMBEDDINGS, HEAD = "model.decoder.embed_tokens", "proj_out"
    PARTS = {"model.encoder": Part.VISION}
    attention_linears = ("q_proj", "k_proj", "v_proj", "out_proj")
    narrows_loss = True

    def __init__(self, config: Config) -> None:
        decoder = whisper_shape(config, "decoder")
        encoder = WhisperEncoder(whisper_shape(config, "encoder"), config.integer("num_mel_bins"))
        self.model = WhisperModel(encoder, WhisperDecoder(decoder))
        self.proj_out = Linear(decoder.width, decoder.vocab_size)
        if config.boolean("tie_word_embeddings", True):
            self.tie_weights()

    def id_inputs(self, batch: Batch) -> Sequence[Input]:
        """What is said; there is no prompt."""
        return [((batch.micro_batch, batch.target_tokens), DType.INT64)]

    def spectrogram_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.audio is not None
        return (batch.num_audios, self.model.encoder.num_bins, batch.audio.num_padded_frames)

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        require_positions(batch.target_tokens, self.model.decoder.shape.num_positions, option="--target-len")
        assert ids.tape.spectrograms is not None
        states = self.model.encoder(ids.tape.spectrograms, backend)
        ids.tape.locals.append(states.detached())  # among the model's outputs
        answers = ids.tape.tensor(ids.shape, ids.dtype)  # made of the labels, which are the batch's
        return self.model.decoder(answers, states, backend)


def whisper_shape(config: Config, part: str) -> BartShape:
    """The shape of the ``encoder`` or the ``decoder``."""
    return BartShape(
        kind=KIND,
        width=config.integer("d_model"),
        num_layers=config.integer(f"{part}_layers"),
        num_heads=config.integer(f"{part}_attention_heads"),
        intermediate_size=config.integer(f"{part}_ffn_dim"),
        num_positions=config.integer("max_source_positions" if part == "encoder" else "max_target_positions"),
        vocab_size=config.integer("vocab_size"),
        activation=config.text("activation_function"),
        dropout=config.number("dropout"),
        activation_dropout=config.number("activation_dropout"),
        scores=Scores(dropout=config.number("attention_dropout"), upcasts=False, casts_back=False, are_in_order=True),
    )


def build(config: Config) -> Whisper:
    return Whisper(config)
