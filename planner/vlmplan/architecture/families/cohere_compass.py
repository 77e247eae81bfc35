"""Cohere Compass (North Micro Vision): Qwen3-VL with Cohere's language model.

Source: transformers 5.23 ``models/cohere_compass/modeling_cohere_compass.py``.
"""

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.cohere_compass_text import CompassDecoder
from vlmplan.architecture.families.qwen3_vl import Qwen3VL, VisionLanguageModel, VisionTransformer


class CohereCompass(Qwen3VL):
    """``CohereCompassForConditionalGeneration``."""


def build(config: Config) -> CohereCompass:
    """The top level alone decides whether embedding and head are one weight; logits are scaled where the text
    configuration has a number for it."""
    text, visual = config.section("text_config"), VisionTransformer(config.section("vision_config"))
    model = VisionLanguageModel(visual, CompassDecoder(text, visual.num_features))
    made = CohereCompass(model, ties_weights=config.boolean("tie_word_embeddings"))
    made.scales_logits = text.get("logit_scale") is not None
    return made
