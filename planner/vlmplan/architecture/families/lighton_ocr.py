"""LightOnOCR: a Pixtral tower, patches merged by a Linear, a projector and a Qwen3 decoder.

Source: transformers 5.23 ``models/lighton_ocr/modeling_lighton_ocr.py``. Against Mistral 3 the last layer's features
are taken, the projector has one activation for all and no biases, and parts have other names.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.image_text import TiledImageTextModel
from vlmplan.architecture.families.llava import scatter_features
from vlmplan.architecture.families.mistral3 import PatchMerger
from vlmplan.architecture.families.packed_patches import by_image
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.families.towers import vision_tower
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Linear, Module, RMSNorm
from vlmplan.architecture.tensor import Tensor

LAST_LAYER = -1


class Projector(Module):
    """``LightOnOcrMultiModalProjector``."""

    def __init__(self, config: Config, width: int) -> None:
        vision_width = config.section("vision_config").integer("hidden_size")
        self.norm = RMSNorm(vision_width)
        self.patch_merger = PatchMerger(vision_width, config.integer("spatial_merge_size"))
        self.linear_1 = Linear(vision_width, width)
        self.linear_2 = Linear(width, width)

    def forward(self, features: Tensor, num_images: int, num_tokens: int) -> Tensor:
        features = self.norm(features)
        features = self.patch_merger(features, num_images, num_tokens)
        hidden = self.linear_1(features)
        hidden = ops.gelu(hidden)
        return self.linear_2(hidden)


class LightOnModel(Module):
    """``LightOnOcrModel``."""

    def __init__(self, config: Config) -> None:
        language_model = text_decoder(config.section("text_config"))
        self.vision_encoder: Any = vision_tower(config.section("vision_config"), (LAST_LAYER,))
        self.vision_projection: Any = Projector(config, language_model.shape.hidden_size)
        self.language_model: Any = language_model

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        encoded = ids.tape.outputs.of_encoder()
        if pixels is not None:
            output = self.vision_encoder(pixels, batch, backend)
            with pixels.tape.section("projector"):
                (features,) = output.hidden_states
                _, num_patches, width = features.shape
                assert batch.image is not None
                num_tokens = batch.image.num_placeholder_tokens
                features = self.vision_projection(features.view(num_patches, width), batch.num_images, num_tokens)
                pieces = by_image(features, batch.num_images)
            encoded += [output, *pieces]
            embeddings = scatter_features(ids, embeddings, pieces)
            del output, features, pieces
        return self.language_model(embeddings, backend)


class LightOnOcr(TiledImageTextModel):
    """``LightOnOcrForConditionalGeneration``."""

    PARTS = {"model.vision_encoder": Part.VISION, "model.vision_projection": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        return (batch.num_images * batch.image.num_patches, self.model.vision_encoder.patch_numel)


def build(config: Config) -> LightOnOcr:
    """``LightOnOcrForConditionalGeneration``; the top level alone decides whether embedding and head are one weight."""
    return LightOnOcr(LightOnModel(config), ties_weights=config.boolean("tie_word_embeddings"))
