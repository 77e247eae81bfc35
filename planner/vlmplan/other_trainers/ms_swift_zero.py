"""The DeepSpeed files that ms-swift ships and takes by name (4.6.0, ``swift/config/``), as far as they decide memory or
time."""

from collections.abc import Mapping
from typing import Any


def _zero(stage: int, **more: Any) -> dict[str, Any]:
    return {
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": stage, "overlap_comm": False, "contiguous_gradients": True} | more,
    }


_BUCKETS: Mapping[str, Any] = {
    "allgather_partitions": True,
    "allgather_bucket_size": 200_000_000,
    "reduce_scatter": True,
    "reduce_bucket_size": 200_000_000,
}
_STAGE_3: Mapping[str, Any] = {
    "sub_group_size": 1_000_000_000,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_gather_16bit_weights_on_model_save": True,
}
_CPU: Mapping[str, Any] = {"device": "cpu", "pin_memory": True}
NAMED_DEEPSPEED: Mapping[str, Mapping[str, Any]] = {
    "zero0": _zero(0, **_BUCKETS),
    "zero1": _zero(1, **_BUCKETS),
    "zero2": _zero(2, **_BUCKETS),
    "zero2_offload": _zero(2, offload_optimizer=_CPU, **_BUCKETS),
    "zero3": _zero(3, **_STAGE_3),
    "zero3_offload": _zero(3, offload_optimizer=_CPU, offload_param=_CPU, **_STAGE_3),
}
