"""The DeepSpeed files that ms-swift ships and takes by name (4.6.0, ``swift/config/``), as far as they decide memory or
time."""

from collections.abc import Mapping
from typing import Any

from vlmplan.other_trainers.shipped_deepspeed import ON_CPU, OPEN_SIZES

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


def zero_file(stage: int, **offloads: Mapping[str, Any]) -> dict[str, Any]:
    """The file for a stage; ``offloads`` are ``offload_optimizer`` and ``offload_param``."""
    sizes = _STAGE_3 if stage == 3 else _BUCKETS
    return {
        **OPEN_SIZES,
        "gradient_clipping": "auto",
        "zero_optimization": {
            "stage": stage,
            **offloads,
            "overlap_comm": False,
            "contiguous_gradients": True,
            **sizes,
        },
    }


NAMED_DEEPSPEED: Mapping[str, Mapping[str, Any]] = {
    "zero0": zero_file(0),
    "zero1": zero_file(1),
    "zero2": zero_file(2),
    "zero2_offload": zero_file(2, offload_optimizer=ON_CPU),
    "zero3": zero_file(3),
    "zero3_offload": zero_file(3, offload_optimizer=ON_CPU, offload_param=ON_CPU),
}
