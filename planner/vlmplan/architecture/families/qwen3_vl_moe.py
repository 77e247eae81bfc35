"""Qwen3-VL with a mixture of experts in the layers of its decoder.

Source: transformers 5.23 ``models/qwen3_vl_moe/modeling_qwen3_vl_moe.py``. peft does not know names of its experts from
transformers 4 (``_MODEL_TO_CONVERSION_PATTERN`` has no entry), so LoRA on all Linears leaves experts and routers out.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import decoder_shape
from vlmplan.architecture.families.moe import moe_layers
from vlmplan.architecture.families.qwen3_vl import DeepstackDecoder, Qwen3VL, VisionLanguageModel, VisionTransformer


def build(config: Config) -> Qwen3VL:
    """``Qwen3VLMoeForConditionalGeneration``; the top level alone decides whether embedding and head are one weight."""
    text = config.section("text_config")
    shape = replace(decoder_shape(text), qk_norm=True)
    visual = VisionTransformer(config.section("vision_config"))
    decoder = DeepstackDecoder(shape, visual.num_features, moe_layers(text, shape))
    model = VisionLanguageModel(visual, decoder)
    return Qwen3VL(model, ties_weights=config.boolean("tie_word_embeddings"))
