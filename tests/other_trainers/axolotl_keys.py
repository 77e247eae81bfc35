"""A small run of axolotl with adapters, to which tests add what it is trained on."""

from typing import Any

LORA: dict[str, Any] = {
    "base_model": "qwen2.5-0.5b",
    "sequence_len": 300,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "num_epochs": 1,
    "learning_rate": 1e-5,
    "output_dir": "out",
    "bf16": True,
    "attn_implementation": "flash_attention_2",
    "adapter": "lora",
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_target_modules": "all-linear",
}
WHOLE: dict[str, Any] = {"adapter": None, "lora_r": None, "lora_alpha": None, "lora_target_modules": None}
"""What makes it a run of the whole model."""
