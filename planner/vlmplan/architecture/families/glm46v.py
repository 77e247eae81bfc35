"""The class of GLM-4.6V that takes any decoder of GLM-V: dense (4.6V-Flash) or a mixture of experts.

Source: transformers 5.23 ``models/glm46v/modeling_glm46v.py``. peft knows no old names of its experts
(``_MODEL_TO_CONVERSION_PATTERN`` has no entry), so that LoRA on all Linears leaves experts and routers out.
"""

from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families import glm4v, glm4v_moe
from vlmplan.architecture.families.glm4v import Glm4v, VisionTransformer
from vlmplan.architecture.families.qwen2_vl import VisionLanguageModel
from vlmplan.files.json_reader import not_allowed

DECODERS = {"glm4v_text": glm4v.decoder, "glm4v_moe_text": glm4v_moe.decoder}
"""The decoders by the model_type of ``text_config``."""


def build(config: Config) -> Glm4v:
    """``Glm46VForConditionalGeneration``; the top level alone decides whether embedding and head are one weight."""
    text = config.section("text_config")
    if text.model_type not in DECODERS:
        raise not_allowed(CONFIG, "text_config.model_type", text.model_type, " or ".join(DECODERS))
    visual = VisionTransformer(config.section("vision_config"))
    model = VisionLanguageModel(visual, DECODERS[text.model_type](text))
    return Glm4v(model, ties_weights=config.boolean("tie_word_embeddings"))
