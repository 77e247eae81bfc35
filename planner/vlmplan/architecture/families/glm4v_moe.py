"""GLM-4.5V and 4.6V: the vision transformer of GLM-4.1V before the decoder of GLM-4.5, with positions of three axes.

Source: transformers 5.23 ``models/glm4v_moe/modeling_glm4v_moe.py``. The decoder has no norms of heads whatever the
file says (``Glm4vMoeTextAttention``).
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.glm4_moe import moe_layers, moe_shape, rotary_width
from vlmplan.architecture.families.glm4v import Glm4v, VisionTransformer
from vlmplan.architecture.families.group_router import OLD_EXPERT_NAMES
from vlmplan.architecture.families.image_text import ties_either
from vlmplan.architecture.families.packed_patches import MultimodalDecoder
from vlmplan.architecture.families.qwen2_vl import VisionLanguageModel


class Glm4vMoe(Glm4v):
    """``Glm4vMoeForConditionalGeneration``. peft takes its names for those of Qwen2-MoE's experts in transformers 4."""

    PARAMETER_TARGETS = OLD_EXPERT_NAMES


def decoder(text: Config) -> MultimodalDecoder:
    """``Glm4vMoeTextModel``."""
    shape = replace(moe_shape(text), qk_norm=False)
    return MultimodalDecoder(shape, moe_layers(text, shape), rotary_width=rotary_width(text, shape))


def build(config: Config) -> Glm4vMoe:
    """``Glm4vMoeForConditionalGeneration``."""
    text = config.section("text_config")
    model = VisionLanguageModel(VisionTransformer(config.section("vision_config")), decoder(text))
    return Glm4vMoe(model, ties_weights=ties_either(config, text))
