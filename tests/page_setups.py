"""Setups at random, as somebody may choose them on the page."""

import random

MODELS = ("gpt2", "smollm2-135m", "qwen2-vl-2b", "HuggingFaceTB/SmolLM2-135M")
CHOICES = {
    "method": ("full", "lora", "qlora"),
    "gpu": ("t4", "rtx-4090:2", "a100-sxm4-80gb:8", "h100-sxm:4"),
    "seq_len": (256, 1000, 1024),
    "micro_batch": (1, 2, 3),
    "grad_accum": (1, 4),
    "precision": ("bf16", "fp16", "fp32"),
    "optimizer": ("adamw", "adamw-8bit", "sgd"),
    "zero_stage": ("none", "0", "1", "2", "3"),
    "activation_checkpointing": (True, False),
    "lora_rank": (8, 64),
    "loss": ("chunked", "full"),
    "train_vision": (True, False),
    "offload_optimizer": ("none", "cpu"),
    "attention": ("sdpa", "eager"),
    "epochs": (1, 2.5),
    "image_size": ("448x336",),
    "sample_lengths": ("vary",),
    "save_every": (100,),
    "host_ram": (64,),
}


def setups(count: int, models: tuple[str, ...] = MODELS) -> list[dict[str, object]]:
    """Setups at random, the same in every run; some are refused."""
    chance = random.Random(18)
    found: list[dict[str, object]] = []
    for _ in range(count):
        names = chance.sample(sorted(CHOICES.keys() - {"gpu"}), chance.randint(1, 7))
        choices = {name: chance.choice(CHOICES[name]) for name in names}
        found.append({"model": chance.choice(models), "gpu": chance.choice(CHOICES["gpu"]), **choices})
    return found
