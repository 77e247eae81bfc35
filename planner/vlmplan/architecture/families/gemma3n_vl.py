"""Gemma 3n with its towers: every token passes both embedders, image features the vision embedder once more.

Source: transformers 5.23 ``models/gemma3n/modeling_gemma3n.py``, ``Gemma3nForConditionalGeneration``.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma3n import Gemma3nDecoder, decoder
from vlmplan.architecture.families.gemma3n_audio import Gemma3nAudio
from vlmplan.architecture.families.gemma4_experts import Gemma4Norm
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.mobilenet_v5 import CHANNELS, MobileNetV5
from vlmplan.architecture.families.text import ties_word_embeddings
from vlmplan.architecture.model import Batch, Input, Part
from vlmplan.architecture.modules import Embedding, Linear, Module
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType


class Embedder(Module):
    """``Gemma3nMultimodalEmbedder``: of ids of its own (hard), or of features (soft)."""

    def __init__(self, config: Config, text_width: int) -> None:
        width = config.integer("hidden_size")
        self.embedding = Embedding(config.integer("vocab_size"), width)
        self.hard_embedding_norm = Gemma4Norm(width)
        self.soft_embedding_norm = Gemma4Norm(width)
        self.embedding_projection = Linear(width, text_width)
        self.embedding_post_projection_norm = Gemma4Norm(None)

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings of ids, those of other tokens replaced."""
        own = ids.tape.tensor(ids.shape, DType.INT64)  # less the offset
        hard = self.embedding(own)
        del own
        normed = self.hard_embedding_norm(hard)
        projected = self.embedding_projection(normed)
        return self.embedding_post_projection_norm(projected)

    def embed_features(self, features: Tensor) -> Tensor:
        """Embeddings of features (images, tokens, width), which lie channels first: for several images the product
        copies them."""
        normed = self.soft_embedding_norm(features)
        projected = self.embedding_projection(ops.copy(normed) if features.shape[0] > 1 else normed)
        return self.embedding_post_projection_norm(projected)


class Gemma3nModel(Module):
    """``Gemma3nModel``."""

    def __init__(self, config: Config, language_model: Gemma3nDecoder) -> None:
        vision, audio = config.section("vision_config"), config.section("audio_config")
        text_width = language_model.shape.hidden_size
        self.vision_tower = MobileNetV5(vision)
        self.language_model = language_model
        self.audio_tower = Gemma3nAudio(audio)
        self.embed_vision = Embedder(vision, text_width)
        self.embed_audio = Embedder(audio, text_width)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape, language_model = ids.tape, self.language_model
        embeddings = language_model.embed(ids)
        per_layer = language_model.embed_per_layer(ids)
        # What lives until this function returns: masks, ids and embeddings of both kinds, each layer's part of the
        # second embedding, and what the tower returned.
        held: list[Tensor] = [per_layer]
        for name, embedder in (("embed_vision", self.embed_vision), ("embed_audio", self.embed_audio)):
            with tape.section(name):
                mask = tape.tensor(ids.shape, DType.BOOL)
                own_ids = tape.tensor(ids.shape, DType.INT64)
                hard = embedder(own_ids)
                embeddings = ops.where(mask, hard, embeddings)
                held += [mask, own_ids, hard]
                del mask, own_ids, hard
        encoded = tape.outputs.of_encoder()
        if pixels is not None:
            features = self.vision_tower(pixels, batch)
            with tape.section("projector"):
                num_images, rows, columns, width = features.shape
                features = _scaled_in_place(features).view(num_images, rows * columns, width)
                encoded.append(features)
                features = self.embed_vision.embed_features(features)
                encoded.append(features)
                tape.outputs.keep_features(features)
            with tape.section("scatter"):
                is_image = tape.tensor(ids.shape, DType.BOOL)
                embeddings = ops.masked_scatter(embeddings, is_image, features)
                held.append(is_image)
                del is_image, features
        if tape.spectrograms is not None:
            embeddings = self.with_sounds(ids, embeddings, batch, held, encoded)
        # With ``token_type_ids``, which come with images and sounds, the mask of padding is passed on too.
        gets_mask = backend.gets_mask or pixels is not None or tape.spectrograms is not None
        return language_model(embeddings, [per_layer], replace(backend, gets_mask=gets_mask))

    def with_sounds(
        self, ids: Tensor, embeddings: Tensor, batch: Batch, held: list[Tensor], encoded: list[Any]
    ) -> Tensor:
        """``embeddings`` with features of sounds in the place of their tokens, filled up with what stands for padding;
        ``held`` gets what lives on, ``encoded`` what the tower made and its features."""
        tape, spectrograms, audio = ids.tape, ids.tape.spectrograms, batch.audio
        assert spectrograms is not None
        assert audio is not None
        heard = self.audio_tower(spectrograms)
        with tape.section("audio.features"):
            features = self.embed_audio.embed_features(heard)
            encoded += [heard, features]
            num_sounds, num_made, width = features.shape
            if num_made > audio.num_feature_tokens:
                raise InputError(
                    f"config.json: audio_soft_tokens_per_image is {audio.num_feature_tokens}, but the audio tower "
                    f"makes {num_made} features of a sound"
                )
            padding = self.embed_audio(tape.tensor((1, 1), DType.INT64))
            mask = tape.tensor((num_sounds, num_made, 1), DType.BOOL)
            features = ops.where(mask, _expanded(padding, features.shape), features)
            more = _expanded(padding, (num_sounds, audio.num_feature_tokens - num_made, width))
            features = ops.concatenate([features, more], (num_sounds, audio.num_feature_tokens, width))
            is_sound = tape.tensor(ids.shape, DType.BOOL)
            held += [padding, features, is_sound]
            tape.outputs.keep_features(features)
            return ops.masked_scatter(embeddings, is_sound, features)


def _expanded(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x.expand(shape)``: a view, whose gradient is summed."""
    return Tensor(x.storage, shape, x.dtype, x.tape.node((x,), ops.summed_backward, meta=x.shape))


def _scaled_in_place(x: Tensor) -> Tensor:
    """``x *= number`` where x is a view of a result, made anew behind it.

    Its gradient is put into zeros, copied, and the product of another copy written over it (``CopySlices``).
    """
    node = x.tape.node((x,), _scaled_in_place_backward)
    x.tape.move(2 * x.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def _scaled_in_place_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    tape = g.tape
    restored = tape.tensor(g.shape, g.dtype)
    grads.clear()
    del g
    whole = tape.tensor(restored.shape, restored.dtype)
    part = tape.tensor(restored.shape, restored.dtype)
    product = tape.tensor(restored.shape, restored.dtype)
    tape.move(10 * whole.num_bytes, num_kernels=5)
    del restored, part, product
    return (whole,)


class Gemma3n(ImageTextModel):
    """``Gemma3nForConditionalGeneration``."""

    PARTS = {
        "model.vision_tower": Part.VISION,
        "model.audio_tower": Part.VISION,
        "model.embed_vision": Part.PROJECTOR,
        "model.embed_audio": Part.PROJECTOR,
    }

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        return (batch.num_images, batch.image.resized_height, batch.image.resized_width, CHANNELS)

    def more_inputs(self, batch: Batch) -> Sequence[Input]:
        """``token_type_ids``."""
        return [((batch.micro_batch, batch.num_tokens), DType.INT64)]

    def spectrogram_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.audio is not None
        return (batch.num_audios, batch.audio.num_padded_frames, self.model.audio_tower.num_bins)

    def more_audio_inputs(self, batch: Batch) -> Sequence[Input]:
        """``input_features_mask``, and ``token_type_ids`` where no image brings them."""
        assert batch.audio is not None
        mask: Input = ((batch.num_audios, batch.audio.num_padded_frames), DType.BOOL)
        types: Input = ((batch.micro_batch, batch.num_tokens), DType.INT64)
        return [mask] if batch.num_images else [mask, types]


def build(config: Config) -> Gemma3n:
    """``Gemma3nForConditionalGeneration``."""
    text = config.section("text_config")
    model = Gemma3n(Gemma3nModel(config, decoder(text)), ties_weights=ties_word_embeddings(config, text))
    model.caps_logits = text.get("final_logit_softcapping") is not None
    return model
