"""VipLLaVA: LLaVA with a norm of the hidden states side by side before they are projected.

Source: transformers 5.23 ``models/vipllava/modeling_vipllava.py``.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llava import Llava, UndividedFeatures
from vlmplan.architecture.families.llava import Projector as LlavaProjector
from vlmplan.architecture.modules import LayerNorm, Linear
from vlmplan.architecture.tensor import Tensor


class Projector(LlavaProjector):
    """``VipLlavaMultiModalProjector``."""

    def __init__(self, config: Config, width: int) -> None:
        in_width = config.section("vision_config").integer("hidden_size") * len(config.integers("vision_feature_layer"))
        self.projector_layernorm = LayerNorm(in_width)
        self.linear_1 = Linear(in_width, width, bias=True)
        self.linear_2 = Linear(width, width, bias=True)
        self.act = ops.activation_module(config.text("projector_hidden_act"))

    def forward(self, features: Tensor) -> Tensor:
        features = self.projector_layernorm(features)
        return super().forward(features)


class VipLlavaModel(UndividedFeatures):
    """``VipLlavaModel``: the first feature of each tile is left out whatever the tower is."""

    def drops_first(self, config: Config) -> bool:
        return True

    def projector(self, config: Config, width: int) -> Projector:
        return Projector(config, width)


def build(config: Config) -> Llava:
    """``VipLlavaForConditionalGeneration``; the top level alone decides whether embedding and head are one weight."""
    return Llava(VipLlavaModel(config), ties_weights=config.boolean("tie_word_embeddings"))
