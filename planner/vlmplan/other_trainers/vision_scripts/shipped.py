"""The DeepSpeed files beside the scripts of LLaVA and qwen-vl-finetune, which have the same (``scripts/`` of both), as
far as they decide memory or time: a copy of one script names them where only the whole has them."""

from collections.abc import Mapping
from typing import Any, Final

from vlmplan.other_trainers.shipped_deepspeed import ON_CPU, OPEN_SIZES, ShippedFiles

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
_FILES: Final[Mapping[str, Mapping[str, Any]]] = {
    "zero2.json": {**OPEN_SIZES, "zero_optimization": {**_ZERO, "stage": 2}},
    "zero3.json": {**OPEN_SIZES, "zero_optimization": _STAGE_3},
    "zero3_offload.json": {
        **OPEN_SIZES,
        "gradient_clipping": "auto",
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
        "zero_optimization": {**_STAGE_3, "offload_optimizer": ON_CPU, "offload_param": ON_CPU},
    },
}
SHIPPED_DEEPSPEED: Final = ShippedFiles(("scripts",), _FILES)
