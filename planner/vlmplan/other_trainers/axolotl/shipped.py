"""The DeepSpeed files that axolotl ships (0.19.0, ``deepspeed_configs/``), as far as they decide memory or time: its
users name them by the paths that ``axolotl fetch deepspeed_configs`` gives them."""

from collections.abc import Mapping
from typing import Any

from vlmplan.other_trainers.ms_swift.shipped import zero_file
from vlmplan.other_trainers.shipped_deepspeed import ON_CPU, ShippedFiles

_STAGE_3: Mapping[str, Any] = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 0,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "max_live_parameters": 0,
    "max_reuse_distance": 0,
    "gather_16bit_weights_on_model_save": True,
}
_BF16: Mapping[str, Any] = {"bf16": {"enabled": True}}
_ANY_OPTIMIZER: Mapping[str, Any] = {"zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}


def _file(section: Mapping[str, Any], **others: Any) -> Mapping[str, Any]:
    content = {
        **zero_file(section["stage"]),
        **others,
        "zero_optimization": dict(section),
        "wall_clock_breakdown": False,
    }
    if others.get("bf16") == _BF16["bf16"]:
        del content["fp16"]
    return content


_FILES: Mapping[str, Mapping[str, Any]] = {
    "zero1.json": _file({"stage": 1, "overlap_comm": True}),
    "zero2.json": _file(
        {"stage": 2, "offload_optimizer": {"device": "cpu"}, "contiguous_gradients": True, "overlap_comm": True}
    ),
    "zero3.json": _file(_STAGE_3),
    "zero3_bf16.json": _file(_STAGE_3, **_BF16),
    "zero3_bf16_cpuoffload_all.json": _file(
        {**_STAGE_3, "offload_optimizer": ON_CPU, "offload_param": ON_CPU}, **_BF16, **_ANY_OPTIMIZER
    ),
    "zero3_bf16_cpuoffload_params.json": _file({**_STAGE_3, "offload_param": ON_CPU}, **_BF16, **_ANY_OPTIMIZER),
}
SHIPPED_DEEPSPEED = ShippedFiles(("deepspeed_configs",), _FILES)
