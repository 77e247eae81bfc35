"""ZeRO-3's loops over ranks, answered without: the same bytes and collectives in a time that does not grow with ranks.

For every message DeepSpeed makes a view of each rank's part (and in reduce_scatter of each rank's part of each
gradient), which with 512 ranks is most of what it does. The parts of other ranks are only put together again, so that
what is allocated follows from the sizes. DeepSpeed 0.19: ``runtime/zero/partition_parameters.py``,
``runtime/comm/coalesced_collectives.py``.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor


def gather_at_once(param: Any) -> None:
    """Let ``all_gather_coalesced`` of a parameter under ZeRO-3 make the view of this rank's part only.

    DeepSpeed makes that function anew for every parameter; what it calls for one dtype is in its closure.
    """
    coalesced = _cell(_cell(param.all_gather_coalesced, "func").cell_contents, "_all_gather_coalesced").cell_contents
    cell = _cell(coalesced, "_all_gather_dtype")
    cell.cell_contents = gathered


def _cell(function: Any, name: str) -> Any:
    return function.__closure__[function.__code__.co_freevars.index(name)]


def gathered(params: Sequence[Any], world_size: int, rank: int, group: Any, dtype: torch.dtype) -> Any:
    """``_all_gather_dtype``: one buffer for all parameters of all ranks, this rank's part filled."""
    import deepspeed.accelerator
    from deepspeed.runtime.zero import partition_parameters

    accelerator: Any = deepspeed.accelerator.get_accelerator()
    device = accelerator.current_device_name()
    is_secondary = params[0].ds_secondary_tensor is not None  # hpZ: shards of a group of ranks
    num_groups = params[0].ds_secondary_tensor_num_of_groups if is_secondary else 1
    size = sum(param.ds_tensor.ds_numel * num_groups for param in params)
    flat = torch.empty(size * world_size, dtype=dtype, device=device, requires_grad=False)
    own = flat.narrow(0, size * rank, size)
    shards = [param.ds_secondary_tensor if is_secondary else param.ds_tensor for param in params]
    torch.cat([shard.to(device).to(dtype) for shard in shards], out=own)
    handle = partition_parameters._dist_allgather_fn(own, flat, group)
    return _handle_class()(
        allgather_handle=handle,
        params=params,
        partitions=[own],
        world_size=world_size,
        use_secondary_tensor=is_secondary,
    )


@cache
def _handle_class() -> Any:
    """DeepSpeed's handle, whose ``wait`` puts each parameter together from the parts of all ranks."""
    import deepspeed.accelerator
    from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle, ZeroParamStatus

    class Gathered(AllGatherCoalescedHandle):
        def wait(self, handle_dependency: bool = True) -> None:
            if self.complete:
                return
            self.allgather_handle.wait()
            params: list[Any] = self.params
            for param in params:
                # in place of ``torch.cat`` of the ranks' parts
                whole = self.partitions[0].new_empty(param.ds_numel).view(param.ds_shape)
                param.data = whole.to(param.ds_tensor.dtype)
                del whole
                param.ds_status = ZeroParamStatus.AVAILABLE
            self.complete = True
            accelerator: Any = deepspeed.accelerator.get_accelerator()
            if not accelerator.is_synchronized_device() and not handle_dependency:
                AllGatherCoalescedHandle.data_buffer.append(self.partitions)

    return Gathered


@torch.no_grad()
def reduce_scatter(tensors: Sequence[Tensor], group: Any = None) -> list[Tensor]:
    """``reduce_scatter_coalesced``: this rank's part of each gradient.

    Gradients are padded to a multiple of the ranks in one buffer; the padding is there until it returns.
    """
    from deepspeed import comm
    from deepspeed.runtime.comm import coalesced_collectives

    rank, num_ranks = comm.get_rank(group), comm.get_world_size(group)
    sizes = [-(-tensor.numel() // num_ranks) for tensor in tensors]
    missing = [num_ranks * size - tensor.numel() for size, tensor in zip(sizes, tensors, strict=True)]
    if len(tensors) == 1 and not missing[0]:
        padding, flat = [], tensors[0].view(-1)
    else:
        padding = [tensor.new_empty(count) for count, tensor in zip(missing, tensors, strict=True) if count]
        flat = tensors[0].new_empty(num_ranks * sum(sizes))
    flat.div_(num_ranks)
    own = flat.narrow(0, rank * sum(sizes), sum(sizes))
    coalesced_collectives._torch_reduce_scatter_fn(flat, own, group=group)
    results, place = [], 0
    for tensor, size in zip(tensors, sizes, strict=True):
        results.append(own.narrow(0, place, min(max(tensor.numel() - rank * size, 0), size)))
        place += size
    del padding
    return results
