"""Ovis 2: images become probabilities over a visual vocabulary, whose embeddings they mix, and a Qwen decoder.

Source: transformers 5.23 ``models/ovis2/modeling_ovis2.py``.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.image_text import TiledImageTextModel
from vlmplan.architecture.families.ovis_vision import OvisVision
from vlmplan.architecture.families.packed_patches import scattered
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.images import ImageShape
from vlmplan.architecture.indexing import put_rows
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Embedding, Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class VisualEmbeddingTable(Embedding):
    """``Ovis2VisualEmbeddingTable``: looked up by number, or mixed by probability."""

    def forward(self, ids: Tensor) -> Tensor:
        if not ids.dtype.is_floating:
            return super().forward(ids)
        probabilities = ids
        return ops.linear(probabilities, self.weight, is_transposed=True)


def indicator_counts(image: ImageShape) -> tuple[int, ...]:
    """How often each kind of visual indicator stands in the tokens of one image; kinds that do not occur are left out.

    Start, grid and end; one between neighbours in a row of tiles, one between rows. Source: ``Ovis2Processor``.
    """
    columns, rows = image.num_tile_columns, image.num_tile_rows
    between_columns, between_rows = rows * (columns - 1), rows - 1
    return (1, 1, *(count for count in (between_columns, between_rows) if count), 1)


class Ovis2Model(Module):
    """``Ovis2Model``: ``vision_tower``, ``language_model``, ``visual_embeddings_table``."""

    def __init__(self, config: Config) -> None:
        vision = config.section("vision_config")
        self.vision_tower = OvisVision(vision)
        self.language_model: Any = text_decoder(config.section("text_config"))
        self.visual_embeddings_table = VisualEmbeddingTable(vision.integer("vocab_size"), config.integer("hidden_size"))

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        if pixels is None:
            return self.language_model(embeddings, backend)
        encoded = ids.tape.outputs.of_encoder()
        encoded += self.image_features(pixels, batch, backend)
        with ids.tape.section("scatter"):
            embeddings = self.filled_in(ids, embeddings, encoded, batch)
        return self.language_model(embeddings, backend)

    def image_features(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor, Tensor]:
        """(squares of patches, image features, embeddings of the visual indicators)."""
        squares, probabilities = self.vision_tower(pixels, batch, backend)
        tape, num_indicators = pixels.tape, self.vision_tower.num_indicators
        with tape.section("projector"):
            num_tiles, num_tokens, _ = probabilities.shape
            padding = tape.tensor((num_tiles, num_tokens, num_indicators), probabilities.dtype)
            words = (num_tiles, num_tokens, self.vision_tower.vocab_size)
            features = ops.concatenate([probabilities, padding], words)
            features = self.visual_embeddings_table(features)
            tape.outputs.keep_features(features)
            return squares, features, self.visual_embeddings_table(tape.tensor((num_indicators,), DType.INT64))

    def filled_in(self, ids: Tensor, embeddings: Tensor, encoded: Sequence[Tensor], batch: Batch) -> Tensor:
        """Image features, then visual indicators kind by kind, in the place of their tokens."""
        tape = ids.tape
        _, features, indicators = encoded
        embeddings = scattered(ids, embeddings, features)
        width = embeddings.shape[-1]
        assert batch.image is not None
        for count in indicator_counts(batch.image):
            mask = tape.tensor(ids.shape, DType.BOOL)
            row = ops.part(indicators, width)
            embeddings = put_rows(embeddings, mask, row, (count * batch.num_images, width))
        return embeddings


class Ovis2(TiledImageTextModel):
    """``Ovis2ForConditionalGeneration``."""

    PARTS = {"model.vision_tower": Part.VISION, "model.visual_embeddings_table": Part.PROJECTOR}


def build(config: Config) -> Ovis2:
    """``Ovis2ForConditionalGeneration``; the top level alone decides whether embedding and head are one weight, and how
    many words the head has.
    """
    ties_weights, num_words = config.boolean("tie_word_embeddings"), config.integer("vocab_size")
    return Ovis2(Ovis2Model(config), ties_weights=ties_weights, vocab_size=num_words)
