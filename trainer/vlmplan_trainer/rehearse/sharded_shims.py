"""The shims for sharded tensors, FSDP2's and ZeRO-3's. See ``shims``."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
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


@contextmanager
def counting_bytes_as_addresses() -> Iterator[None]:
    """FSDP1 looks at its address whether a weight is there (``_data_ptr_allocated`` in ``_flat_param.py``, torch 2.13),
    and whether it is a shard (``_catch_all_reshard`` in ``_runtime_utils.py``), and fake tensors have none: here the
    bytes that it has say the one, its storage the other."""
    import torch.distributed.fsdp._flat_param as flat

    def address(tensor: Any) -> int:
        return tensor.untyped_storage()._cdata

    with (
        replaced(flat, "_data_ptr_allocated", lambda tensor: tensor.untyped_storage().size() > 0),
        replaced(flat.FlatParameter, "data_ptr", address),
        replaced(FakeTensor, "data_ptr", address),
    ):
        yield


@contextmanager
def gathering_as_for_files() -> Iterator[None]:
    """A rehearsal has no files of weights. Under ZeRO-3 transformers would draw weights at random, and gather those of
    a module together with its children's own (``initialize_weights_zero3`` in transformers 5.23
    ``integrations/deepspeed.py``); for values out of files it gathers those of each module alone
    (``_load_state_dict_into_zero3_model``)."""
    import transformers.integrations.deepspeed as integration

    def gather(model: torch.nn.Module) -> None:
        from deepspeed.runtime.zero import GatheredParameters

        for module in model.modules():
            if weights := list(module.parameters(recurse=False)):
                with GatheredParameters(weights, modifier_rank=0):
                    pass

    with replaced(integration, "initialize_weights_zero3", gather):
        yield
