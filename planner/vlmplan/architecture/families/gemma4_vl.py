"""Gemma 4 with its towers: pooled features of each image, a norm and a Linear, and a Gemma 4 decoder.

Source: transformers 5.23 ``models/gemma4/modeling_gemma4.py``, ``Gemma4ForConditionalGeneration``.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma4 import Gemma4Decoder, decoder
from vlmplan.architecture.families.gemma4_audio import Gemma4Audio
from vlmplan.architecture.families.gemma4_experts import Gemma4Norm
from vlmplan.architecture.families.gemma4_vision import Gemma4Vision
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.families.text import ties_word_embeddings
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.read_weights import ReadWeight
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class Embedder(Module):
    """``Gemma4MultimodalEmbedder``."""

    def __init__(self, width: int, text_width: int) -> None:
        super().__init__()
        self.embedding_projection = Linear(width, text_width)
        self.embedding_pre_projection_norm = Gemma4Norm(None)

    def forward(self, features: Tensor) -> Tensor:
        return self.embedding_projection(self.embedding_pre_projection_norm(features))


class Gemma4Model(Module):
    """``Gemma4Model``."""

    def __init__(self, config: Config, language_model: Gemma4Decoder) -> None:
        super().__init__()
        vision = config.section("vision_config") if config.get("vision_config") else None
        text_width = language_model.shape.hidden_size
        self.vision_tower: Any = None if vision is None else Gemma4Vision(vision)
        self.language_model = language_model
        self._read: list[ReadWeight] = []
        audio = config.section("audio_config") if config.get("audio_config") else None
        if audio is not None:
            self.audio_tower = Gemma4Audio(audio)
        if vision is not None:
            self.embed_vision = Embedder(vision.integer("hidden_size"), text_width)
        if audio is not None:
            self.embed_audio = Embedder(self.audio_tower.output_width, text_width)
        self.sees_blocks = config.section("text_config").get("use_bidirectional_attention") == "vision"

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape, language_model = ids.tape, self.language_model
        text_ids = tape.tensor(ids.shape, DType.INT64)
        embeddings = language_model.embed(text_ids)
        # What lives until this function returns: ids and embeddings without images, each layer's part of the second
        # embedding, and what the tower returned.
        held: list[Tensor] = [text_ids]
        read = self._read_weight() if tape.follows_weights and language_model.shape.per_layer_width else None
        if read is not None:
            tape.fetch(read)
        per_layer = language_model.embed_per_layer(text_ids)
        if per_layer is not None:
            held += [tape.tensor(embeddings.shape, embeddings.dtype), per_layer]
        if pixels is not None:
            held.append(self.vision_tower(pixels, batch, backend))
            with tape.section("projector"):
                held.append(self.embed_vision(held[-1]))
            with tape.section("scatter"):
                features = ops.copy(held[-1])
                held.append(features)
                tape.outputs.append(features.detached())
                _compare_sizes(features)
                embeddings = ops.masked_scatter(embeddings, tape.tensor(ids.shape, DType.BOOL), features)
                del features
        with tape.section("masks"):
            masks = causal_masks(embeddings, backend, (None, language_model.shape.window))
            if self.sees_blocks and backend.implementation == "sdpa":
                batch_size, num_tokens = ids.shape
                mask = tape.tensor((batch_size, 1, num_tokens, num_tokens), DType.BOOL)
                masks = {**masks, language_model.shape.window: mask}
                del mask
        hidden = language_model(embeddings, [] if per_layer is None else [per_layer], backend, masks)
        if read is not None:
            tape.release(read)
        return hidden

    def _read_weight(self) -> "ReadWeight":
        """One object for all runs, so that their traces say the same; no child, whose weight would be there twice."""
        owner = self.language_model.embed_tokens
        if not self._read or self._read[0].weight is not owner.weight:
            self._read[:] = [ReadWeight(owner)]
        return self._read[0]


def _compare_sizes(features: Tensor) -> None:
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

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        num_patches = batch.image.num_patches + batch.image.num_padding_patches
        return (batch.num_images, num_patches, self.model.vision_tower.patch_numel)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``image_position_ids`` and ``mm_token_type_ids``."""
        places = (*self.pixel_shape(batch)[:-1], 2)
        return [(places, DType.INT64), ((batch.micro_batch, batch.num_tokens), DType.INT64)]


def build(config: Config) -> Gemma4:
    """``Gemma4ForConditionalGeneration``."""
    text = config.section("text_config")
    model = Gemma4(Gemma4Model(config, decoder(text)), ties_weights=ties_word_embeddings(config, text))
    model.caps_logits = text.get("final_logit_softcapping") is not None
    return model
