"""The DeepSpeed files beside the scripts of LLaVA and qwen-vl-finetune, which have the same (``scripts/`` of both), as
far as they decide memory or time: a copy of one script names them where only the whole has them."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

FOLDER: Final = "scripts"
_OPEN: Final[Mapping[str, Any]] = {
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}
_ZERO: Final[Mapping[str, Any]] = {
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 1_000_000_000,
    "reduce_bucket_size": "auto",
}
_STAGE_3: Final[Mapping[str, Any]] = {
    **_ZERO,
    "stage": 3,
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_gather_16bit_weights_on_model_save": True,
}
_CPU: Final[Mapping[str, Any]] = {"device": "cpu", "pin_memory": True}
SHIPPED_DEEPSPEED: Final[Mapping[str, Mapping[str, Any]]] = {
    "zero2.json": {**_OPEN, "zero_optimization": {**_ZERO, "stage": 2}},
    "zero3.json": {**_OPEN, "zero_optimization": _STAGE_3},
    "zero3_offload.json": {
        **_OPEN,
        "gradient_clipping": "auto",
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
        "zero_optimization": {**_STAGE_3, "offload_optimizer": _CPU, "offload_param": _CPU},
    },
}


def shipped_file(name: str) -> Mapping[str, Any] | None:
    """The file that a path from the scripts' root names; None for any other.

    >>> shipped_file("./scripts/zero3.json")["zero_optimization"]["stage"]
    3
    >>> shipped_file("zero3.json")
    """
    path = PurePath(name)
    return SHIPPED_DEEPSPEED.get(path.name) if path.parts[-2:-1] == (FOLDER,) else None
