"""Which models Liger, and axolotl's cut cross entropy, have kernels for.

Source: liger-kernel 0.8.5, ``MODEL_TYPE_TO_APPLY_LIGER_FN`` in ``transformers/monkey_patch.py``, and the defaults of
the functions there.
"""

from typing import Final

FUSED_LOSS_TYPES: Final = frozenset(
    "deepseek_v2 deepseek_v3 deepseek_v4 exaone4 falcon_h1 gemma gemma2 gemma3 gemma3_text gemma4 gemma4_text "
    "glm4 glm4v glm4v_moe gpt_oss hunyuan_v1_dense hunyuan_v1_moe internvl llama llama4 llama4_text llava "
    "ministral mistral mixtral mllama mllama_text_model muse_glimmer nemotron olmo2 olmo3 paligemma phi3 qwen2 "
    "qwen2_5_vl qwen2_5_vl_text qwen2_vl qwen2_vl_text qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text "
    "qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text smollm3 smolvlm".split()
)
"""Those with ``fused_linear_cross_entropy``; granite has it turned off, as its logits are scaled."""
CUT_LOSS_TYPES: Final = FUSED_LOSS_TYPES | frozenset(
    "afmoe apertus arcee exaone4_5 exaone_moe gemma4_unified gemma4_unified_text glm glm46v glm4_moe glm4_moe_lite "
    "glm_image glm_moe_dsa kimi_linear lfm2 lfm2_moe lfm2_vl minimax minimax_m2 ministral3 mistral3 mistral4 "
    "nemotron_h olmo olmoe phi phi4_multimodal qwen2_moe seed_oss step3p5 step3p7 voxtral".split()
)
"""Beside those, the others that axolotl's fork of cut-cross-entropy (5f0c7a7, ``PATCH_FNS`` in
``transformers/patch.py``) hands hidden states and head as they are; it scales those of cohere and granite, and casts
those of gemma3n. A function of hidden states and head, as Liger's is by itself, can be had with any of them."""
LAYER_TYPES: Final = frozenset(
    "granite internvl llama llava mistral qwen2 qwen2_5_vl qwen2_vl qwen3 qwen3_vl smollm3 smolvlm".split()
)
"""Those whose kernels for norms, MLPs and rotary positions are planned, all in place; other parts of these models have
none, or Liger's layer norm, which keeps what torch's does."""
TYPES_WITHOUT_MLP: Final = frozenset({"qwen3_vl"})
TYPES_WITH_VISION_NORMS: Final = frozenset({"qwen2_5_vl"})
TYPES_BEHIND_TRANSFORMERS: Final = frozenset({"qwen2_5_vl", "qwen2_vl", "qwen3_vl"})
"""Of ``LAYER_TYPES``, those whose forward asks for classes of outputs that transformers 5.23 no longer has (tried:
``_apply_liger_kernel_to_instance`` raises ImportError, also without the fused loss)."""
