"""What operations make a card do, for their seconds: products and attention in FLOPs, what they move in bytes.

Products are kept one by one by type, FLOPs and bytes, as each is bound by its own; of attention the FLOPs, of all else
the bytes that are read and written. Views, and tensors whose elements nobody writes, cost nothing.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch.utils._pytree import tree_iter

aten = torch.ops.aten
ATTENTION = frozenset(
    (
        *(aten._scaled_dot_product_fused_attention_overrideable, aten._flash_attention_forward),
        *(aten._scaled_dot_product_fused_attention_overrideable_backward, aten._flash_attention_backward),
    )
)
PICKING = frozenset(
    (aten.embedding, aten.index, aten.index_select, aten.gather, aten.embedding_dense_backward, aten.index_add_)
)
"""Operations that touch as many elements as they return, or are given, of the larger of their inputs."""
NOTHING = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_unsafe_view", "detach")
CAUSAL_PARTS = 2
"""A fused kernel computes half of causal attention (``CAUSAL_FRACTION`` of the planner's roofline)."""
CAUSAL = "is_causal"
TF32 = "tf32"
Kind = Literal["product", "attention", "moved", "copied"]


class OperationWork(NamedTuple):
    """``copied``: over the bus. ``dtype`` is what a product computes in."""

    kind: Kind
    dtype: str
    flops: int
    num_bytes: int


@dataclass
class Work:
    """The work of one phase of one step."""

    products: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    """How many of each type, FLOPs and bytes."""
    attention_flops: Counter[str] = field(default_factory=Counter)
    """By type, half of them where attention is causal."""
    moved_bytes: int = 0
    copied_bytes: int = 0
    num_kernels: int = 0

    def add(self, one: OperationWork) -> None:
        self.num_kernels += 1
        if one.kind == "product":
            self.products[one.dtype, one.flops, one.num_bytes] += 1
        elif one.kind == "attention":
            self.attention_flops[one.dtype] += one.flops
        elif one.kind == "copied":
            self.copied_bytes += one.num_bytes
        else:
            self.moved_bytes += one.num_bytes

    def as_json(self) -> dict[str, Any]:
        return {
            "products": [[*key, count] for key, count in self.products.items()],
            "attention_flops": dict(self.attention_flops),
            "moved_bytes": self.moved_bytes,
            "copied_bytes": self.copied_bytes,
            "num_kernels": self.num_kernels,
        }


def work_of(func: Any, args: Any, kwargs: Any, result: Any, flops: int) -> OperationWork | None:
    """What an operation of ``flops`` makes the card do; None for one that does nothing there."""
    name = func._schema.name.rpartition("::")[2]
    if name in NOTHING or _is_view(func):
        return None
    inputs, outputs = list(_tensors((args, kwargs))), list(_tensors(result))
    places = {tensor.device.type for tensor in (*inputs, *outputs)}
    if places <= {"cpu", "meta"}:
        return None
    if len(places - {"meta"}) > 1 and "copy" in name:
        return OperationWork("copied", "", 0, sum(map(_size, outputs)))
    packet = func._overloadpacket
    if packet in ATTENTION:
        return OperationWork("attention", _computed_in(inputs), flops // _parts(func, args, kwargs), 0)
    num_bytes = _moved_bytes(func, packet, inputs, outputs)
    if flops:
        return OperationWork("product", _computed_in(inputs), flops, num_bytes)
    return OperationWork("moved", "", 0, num_bytes)


def _tensors(item: Any) -> Iterator[torch.Tensor]:
    return (one for one in tree_iter(item) if isinstance(one, torch.Tensor))


def _is_view(func: Any) -> bool:
    """Whether all that it returns are other views of what it is given."""
    aliases = [one.alias_info for one in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _size(tensor: torch.Tensor) -> int:
    """Bytes of its elements, each of those that are expanded once."""
    return min(tensor.numel() * tensor.element_size(), max(1, tensor.untyped_storage().nbytes()))


def _moved_bytes(func: Any, packet: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    """What is read and written: what is changed in place is both."""
    if packet in PICKING:
        return 2 * min(map(_size, (*outputs, *inputs[-1:]))) + sum(map(_size, inputs[1:]))
    written = sum(map(_size, outputs))
    if not outputs:  # a list of tensors that change in place
        written = sum(_size(one) for one in inputs)
    return sum(map(_size, inputs)) + written


def _computed_in(inputs: list[torch.Tensor]) -> str:
    dtype = next((one.dtype for one in inputs if one.is_floating_point()), torch.float32)
    if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        return TF32
    return str(dtype).removeprefix("torch.")


def _parts(func: Any, args: Any, kwargs: Any) -> int:
    """How many times as many FLOPs are counted as are computed."""
    places = [place for place, one in enumerate(func._schema.arguments) if one.name == CAUSAL]
    is_causal = kwargs.get(CAUSAL, args[places[0]] if places and places[0] < len(args) else False)
    return CAUSAL_PARTS if is_causal else 1
