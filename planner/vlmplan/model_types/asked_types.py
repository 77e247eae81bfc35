"""Models whose forward asks a module for its element type: that of the first parameter in it (``PreTrainedModel.dtype``
of transformers 5.23). With original weights out of the way, as FSDP1 may have them, there is none, or a shard."""

from collections.abc import Mapping

_VISUAL = """
    qwen2_vl qwen2_5_vl qwen2_5_omni qwen2_5_omni_thinker qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe qwen3_omni_moe
    qwen3_omni_moe_thinker glm4v glm4v_moe glm46v glm_ocr glmga cohere_compass cosmos3_omni exaone4_5 paddleocr_vl
    qwen4_exp
""".split()
ASKED_TOWERS: Mapping[str, str] = {
    **dict.fromkeys(_VISUAL, "visual"),
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7", "minicpm_ocr", "hunyuan_vl", "molmo2"), "vision_tower"),
    "mllama": "vision_model",
    "video_llama_3": "vision_model",
}
"""The vision tower, by the attribute that it is, of models that ask it while they encode images."""
IN_TYPE_OF_MODEL = frozenset(("smolvlm",))
"""Whose features of images are cast to the type of the whole model, and put among embeddings, which have that of the
computation (``inputs_merger``)."""
