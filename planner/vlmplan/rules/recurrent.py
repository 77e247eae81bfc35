"""Models of which many layers carry a state from token to token, by the model_types of config.json and its parts.

Source: transformers 5.23 ``integrations/hub_kernels.py``, which has kernels for both kinds.
"""

GATED_DELTA_TYPES = frozenset(
    "kimi_linear olmo_hybrid qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text qwen3_next qwen4_exp "
    "qwen4_exp_text".split()
)
"""Models, and language models of those that see, with layers that are gated delta nets."""
STATE_SPACE_TYPES = frozenset({"bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2"})
"""Those with layers that are Mamba-2 mixers."""
