"""Aya Vision and Command A Vision: a SigLIP tower over tiles, squares of patches in one row, a gated MLP, and Cohere 2.

Source: transformers 5.23 ``models/aya_vision/modeling_aya_vision.py`` and
``models/cohere2_vision/modeling_cohere2_vision.py``. The second takes what comes out of the tower's last norm, and has
no norm of its own.
"""

import math
from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llava import Llava, UndividedFeatures
from vlmplan.architecture.families.vision_tower import VisionOutput
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import LayerNorm, Linear, Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError


class Projector(Module):
    """``AyaVisionMultiModalProjector``, ``Cohere2VisionMultiModalProjector``."""

    def __init__(self, config: Config, width: int) -> None:
        self.merge_size = config.integer("downsample_factor")
        self.merged_width = config.section("vision_config").integer("hidden_size") * self.merge_size**2
        inner = config.integer("alignment_intermediate_size", width)
        self.is_normed = config.model_type == "aya_vision"
        if self.is_normed:
            self.layernorm = LayerNorm(self.merged_width)
        self.linear_1 = Linear(self.merged_width, inner, bias=True)
        self.linear_2 = Linear(inner // 2, width, bias=True)
        self.act = ops.activation_module("silu")

    def forward(self, features: Tensor, *, is_contiguous: bool) -> Tensor:
        """``is_contiguous``: whether features of one patch lie side by side."""
        features = self.shuffled(features, is_contiguous=is_contiguous)
        # What is no matrix in memory is copied into one by the first Linear, not by a norm.
        features = self.layernorm(features) if self.is_normed else ops.copy(features)
        hidden = self.linear_1(features)
        half = (*hidden.shape[:-1], hidden.shape[-1] // 2)
        x, gate = ops.split(hidden, half, half)
        hidden = ops.mul(self.act(gate), x)
        return self.linear_2(hidden)

    def shuffled(self, features: Tensor, *, is_contiguous: bool) -> Tensor:
        """``pixel_shuffle``: patches of a row side by side, a view where they are so in memory, and rows in a copy."""
        num_tiles, num_features, _ = features.shape
        side = math.isqrt(num_features)
        if side**2 != num_features or side % self.merge_size:
            raise InputError(
                f"{num_features} features of a tile are no square of {self.merge_size}x{self.merge_size} merged ones "
                "(downsample_factor of config.json)"
            )
        joined = (num_tiles, side, side // self.merge_size, features.shape[-1] * self.merge_size)
        # The gradient of the view is a copy too, as rows and columns change places behind it.
        features = ops.part(features, *joined) if is_contiguous else ops.resample(features, *joined)
        return ops.resample(features, num_tiles, (side // self.merge_size) ** 2, self.merged_width)


class AyaVisionModel(UndividedFeatures):
    """``AyaVisionModel``."""

    def projector(self, config: Config, width: int) -> Module:
        return Projector(config, width)

    def pieces(self, output: VisionOutput, batch: Batch) -> Sequence[Tensor]:
        is_contiguous = len(output.hidden_states) > 1 or not self.vision_tower.keeps_channels_first
        return [self.multi_modal_projector(self.selected(output), is_contiguous=is_contiguous)]

    def foldable(self, features: Tensor, *, is_sliced: bool) -> Tensor:
        return features


class CommandVisionModel(AyaVisionModel):
    """``Cohere2VisionModel``."""

    def feature_layers(self, config: Config) -> Sequence[int]:
        return ()

    def pieces(self, output: VisionOutput, batch: Batch) -> Sequence[Tensor]:
        return [self.multi_modal_projector(output.last_hidden_state, is_contiguous=True)]


def build(config: Config) -> Llava:
    """``AyaVisionForConditionalGeneration``, ``Cohere2VisionForConditionalGeneration``: the top level alone decides
    whether embedding and head are one weight."""
    model = AyaVisionModel if config.model_type == "aya_vision" else CommandVisionModel
    return Llava(model(config), ties_weights=config.boolean("tie_word_embeddings"))
