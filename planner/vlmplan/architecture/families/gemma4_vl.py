"""Gemma 4 with its towers: pooled features of each image, a norm and a Linear, and a Gemma 4 decoder.

Source: transformers 5.23 ``models/gemma4/modeling_gemma4.py``, ``Gemma4ForConditionalGeneration``.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.containers import call_container
from vlmplan.architecture.families.gemma import Masks
from vlmplan.architecture.families.gemma4 import Gemma4Decoder, decoder
from vlmplan.architecture.families.gemma4_audio import NUM_BINS, Gemma4Audio
from vlmplan.architecture.families.gemma4_experts import Gemma4Norm
from vlmplan.architecture.families.gemma4_vision import Gemma4Vision
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.families.text import ties_word_embeddings
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.model import Batch, Input, Part
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.read_weights import ReadWeight
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class Embedder(Module):
    """``Gemma4MultimodalEmbedder``."""

    def __init__(self, width: int, text_width: int) -> None:
        self.embedding_projection = Linear(width, text_width)
        self.embedding_pre_projection_norm = Gemma4Norm(None)

    def forward(self, features: Tensor) -> Tensor:
        return self.embedding_projection(self.embedding_pre_projection_norm(features))


class Gemma4Model(Module):
    """``Gemma4Model``."""

    def __init__(self, config: Config, language_model: Gemma4Decoder) -> None:
        self.language_model: Gemma4Decoder
        self._read: list[ReadWeight] = []
        vision, audio = (config.section(key) if config.get(key) else None for key in ("vision_config", "audio_config"))
        self.add_modules(language_model, vision, audio)
        sees_blocks = config.section("text_config").get("use_bidirectional_attention") == "vision"
        self.block_windows = self.windows_of_blocks() if sees_blocks else ()

    def add_modules(self, language_model: Gemma4Decoder, vision: Config | None, audio: Config | None) -> None:
        """Set the modules in the order of transformers; no module for a section that the configuration leaves out."""
        text_width = language_model.shape.hidden_size
        self.audio_tower: Any = None
        self.vision_tower: Any = None if vision is None else Gemma4Vision(vision)
        self.language_model = language_model
        if audio is not None:
            self.audio_tower = Gemma4Audio(audio)
        if vision is not None:
            self.embed_vision: Any = Embedder(vision.integer("hidden_size"), text_width)
        if audio is not None:
            self.embed_audio = Embedder(self.audio_tower.output_width, text_width)

    def windows_of_blocks(self) -> tuple[int | None, ...]:
        """Windows (None: layers without one) of the layers in which the tokens of an image see each other."""
        return (self.language_model.shape.window,)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        run = partial(self._forward, ids, pixels, batch, backend)
        if not ids.tape.fetches_weights or not self.language_model.shape.per_layer_width:
            return run()
        return call_container(ids.tape, self._read_weight(), run, has_input_grad=False)

    def _forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape, language_model = ids.tape, self.language_model
        text_ids = tape.tensor(ids.shape, DType.INT64)
        embeddings = language_model.embed(text_ids)
        # What lives until this function returns: ids and embeddings without images, each layer's part of the second
        # embedding, and what the tower returned.
        held: list[Tensor] = [text_ids]
        per_layer = language_model.embed_per_layer(text_ids)
        if per_layer is not None:
            held += [tape.tensor(embeddings.shape, embeddings.dtype), per_layer]
        if pixels is not None:
            # The output object has nothing of videos.
            is_clip = batch.image is not None and batch.image.is_clip
            encoded = held if is_clip else tape.outputs.of_encoder()
            encoded += self.image_features(pixels, batch, backend)
            with tape.section("scatter"):
                features = ops.copy(encoded[-1])
                held.append(features)
                if not is_clip:
                    tape.outputs.keep_features(features)
                compare_sizes(features)
                embeddings = ops.masked_scatter(embeddings, tape.tensor(ids.shape, DType.BOOL), features)
                del features
        if tape.spectrograms is not None:
            embeddings = self.with_sounds(ids, embeddings, batch, held)
        with tape.section("masks"):
            masks = self._masks(embeddings, backend)
        return language_model(embeddings, [] if per_layer is None else [per_layer], backend, masks)

    @property
    def audio_width(self) -> int:
        """Values of one frame of a sound as the processor hands it over."""
        return NUM_BINS

    def with_sounds(self, ids: Tensor, embeddings: Tensor, batch: Batch, held: list[Tensor]) -> Tensor:
        """``embeddings`` with features of sounds in the place of their tokens; ``held`` gets what lives on. Of the
        tower's result the output object has nothing from 5.24 on: it is kept under another name."""
        tape, spectrograms, audio = ids.tape, ids.tape.spectrograms, batch.audio
        assert spectrograms is not None
        assert audio is not None
        encoded = self.encoded_sounds(spectrograms)
        with tape.section("audio.features"):
            features = self.embed_audio(encoded)
            held += [encoded, features]
            places = tape.tensor((2, batch.num_audios * audio.num_feature_tokens), DType.INT64)
            features = take_rows(features, places, (places.shape[1], features.shape[-1]))
            held.append(features)
            tape.outputs.keep_features(features)
            compare_sizes(features)
            return ops.masked_scatter(embeddings, tape.tensor(ids.shape, DType.BOOL), features)

    def encoded_sounds(self, spectrograms: Tensor) -> Tensor:
        """What ``embed_audio`` gets."""
        return self.audio_tower(spectrograms)

    def image_features(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> list[Tensor]:
        """``get_image_features``: what its result holds, of which the features of all images are the last."""
        encoded = self.vision_tower(pixels, batch, backend)
        with pixels.tape.section("projector"):
            return [encoded, self.embed_vision(encoded)]

    def _masks(self, x: Tensor, backend: AttentionBackend) -> Masks:
        """What ``causal_masks`` makes; but sdpa skips none in which blocks of tokens see each other."""
        blocks = self.block_windows if backend.implementation == "sdpa" else ()
        windows = [window for window in (None, self.language_model.shape.window) if window not in blocks]
        batch_size, num_tokens, _ = x.shape
        shape = (batch_size, 1, num_tokens, num_tokens)
        return causal_masks(x, backend, windows) | {window: x.tape.tensor(shape, DType.BOOL) for window in blocks}

    def _read_weight(self) -> "ReadWeight":
        """One object for all runs, so that their traces say the same; no child, whose weight would be there twice."""
        owner = self.language_model.embed_tokens
        if not self._read or self._read[0].weight is not owner.weight:
            self._read[:] = [ReadWeight(owner)]
        return self._read[0]


def compare_sizes(features: Tensor) -> None:
    """``inputs_embeds[image_mask].numel()``: three numbers for the place of each element, and the elements."""
    tape = features.tape
    places = tape.tensor((features.numel, 3), DType.INT64)
    taken = tape.tensor(features.shape, features.dtype)
    tape.move(places.num_bytes + 2 * taken.num_bytes)


class Gemma4(ImageTextModel):
    """``Gemma4ForConditionalGeneration``."""

    PARTS = {
        "model.vision_tower": Part.VISION,
        "model.audio_tower": Part.VISION,
        "model.embed_vision": Part.PROJECTOR,
        "model.embed_audio": Part.PROJECTOR,
    }

    def __init__(self, model: Gemma4Model, config: Config) -> None:
        text = config.section("text_config")
        super().__init__(model, ties_weights=ties_word_embeddings(config, text))
        self.caps_logits = text.get("final_logit_softcapping") is not None

    @property
    def patch_numel(self) -> int:
        """Values of one patch as the processor hands it over."""
        return self.model.vision_tower.patch_numel

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        """(images, or frames of all videos, patches, values)."""
        assert batch.image is not None
        num_patches = batch.image.num_patches_per_sequence + batch.image.num_padding_patches
        return (batch.num_images * batch.image.num_vision_sequences, num_patches, self.patch_numel)

    def more_inputs(self, batch: Batch) -> Sequence[Input]:
        """``image_position_ids`` or ``video_position_ids``, ``mm_token_type_ids``, and of videos
        ``num_frames_per_video``."""
        assert batch.image is not None
        places = (*self.pixel_shape(batch)[:-1], 2)
        made: list[Input] = [(places, DType.INT64), ((batch.micro_batch, batch.num_tokens), DType.INT64)]
        return [*made, ((batch.num_images,), DType.INT64)] if batch.image.is_clip else made

    def spectrogram_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.audio is not None
        return (batch.num_audios, batch.audio.num_padded_frames, self.model.audio_width)

    def more_audio_inputs(self, batch: Batch) -> Sequence[Input]:
        """``input_features_mask``, and ``mm_token_type_ids`` where no image brings them."""
        assert batch.audio is not None
        mask: Input = ((batch.num_audios, batch.audio.num_padded_frames), DType.BOOL)
        types: Input = ((batch.micro_batch, batch.num_tokens), DType.INT64)
        return [mask] if batch.num_images else [mask, types]


def build(config: Config) -> Gemma4:
    """``Gemma4ForConditionalGeneration``."""
    return Gemma4(Gemma4Model(config, decoder(config.section("text_config"))), config)
