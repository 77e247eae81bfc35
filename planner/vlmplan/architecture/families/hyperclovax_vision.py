"""HyperCLOVA X Vision: Qwen2.5-VL's vision encoder, a Linear, and a HyperCLOVA X whose tokens have one position each.

Source: transformers 5.23 ``models/hyperclovax_vision_v2/modeling_hyperclovax_vision_v2.py``.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.granite import GraniteDecoder
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.llama import Decoder
from vlmplan.architecture.families.packed_patches import joined_features, num_patches, scattered
from vlmplan.architecture.families.qwen2_5_vl import VisionTransformer
from vlmplan.architecture.families.text import text_decoder
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

TOWER, TOWER_OF_FILES = "qwen2_5_vl_vision", "qwen2_5_vl"
"""The type of the tower, and what published files call it (``HyperCLOVAXVisionV2Config.__post_init__``)."""


class HyperClovaModel(Module):
    """``HyperCLOVAXVisionV2Model``."""

    def __init__(self, vision: Config, text: Config) -> None:
        language_model = text_decoder(text)
        self.vision_model: Any = VisionTransformer(vision)
        self.projector = Linear(vision.integer("out_hidden_size"), language_model.shape.hidden_size, bias=True)
        self.language_model: Any = language_model

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        text = self.language_model
        is_scaled = isinstance(text, GraniteDecoder)
        embeddings = Decoder.embed(text, ids) if is_scaled else text.embed(ids)
        encoded = ids.tape.outputs.of_encoder()
        held: list[Tensor] = []  # the joined features, which live until this function returns, too
        if pixels is not None:
            last, features = self.vision_model(pixels, batch, backend)
            with ids.tape.section("projector"):
                encoded += [last, self.projector(features)]
            del last, features
            with ids.tape.section("scatter"):
                held.append(ops.to(joined_features(encoded[1], batch.num_images), embeddings.dtype))
                embeddings = scattered(ids, embeddings, held[0])
        with ids.tape.section("scaled embeddings"):
            scaled = text.scaled(embeddings) if is_scaled else embeddings
        return text(scaled, backend)


class HyperClovaVision(ImageTextModel):
    """``HyperCLOVAXVisionV2ForConditionalGeneration``."""

    scales_logits = True
    PARTS = {
        "model.vision_model": Part.VISION,
        "model.vision_model.merger": Part.PROJECTOR,
        "model.projector": Part.PROJECTOR,
    }

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        return (num_patches(batch), self.model.vision_model.patch_embed.patch_numel)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``image_grid_thw``."""
        return (((batch.num_images, 3), DType.INT64),)


def build(config: Config) -> HyperClovaVision:
    """``HyperCLOVAXVisionV2ForConditionalGeneration``."""
    vision = config.section("vision_config")
    if vision.model_type == TOWER_OF_FILES:
        vision = Config(config.own("vision_config"), TOWER, vision.path)
    if vision.model_type != TOWER:
        raise not_allowed(CONFIG, "vision_config.model_type", vision.model_type, f"{TOWER} or {TOWER_OF_FILES}")
    model = HyperClovaModel(vision, config.section("text_config"))
    return HyperClovaVision(model, ties_weights=config.boolean("tie_word_embeddings"))
