"""LFM2-VL: a SigLIP 2 tower, a pixel unshuffle with an MLP, an LFM2 decoder.

Source: transformers 5.23 and 5.24 ``models/lfm2_vl/modeling_lfm2_vl.py``: before 5.24 each image is projected by
itself, then all at once, with what fills them up.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.lfm2 import Lfm2
from vlmplan.architecture.families.siglip2_vision import Siglip2Vision
from vlmplan.architecture.families.text import text_decoder, ties_word_embeddings
from vlmplan.architecture.images.shape import ImageShape
from vlmplan.architecture.indexing import take_rows
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

TOWER = "siglip2_vision_model"


class Projector(Module):
    """``Lfm2VlMultiModalProjector``: squares of ``factor`` patches a side become one token."""

    def __init__(self, config: Config) -> None:
        self.factor = config.integer("downsample_factor")
        width = config.section("vision_config").integer("hidden_size") * self.factor**2
        inner, bias = config.integer("projector_hidden_size"), config.boolean("projector_bias")
        self.layer_norm = LayerNorm(width) if config.boolean("projector_use_layernorm") else None
        self.linear_1 = Linear(width, inner, bias=bias)
        self.linear_2 = Linear(inner, config.section("text_config").integer("hidden_size"), bias=bias)
        self.act = ops.activation_module(config.text("projector_hidden_act"))

    def forward(self, x: Tensor) -> Tensor:
        """x (patches, width) of one image to (tokens, width of the decoder)."""
        num_patches, width = x.shape
        x = ops.resample(x, num_patches // self.factor**2, width * self.factor**2)
        if self.layer_norm is None:
            x = ops.copy(x)
        else:
            with x.tape.charged_to(Kind.TEMPORARY):
                in_order = x.tape.tensor(x.shape, x.dtype)  # rows and columns are swapped
            x = self.layer_norm(x)
            del in_order
        return self._projected(x)

    def of_grid(self, x: Tensor) -> Tensor:
        """The same of x (rows of a square, columns of all squares, width)."""
        rows, columns, width = x.shape
        x = ops.copy(x, columns // self.factor, rows * self.factor * width)
        return self._projected(x if self.layer_norm is None else self.layer_norm(x))

    def _projected(self, x: Tensor) -> Tensor:
        x = self.linear_1(x)
        x = self.act(x)
        return self.linear_2(x)


class Lfm2VlModel(Module):
    """``Lfm2VlModel``."""

    def __init__(self, config: Config) -> None:
        vision = config.section("vision_config")
        if vision.model_type != TOWER:
            raise not_allowed(CONFIG, "vision_config.model_type", vision.model_type, TOWER)
        self.vision_tower = Siglip2Vision(vision)
        self.multi_modal_projector = Projector(config)
        self.features = self._of_all if config.release.projects_images_together else self._of_each
        self.language_model: Any = text_decoder(config.section("text_config"))

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = ids.tape
        embeddings = self.language_model.embed(ids)
        held = tape.outputs.of_encoder()  # what the tower returns and the features of each image
        if pixels is not None:
            assert batch.image is not None
            held.append(self.vision_tower(pixels, batch.image, backend))
            with tape.section("projector"):
                held += self.features(held[0], batch.image)
            with tape.section("scatter"):
                features = ops.concatenate(held[1:], (_num_tokens(held[1:]), held[1].shape[-1]))
                tape.outputs.keep_features(features)
                embeddings = ops.masked_scatter(embeddings, tape.tensor(ids.shape, DType.BOOL), features)
                del features
        return self.language_model(embeddings, backend)

    def _of_each(self, last: Tensor, image: ImageShape) -> list[Tensor]:
        """The features of each sequence without what fills it up: (tokens, width of the decoder)."""
        num_sequences, num_patches, width = last.shape
        features: list[Tensor] = []
        for count in _patches_of_sequences(image, num_sequences):
            one = ops.part(last, num_patches, width)
            features.append(self.multi_modal_projector(ops.part(one, count, width)))
        return features

    def _of_all(self, last: Tensor, image: ImageShape) -> list[Tensor]:
        """The same as views of the features of all, from which those of what fills up are taken out."""
        tape, (num_sequences, num_patches, width) = last.tape, last.shape
        factor = self.multi_modal_projector.factor
        num_squares = num_sequences * (num_patches // factor**2)
        grid = (factor, num_squares * factor)
        sides = [tape.tensor((num_squares, factor), DType.INT64) for _ in ("rows", "columns")]
        places, is_token = tape.tensor(grid, DType.INT64), tape.tensor((num_squares,), DType.BOOL)
        picked = take_rows(last, places, (*grid, width))
        features = self.multi_modal_projector.of_grid(picked)
        counts = [count // factor**2 for count in _patches_of_sequences(image, num_sequences)]
        features = take_rows(features, is_token, (sum(counts), features.shape[-1]))
        del sides, places, is_token, picked
        return ops.split(features, *((count, features.shape[-1]) for count in counts))


def _patches_of_sequences(image: ImageShape, num_sequences: int) -> list[int]:
    """Of each sequence, without what fills it up: the last of an image may show all of it, smaller than a tile."""
    whole = image.num_unpadded_rows * image.num_unpadded_columns
    of_image = [image.num_patches_per_sequence] * image.num_vision_sequences
    of_image[-1] = whole or of_image[-1]
    return of_image * (num_sequences // len(of_image))


def _num_tokens(features: Sequence[Tensor]) -> int:
    return sum(one.shape[0] for one in features)


class Lfm2Vl(ImageTextModel):
    """``Lfm2VlForConditionalGeneration``."""

    PARTS = {"model.vision_tower": Part.VISION, "model.multi_modal_projector": Part.PROJECTOR}
    attention_linears = Lfm2.attention_linears

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        image = batch.image
        assert image is not None
        num_patches = image.num_patches_per_sequence + image.num_padding_patches
        num_sequences = batch.num_images * image.num_vision_sequences
        return (num_sequences, num_patches, self.model.vision_tower.embeddings.patch_numel)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``pixel_attention_mask`` and ``spatial_shapes``."""
        num_sequences, num_patches, _ = self.pixel_shape(batch)
        return [((num_sequences, num_patches), DType.INT32), ((num_sequences, 2), DType.INT64)]


def build(config: Config) -> Lfm2Vl:
    """``Lfm2VlForConditionalGeneration``."""
    tied = ties_word_embeddings(config, config.section("text_config"))
    return Lfm2Vl(Lfm2VlModel(config), ties_weights=config.boolean("tie_embedding", tied))
