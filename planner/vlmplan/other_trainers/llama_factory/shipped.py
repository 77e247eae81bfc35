"""The DeepSpeed files that LLaMA-Factory ships beside its examples (0.9.5, ``examples/deepspeed/``), as far as they
decide memory or time: its users name them where only a checkout of it has them."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from vlmplan.other_trainers.ms_swift.shipped import zero_file

FOLDER = ("examples", "deepspeed")
_BUCKETS: Mapping[str, Any] = {
    "allgather_bucket_size": 500_000_000,
    "reduce_bucket_size": 500_000_000,
    "round_robin_gradients": True,
}
_CPU: Mapping[str, Any] = {"device": "cpu", "pin_memory": True}


def _file(stage: int, **offloads: Mapping[str, Any]) -> Mapping[str, Any]:
    content = zero_file(stage, **offloads)
    content["zero_optimization"] |= {} if stage == 3 else _BUCKETS
    return content | {"zero_allow_untested_optimizer": True}


SHIPPED_DEEPSPEED: Mapping[str, Mapping[str, Any]] = {
    "ds_z0_config.json": _file(0),
    "ds_z2_config.json": _file(2),
    "ds_z2_offload_config.json": _file(2, offload_optimizer=_CPU),
    "ds_z3_config.json": _file(3),
    "ds_z3_offload_config.json": _file(3, offload_optimizer=_CPU, offload_param=_CPU),
}


def shipped_file(name: str) -> Mapping[str, Any] | None:
    """The file that a path from LLaMA-Factory's root names; None for any other.

    >>> shipped_file("examples/deepspeed/ds_z3_config.json")["zero_optimization"]["stage"]
    3
    >>> shipped_file("ds_z3_config.json")
    """
    path = PurePath(name)
    return SHIPPED_DEEPSPEED.get(path.name) if path.parts[-3:-1] == FOLDER else None
