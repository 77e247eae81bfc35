"""LFM2-VL: a SigLIP 2 tower, a pixel unshuffle with an MLP of each image by itself, an LFM2 decoder.

Source: transformers 5.23 ``models/lfm2_vl/modeling_lfm2_vl.py``.
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
        self.language_model: Any = text_decoder(config.section("text_config"))

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        tape = ids.tape
        embeddings = self.language_model.embed(ids)
        held = tape.outputs.of_encoder()  # what the tower returns and the features of each image
        if pixels is not None:
            assert batch.image is not None
            held.append(self.vision_tower(pixels, batch.image, backend))
            with tape.section("projector"):
                held += self._features(held[0], batch.image)
            with tape.section("scatter"):
                features = ops.concatenate(held[1:], (_num_tokens(held[1:]), held[1].shape[-1]))
                tape.outputs.keep_features(features)
                embeddings = ops.masked_scatter(embeddings, tape.tensor(ids.shape, DType.BOOL), features)
                del features
        return self.language_model(embeddings, backend)

    def _features(self, last: Tensor, image: ImageShape) -> list[Tensor]:
        """The features of each sequence without what fills it up: (tokens, width of the decoder)."""
        num_sequences, num_patches, width = last.shape
        features: list[Tensor] = []
        for index in range(num_sequences):
            is_whole = image.num_unpadded_rows and index % image.num_vision_sequences == image.num_vision_sequences - 1
            whole = image.num_unpadded_rows * image.num_unpadded_columns
            count = whole if is_whole else image.num_patches_per_sequence
            one = ops.part(last, num_patches, width)
            features.append(self.multi_modal_projector(ops.part(one, count, width)))
        return features


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
