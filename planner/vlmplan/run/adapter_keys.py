"""Keys of ``adapter_config.json`` that make an adapter another one than any plan has (``LoraConfig`` of peft 0.21)."""

from typing import Final

OTHERS: Final = (
    *("rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern", "exclude_modules", "target_parameters"),
    *("layer_replication", "megatron_config", "trainable_token_indices", "lora_bias", "alora_invocation_tokens"),
    *("use_qalora", "use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config"),
)
"""What changes adapters otherwise where it is not empty."""
SECTIONS: Final = ("use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config")
"""Those that peft makes an object of, which an empty one asks for, too."""
CHOOSING: Final = ("layers_to_transform", "layers_pattern", "exclude_modules", "target_parameters")
"""Those of them that choose layers, which the names of weights tell, too."""


def is_there(name: str, value: object) -> bool:
    """Whether a key of ``OTHERS`` asks for something: a layer may be number 0, and some sections may be empty."""
    if value is None or value is False or value in ([], ""):
        return False
    return value != {} or name in SECTIONS
