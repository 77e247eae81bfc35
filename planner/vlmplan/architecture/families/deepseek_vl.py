"""DeepSeek-VL: SigLIP's tower, an aligner of two Linears, and a Llama.

Source: transformers 5.23 ``models/deepseek_vl/modeling_deepseek_vl.py``.
"""

from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.image_text import ImageTextModel
from vlmplan.architecture.families.llava import put_features
from vlmplan.architecture.families.text import text_decoder, ties_word_embeddings
from vlmplan.architecture.families.towers import vision_tower
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.tensor import Tensor


class Aligner(Module):
    """``DeepseekVLAligner``."""

    def __init__(self, width: int, out_width: int) -> None:
        self.linear1 = Linear(width, out_width, bias=True)
        self.activation = ops.activation_module("gelu")
        self.linear2 = Linear(out_width, out_width, bias=True)

    def forward(self, features: Tensor) -> Tensor:
        x = self.linear1(features)
        x = self.activation(x)
        return self.linear2(x)


class DeepseekVlModel(Module):
    """``DeepseekVLModel``."""

    def __init__(self, config: Config) -> None:
        vision, language_model = config.section("vision_config"), text_decoder(config.section("text_config"))
        self.vision_model: Any = vision_tower(vision)
        self.aligner = Aligner(vision.integer("hidden_size"), language_model.shape.hidden_size)
        self.language_model: Any = language_model

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.language_model.embed(ids)
        held = ids.tape.outputs.of_encoder()  # the tower's result and the features
        if pixels is not None:
            output = self.vision_model(pixels, batch, backend)
            with ids.tape.section("projector"):
                held += [output.last_hidden_state, self.aligner(output.last_hidden_state)]
            del output  # what its head made gives place to the features
            with ids.tape.section("scatter"):
                embeddings = put_features(ids, embeddings, held[1])
        return self.language_model(embeddings, backend)


class DeepseekVl(ImageTextModel):
    """``DeepseekVLForConditionalGeneration``."""

    PARTS = {"model.vision_model": Part.VISION, "model.aligner": Part.PROJECTOR}

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        return (batch.num_images * batch.image.num_patches, self.model.vision_model.patch_numel)


def build(config: Config) -> DeepseekVl:
    """``DeepseekVLForConditionalGeneration``."""
    ties_weights = ties_word_embeddings(config, config.section("text_config"))
    return DeepseekVl(DeepseekVlModel(config), ties_weights=ties_weights)
