"""The DeepSpeed files that LLaMA-Factory ships beside its examples (0.9.5, ``examples/deepspeed/``), as far as they
decide memory or time: its users name them where only a checkout of it has them."""

from collections.abc import Mapping
from typing import Any

from vlmplan.other_trainers.ms_swift.shipped import zero_file
from vlmplan.other_trainers.shipped_deepspeed import ON_CPU, ShippedFiles

_BUCKETS: Mapping[str, Any] = {
    "allgather_bucket_size": 500_000_000,
    "reduce_bucket_size": 500_000_000,
    "round_robin_gradients": True,
}


def _file(stage: int, **offloads: Mapping[str, Any]) -> Mapping[str, Any]:
    content = zero_file(stage, **offloads)
    content["zero_optimization"] |= {} if stage == 3 else _BUCKETS
    return content | {"zero_allow_untested_optimizer": True}


_FILES: Mapping[str, Mapping[str, Any]] = {
    "ds_z0_config.json": _file(0),
    "ds_z2_config.json": _file(2),
    "ds_z2_offload_config.json": _file(2, offload_optimizer=ON_CPU),
    "ds_z3_config.json": _file(3),
    "ds_z3_offload_config.json": _file(3, offload_optimizer=ON_CPU, offload_param=ON_CPU),
}
SHIPPED_DEEPSPEED = ShippedFiles(("examples", "deepspeed"), _FILES)
