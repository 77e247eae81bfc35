"""Random searches over what came last: preferences and rewards of every trainer, FSDP1, evaluation, types of weights,
other trainers' behaviour, families of every kind."""

import random
from typing import Any

from neighbours import GPUS, Search

MODELS = (
    *(
        "smollm2-135m",
        "qwen3-1.7b",
        "llama-3.2-1b",
        "gemma-3-1b",
        "mistral-7b",
        "smollm3-3b",
        "apertus-8b",
        "bloom-1.1b",
    ),
    *("qwen2-vl-2b", "qwen3-vl-4b", "internvl3-1b", "smolvlm-256m", "glm-ocr", "lfm2-vl-450m", "minicpm-v-4.6"),
    *("qwen3.5-0.8b", "granite-4.0-h-1b", "lfm2-1.2b", "olmoe-1b-7b", "gpt-oss-20b", "gemma-3n-e2b", "hunyuan-1.8b"),
)
CARDS = (*GPUS, "v100-sxm2-32gb", "rtx-2080-ti", "mi300x", "h200-sxm", "a6000")
AXES: tuple[tuple[str, tuple[Any, ...], float], ...] = (
    ("method", ("full", "lora", "qlora", "lora-8bit"), 0.4),
    ("zero_stage", ("none", "0", "1", "2", "3"), 0.08),
    ("activation_checkpointing", (False, True), 0.06),
    ("optimizer", ("adamw-8bit", "muon", "lion", "paged-adamw-8bit", "torchao-adamw-4bit"), 0.1),
    ("expandable_segments", (False,), 0.15),
    ("precision", ("bf16", "fp16", "fp32", "bf16-pure"), 0.1),
    ("attention", ("flash_attention_2", "eager"), 0.05),
    ("weight_dtype", ("float32", "model"), 0.04),
    ("adapter_dtype", ("float32", "model"), 0.04),
    ("batches_on_gpu", ("step", "step-float32"), 0.04),
    ("host_ram", (16, 64), 0.08),
    ("num_nodes", (2,), 0.08),
)
"""Options, what is drawn of them and how often."""
SHARDED = {"fsdp": True, "batching": "padding-free", "attention": "flash_attention_2", "generation": "vllm"}
KINDS: tuple[tuple[dict[str, Any], dict[str, tuple[Any, ...]]], ...] = (
    ({"task": "dpo", "max_completion_tokens": 128}, {"reference": ("copy", "precomputed"), "loss": ("trl",)}),
    ({"task": "dpo", "task_trainer": "llamafactory", "loss": "log-softmax"}, {"reference": ("copy",)}),
    (
        {"task": "grpo", "max_completion_tokens": 128},
        {
            "num_generations": (2, 4),
            "num_iterations": (2, 4),
            "generation": ("vllm", "server"),
            "reference": ("copy", "adapter-off"),
        },
    ),
    ({"task": "grpo", "task_trainer": "unsloth", "loss": "unsloth", "zero_stage": "none"}, {"generation": ("vllm",)}),
    ({"task": "grpo", "task_trainer": "verl", "loss": "verl", **SHARDED}, {"num_iterations": (2,)}),
    (
        {"fsdp": True},
        {
            "flat_parameters": ("on-demand", "backward-pre", "backward-post"),
            "sync_each_batch": (False,),
            "shard_units": ("layers",),
            "loraplus_lr_ratio": (16.0,),
        },
    ),
    ({"eval_batch": 8}, {"eval_new_tokens": (64,), "eval_keeps": ("logits", "predictions")}),
    *(({"made_for": trainer}, {}) for trainer in ("trl", "transformers", "llamafactory", "ms-swift", "axolotl")),
)
"""What is asked for, and what half of the time beside it."""


def recent_search(seed: int) -> Search:
    """A search of one of ``KINDS``; the same for the same seed."""
    draw = random.Random(seed)
    kind, beside = draw.choice(KINDS)
    options: dict[str, Any] = {
        "model": draw.choice(MODELS),
        "gpu": (f"{draw.choice(CARDS)}:{draw.choice((1, 1, 2, 4, 8))}",),
        "objective": draw.choice(("cost", "time", "vram")),
        "seq_len": draw.choice((512, 1024, 2048)),
        "global_batch": draw.choice((8, 16, 32, 64)),
        "num_samples": draw.choice((2_000, 50_000, 1_000_000)),
    }
    options |= {name: draw.choice(values) for name, values, often in AXES if draw.random() < often}
    options |= kind | {name: draw.choice(values) for name, values in beside.items() if draw.random() < 0.5}
    if "fsdp" in options:
        options.pop("zero_stage", None)
    if kind.get("task_trainer") == "unsloth":
        options |= {"method": draw.choice(("lora", "qlora")), "gpu": (f"{draw.choice(CARDS)}:1",)}
    return Search(options)
