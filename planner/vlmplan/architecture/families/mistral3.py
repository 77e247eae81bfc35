"""Mistral 3 (Mistral Small 3.1): a Pixtral tower, patches merged by a Linear, a projector and a Mistral decoder.

Source: transformers 5.23 ``models/mistral3/modeling_mistral3.py``.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.latent_attention import latent_shape
from vlmplan.architecture.families.llava import Llava, LlavaModel
from vlmplan.architecture.families.packed_patches import by_image
from vlmplan.architecture.families.text import ties_word_embeddings
from vlmplan.architecture.families.vision_tower import VisionOutput
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Linear, Module, RMSNorm
from vlmplan.architecture.tensor import Tensor


class PatchMerger(Module):
    """``Mistral3PatchMerger``: squares of patches side by side, through a Linear back to the width of one."""

    def __init__(self, width: int, merge_size: int) -> None:
        self.num_merged = merge_size**2
        self.merging_layer = Linear(width * self.num_merged, width)

    def forward(self, features: Tensor, num_images: int, num_tokens: int | None = None) -> Tensor:
        """``num_tokens`` of each image, where not all patches need be merged."""
        num_patches, width = features.shape
        per_image = (num_patches // num_images, width)
        merged = (num_tokens or per_image[0] // self.num_merged, width * self.num_merged)
        grids = [ops.resample(grid, *merged) for grid in ops.split(features, *[per_image] * num_images)]
        return self.merging_layer(ops.concatenate(grids, (num_images * merged[0], merged[1])))


class Projector(Module):
    """``Mistral3MultiModalProjector``: norm, patch merger, two Linears to the decoder's ``width``."""

    def __init__(self, config: Config, width: int) -> None:
        vision_width = config.section("vision_config").integer("hidden_size")
        bias = config.boolean("multimodal_projector_bias")
        self.norm = RMSNorm(vision_width)
        self.patch_merger = PatchMerger(vision_width, config.integer("spatial_merge_size"))
        in_width = vision_width * len(config.integers("vision_feature_layer"))
        self.linear_1 = Linear(in_width, width, bias=bias)
        self.linear_2 = Linear(width, width, bias=bias)
        self.act = ops.activation_module(config.text("projector_hidden_act"))

    def forward(self, features: Tensor, num_images: int) -> Tensor:
        features = self.norm(features)
        features = self.patch_merger(features, num_images)
        hidden = self.linear_1(features)
        hidden = self.act(hidden)
        return self.linear_2(hidden)


class Mistral3Model(LlavaModel):
    """``Mistral3Model``: it has no ``vision_feature_select_strategy``, all features of the tower are patches."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.drops_first_feature = False

    def projector(self, config: Config, width: int) -> Module:
        return Projector(config, width)

    def pieces(self, output: VisionOutput, batch: Batch) -> Sequence[Tensor]:
        features = self.selected(output)
        _, num_patches, width = features.shape
        features = self.multi_modal_projector(features.view(num_patches, width), batch.num_images)
        return by_image(features, batch.num_images)


def build(config: Config) -> Llava:
    """``Mistral3ForConditionalGeneration``. Mistral-Small-3.1's file leaves ``tie_word_embeddings`` out."""
    text = config.section("text_config")
    model = Llava(Mistral3Model(config), ties_weights=ties_word_embeddings(config, text))
    if text.model_type == "mistral4":
        model.attention_linears = latent_shape(text).linears
    return model
