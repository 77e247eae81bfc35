"""The shims for FSDP2's sharded tensors. See ``shims``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from vlmplan_trainer.rehearse.replaced import replaced


@contextmanager
def deriving_shapes_unseen() -> Iterator[None]:
    """An operation on sharded tensors is first run on fake tensors of their whole shapes, for the shape of its result
    (``ShardingPropagator``, ``torch/distributed/tensor/_sharding_prop.py`` 2.13). They take no memory in a real run."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    derive = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(self: Any, op_schema: Any) -> Any:
        with _disable_current_modes():
            return derive(self, op_schema)

    with replaced(ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen):
        yield
