"""Operations that a rehearsal answers itself, by what it knows of values, where torch's shape functions do not suffice.

Each is asked with the mode, the operation and its arguments, and returns ``NotImplemented`` where it has no answer.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from vlmplan_trainer.gradient_sums import is_in_place
from vlmplan_trainer.rehearse import finite
from vlmplan_trainer.rehearse.collectives import Collectives
from vlmplan_trainer.rehearse.kernels import masks_in_place
from vlmplan_trainer.rehearse.ledger import Ledger
from vlmplan_trainer.rehearse.values import give_value, value_of

aten = torch.ops.aten
FILLED_ELEMENTS = 1 << 16
"""Integer tensors up to this size have their values from the first where they are made empty."""


class Mode(Protocol):
    """What these operations need of the mode they run under (``Rehearsal``)."""

    ledger: Ledger
    collectives: Collectives

    def counted(self, result: Any, func: Any) -> Any: ...

    def fake_like(self, inputs: Sequence[torch.Tensor]) -> Callable[[Any], Any]: ...

    def unknown_number(self, tensor: torch.Tensor) -> Any: ...

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any: ...


Special = Callable[[Mode, Any, Any, Any], Any]


def _scalar(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    value = value_of(args[0])
    if value is not None:
        with unset_fake_temporarily():
            return value.item()
    return mode.unknown_number(args[0])


def _empty(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    """Small tensors of integers are made to be filled: with what is known, place by place (offsets of samples)."""
    result = func(*args, **kwargs)
    if isinstance(result, FakeTensor) and not result.dtype.is_floating_point and result.numel() <= FILLED_ELEMENTS:
        with unset_fake_temporarily():
            zeros = torch.zeros(result.shape, dtype=result.dtype)
        give_value(result, zeros)
    return mode.counted(result, func)


def _lifted(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    """``torch.tensor(numbers)``. Fake tensors keep such numbers too, and would compute with them on the device."""
    result = func(*args, **kwargs)
    if isinstance(result, FakeTensor) and value_of(args[0]) is not None:
        result.constant = None
        give_value(result, value_of(args[0]))
    return mode.counted(result, func)


TAKES_ALL = "modeling_glm5_next.py", "get_pooled_states"
"""What keeps the groups of keys that have no padding: all of a sample without any. The last group is among them where
the sample does not fill it: the narrow keys of one group, for positions without gradients."""


def _runs_inside(file: str, function: str) -> bool:
    """Whether such a function has asked for the operation that runs."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False


def _indexed(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    """Masks whose values are known become positions, so that the result has a size."""
    indices = []
    changed = False
    for index in args[1]:
        value = None if index is None else value_of(index)
        if index is not None and value is None and index.dtype == torch.bool and _runs_inside(*TAKES_ALL):
            with unset_fake_temporarily():
                value = torch.ones(index.shape, dtype=torch.bool)
        if index is None or index.dtype != torch.bool or value is None:
            indices.append(index)
            continue
        changed = True
        with unset_fake_temporarily():
            positions = [position.contiguous() for position in value.nonzero().unbind(1)]
        indices.extend(mode.fake_like([index])(position) for position in positions)
    if not changed:
        return NotImplemented
    return mode.__torch_dispatch__(func, (), (args[0], indices, *args[2:]), kwargs)


def _finite(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    """Numbers that are not known, such as pixels and losses, are taken to be finite and not zero."""
    found = finite.answer(func, args) if value_of(args[0]) is None else None
    if found is None:
        return NotImplemented
    passing = []
    if func is aten.isinf.default and not args[0].is_cpu:  # all absolute values (``isinf`` in ``TensorCompare.cpp``)
        passing = [args[0].numel() * args[0].element_size()]
    with mode.ledger.passing(passing):
        result = mode.counted(func(*args, **kwargs), func)
    finite.keep(result, found)
    return result


def _pinned(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    """Page-locked memory is host memory; whether a tensor lies in it changes no size."""
    return mode.counted(torch.empty_like(args[0]), func)


def _is_pinned(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0].device.type == "cpu"


def _summed(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    """Two gradients of one tensor, added where the engine would add them, and a mask where attention adds it."""
    if masks_in_place(args[1]):
        return mode.counted(aten.alias.default(args[0]), func)
    return args[0] if is_in_place(args, kwargs, depth=2) else NotImplemented


def exchanged(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    """DeepSpeed's all-to-all among the ranks of a sample, which is an operation of its own."""
    mode.collectives.count("alltoall_base", args[0].numel() * args[0].element_size())
    return NotImplemented


def _split_among_experts(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    """Rows that are sorted by expert and split by how many each got (JetMoE): numbers that are not known read as zeros.
    Each expert gets as many; bytes of all together do not depend on it."""
    x, sizes, *dims = args
    even = known_sizes(x.shape[dims[0] if dims else 0], sizes)
    return NotImplemented if even == sizes else mode.__torch_dispatch__(func, (), (x, even, *dims), kwargs)


CHOOSES_EXPERTS = (
    ("modeling_longcat_flash.py", "get_topk_indices"),
    ("modeling_dbrx.py", "route_tokens_to_experts"),
    ("modeling_step3p7.py", "forward"),
)
"""What chooses experts of mixtures that ask for each which tokens it gets."""


def chosen_experts(shape: torch.Size, num_experts: int) -> torch.Tensor | None:
    """The experts of each token (tokens, experts of each) of a mixture that asks for them: which they are is not known,
    and one comes after another, so that all get as many tokens. None where no such mixture chooses."""
    if not any(_runs_inside(*place) for place in CHOOSES_EXPERTS):
        return None
    with unset_fake_temporarily():
        return (torch.arange(shape.numel()) % num_experts).view(shape)


def _chosen(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    """The experts of each token, with their values where a mixture asks for these."""
    if not any(_runs_inside(*place) for place in CHOOSES_EXPERTS):
        return NotImplemented
    result = mode.counted(func(*args, **kwargs), func)
    give_value(result[1], chosen_experts(result[1].shape, args[0].shape[-1]))
    return result


def known_sizes(num_rows: int, sizes: list[int]) -> list[int]:
    """``sizes`` of the pieces of ``num_rows``, as equal as they can be where all read as zeros."""
    if any(sizes) or not num_rows:
        return sizes
    share, rest = divmod(num_rows, len(sizes))
    return [share + (place < rest) for place in range(len(sizes))]


IN_PLACE: dict[Any, tuple[Any, tuple[str, ...]]] = {
    aten.scatter_add.default: (aten.scatter_add_.default, ("GatherBackward0",)),
    aten.scatter.src: (aten.scatter_.src, ("MaxBackward0", "MinBackward0", "SortBackward0", "TopkBackward0")),
    aten.index_put.default: (aten.index_put_.default, ("IndexBackward0",)),
}
"""What the backward of indexing writes into its own zeros with, and the nodes that do: they make a new tensor only
where a mode such as this one watches (``areAnyTensorSubclassLike`` in torch 2.13 ``TensorAdvancedIndexing.cpp`` and
``FunctionsManual.cpp``: ``gather_backward``, ``value_selecting_reduction_backward``, ``index_backward``)."""


def _written_in_place(mode: Mode, func: Any, args: Any, kwargs: Any) -> Any:
    in_place, nodes = IN_PLACE[func]
    node = torch._C._current_autograd_node()
    if node is None or node.name() not in nodes:
        return NotImplemented
    return mode.__torch_dispatch__(in_place, (), args, kwargs)


SPECIAL: dict[Any, Special] = {
    aten._local_scalar_dense.default: _scalar,
    aten.lift_fresh.default: _lifted,
    aten.lift_fresh_copy.default: _lifted,
    aten.index.Tensor: _indexed,
    **dict.fromkeys((*finite.LOOKED_FOR, *finite.COMPARED, *finite.COMPARED_WITH_NUMBER), _finite),
    aten._pin_memory.default: _pinned,
    aten.is_pinned.default: _is_pinned,
    aten.add.Tensor: _summed,
    aten.split_with_sizes.default: _split_among_experts,
    aten.topk.default: _chosen,
    **dict.fromkeys(IN_PLACE, _written_in_place),
    aten.empty.memory_format: _empty,
}
