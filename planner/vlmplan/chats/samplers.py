"""Whose videos are read: which class of transformers samples those of a model type, and what these have in common.

Source: ``VIDEO_PROCESSOR_MAPPING_NAMES`` in transformers 5.23 models/auto/auto_mappings.py. A leaf;
``frame_rules`` says which frames each class takes.
"""

from collections.abc import Mapping
from enum import Enum


class Sampler(Enum):
    """The class of transformers whose ``sample_frames`` it is."""

    QWEN2_VL = "Qwen2VLVideoProcessor"
    QWEN3_VL = "Qwen3VLVideoProcessor"
    GLM4V = "Glm4vVideoProcessor"
    GLM46V = "Glm46VVideoProcessor"
    GLMGA = "GlmgaVideoProcessor"
    INTERNVL = "InternVLVideoProcessor"
    SMOLVLM = "SmolVLMVideoProcessor"
    LLAVA_ONEVISION = "LlavaOnevisionVideoProcessor"
    LLAVA_NEXT_VIDEO = "LlavaNextVideoVideoProcessor"
    GEMMA4 = "Gemma4VideoProcessor"
    GEMMA4_UNIFIED = "Gemma4UnifiedVideoProcessor"
    MINICPMV = "MiniCPMV4_6VideoProcessor"
    MINICPM_OCR = "MiniCPMOcrVideoProcessor"


SAMPLERS: Mapping[str, Sampler] = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "exaone4_5"), Sampler.QWEN2_VL),
    **dict.fromkeys(("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"), Sampler.QWEN2_VL),
    **dict.fromkeys(
        ("cosmos3_omni", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "lfm3_vl"),
        Sampler.QWEN3_VL,
    ),
    **dict.fromkeys(("glm4v", "glm4v_moe"), Sampler.GLM4V),
    "glm46v": Sampler.GLM46V,
    "glmga": Sampler.GLMGA,
    "internvl": Sampler.INTERNVL,
    "smolvlm": Sampler.SMOLVLM,
    "llava_next_video": Sampler.LLAVA_NEXT_VIDEO,
    "llava_onevision": Sampler.LLAVA_ONEVISION,
    "gemma4": Sampler.GEMMA4,
    "gemma4_unified": Sampler.GEMMA4_UNIFIED,
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), Sampler.MINICPMV),
    "minicpm_ocr": Sampler.MINICPM_OCR,
}
"""By the ``model_type`` of config.json. A processor of GLM-4.1V's models may be GLM-4.6V's: its file names it."""
NOT_READ = tuple(
    """cohere_compass cosmos3_edge dots3_note ernie4_5_vl_moe glm5_next hyperclovax_vision_v2 instructblipvideo
    kimi_k25 minimax_m3_vl molmo2 muse_glimmer muse_spark nemotron_h_omni perception_lm video_llama_3
    video_llava""".split()
)
"""Other model types to which transformers shows videos (``VIDEO_PROCESSOR_MAPPING_NAMES``), of which what becomes of
frames is not described."""
GEMMA4_SAMPLERS = (Sampler.GEMMA4, Sampler.GEMMA4_UNIFIED)
LLAVA_SAMPLERS = (Sampler.LLAVA_NEXT_VIDEO, Sampler.LLAVA_ONEVISION)
MINICPMV_SAMPLERS = (Sampler.MINICPM_OCR, Sampler.MINICPMV)
CLIP_SAMPLERS = (Sampler.SMOLVLM, *LLAVA_SAMPLERS, *GEMMA4_SAMPLERS)
"""Of models to which a frame is not what an image of any size is: SmolVLM cuts images into tiles and frames not,
the LLaVAs pool the features of frames, and Gemma 4 has fewer patches for a frame than for an image."""
FIXED_SAMPLERS: Mapping[Sampler, str] = {
    Sampler.LLAVA_NEXT_VIDEO: "LLaVA-NeXT-Video",
    Sampler.LLAVA_ONEVISION: "LLaVA-OneVision",
    **dict.fromkeys(GEMMA4_SAMPLERS, "Gemma 4"),
}
"""Of models that are given as many frames of every video."""
CLIPS_OF_ROWS = ("lfm3_vl",)
"""Of models whose tower takes the frames of a video at once, in rows of patches of two frames each."""
CLIP_TYPES = frozenset(
    {*CLIPS_OF_ROWS, *(name for name, one in SAMPLERS.items() if one in (*CLIP_SAMPLERS, *MINICPMV_SAMPLERS))}
)
"""Model types whose videos are no images to them. A frame of MiniCPM-V's has settings of its own."""
BY_LENGTH: Mapping[Sampler, str] = {
    Sampler.GLM46V: "GLM-4.6V",
    Sampler.MINICPMV: "MiniCPM-V",
    Sampler.MINICPM_OCR: "MiniCPM-OCR",
}
"""Whose processors have no number of frames a second to be told of."""
GLM_SAMPLERS = (Sampler.GLM4V, Sampler.GLM46V, Sampler.GLMGA)
"""Of models that see two frames of a video exactly as an image: with its token, in a row of patches of its own."""
ONE_INPUT_SAMPLERS = (Sampler.INTERNVL, Sampler.SMOLVLM, *GLM_SAMPLERS)
"""Of models that are given images and videos as one tensor, so that their tower runs once."""


def no_videos(model_type: str) -> str | None:
    """Why samples with videos are not read for models of ``model_type``; None: they are."""
    if model_type in SAMPLERS:
        return None
    why = why_not_read(model_type)
    return f"videos are not read for models of type {model_type}{why}; they are for those of {', '.join(SAMPLERS)}"


def why_not_read(model_type: str) -> str:
    """The reason in brackets why videos of a model type are not read, where transformers shows it videos; empty for
    others."""
    return (
        " (it sees videos, but there is no memory model of what it makes of frames)" if model_type in NOT_READ else ""
    )
