"""What Muon's update of one matrix allocates and computes (deepspeed 0.19.8 ``runtime/zero/muon/original_muon.py``).

``muon_update`` with its default, ``zeropower_via_gram_newtonschulz`` in five steps, tensor by tensor as PyTorch runs it
without a compiler. Sizes: ``n`` elements, of each of the matrices of a stack r x r on the shorter side and r x m whole;
``w`` bytes of an element of the gradient, ``c`` of what is computed in. A stack of matrices is one batch.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

from vlmplan.units import DType

NUM_STEPS: Final = 5
RESTART_AT: Final = 2
"""The step before which the product so far is applied, and the square begun anew."""
FLAG_BYTES: Final = 1
COMPUTE: Final = DType.FLOAT16
"""In which the iteration runs where the accelerator can (``ns_compute_dtype``)."""


class Allocation(NamedTuple):
    """A tensor of so many bytes comes under a name, or goes where it has none."""

    name: str
    num_bytes: int


class _Names:
    """Names of a Python function and their tensors. One that is given again lets its old tensor go, after the new one
    is there."""

    def __init__(self) -> None:
        self.events: list[Allocation] = []
        self._tensors: dict[str, str] = {}
        self._count = 0

    def set(self, name: str, num_bytes: int) -> None:
        self._count += 1
        tensor = f"{name} {self._count}"
        self.events.append(Allocation(tensor, num_bytes))
        self.drop(name)
        self._tensors[name] = tensor

    def drop(self, *names: str) -> None:
        for name in names:
            if tensor := self._tensors.pop(name, None):
                self.events.append(Allocation(tensor, 0))

    def move(self, name: str, new_name: str) -> None:
        """``new_name`` means the tensor of ``name`` from here on."""
        tensor = self._tensors.pop(name)
        self.drop(new_name)
        self._tensors[new_name] = tensor

    def sum(self, name: str, num_bytes: int, terms: Sequence[Sequence[int]]) -> None:
        """``name`` becomes a sum of products; of each the tensors that it makes, the last of which stays."""
        for number, sizes in enumerate(terms):
            for part, size in enumerate(sizes):
                self.set(f"term {number} {part}", size)
            self.drop(*(f"term {number} {part}" for part in range(len(sizes) - 1)))
        self.set("sum", num_bytes)
        self.drop(*(f"term {number} {len(sizes) - 1}" for number, sizes in enumerate(terms)))
        self.move("sum", name)


@lru_cache(maxsize=1024)
def muon_update(shape: tuple[int, ...], dtype: DType, compute: DType) -> tuple[Allocation, ...]:
    """The tensors of one update besides gradient and momentum, in order. What is left at the end is the result, in
    the type of the gradient."""
    n, w = prod(shape), dtype.num_bytes
    names = _Names()
    _look_for_infinities(names, n, w)
    names.sum("momentum", n * w, [(n * w,)])  # ``where`` of the momentum moved towards the gradient
    names.drop("momentum")
    _orthogonalise(names, _matrices(shape), dtype, compute)
    if compute is not dtype:
        names.set("X", n * w)
    names.set("X", n * w)  # ``where`` of the update or, where it is not finite, the gradient
    return tuple(names.events)


def _look_for_infinities(names: _Names, n: int, w: int) -> None:
    """``torch.isfinite`` is ``(self == self) * (self.abs() != inf)`` (``TensorCompare.cpp``)."""
    names.set("is a number", n * FLAG_BYTES)
    names.set("absolute", n * w)
    names.set("is no infinity", n * FLAG_BYTES)
    names.set("is finite", n * FLAG_BYTES)
    names.drop("is a number", "absolute", "is no infinity", "is finite")


def _orthogonalise(names: _Names, sides: "Sides", dtype: DType, compute: DType) -> None:
    n, square = sides.numel, sides.stacked * sides.short**2
    norm = DType.FLOAT32 if dtype is DType.FLOAT16 else dtype
    if norm is not dtype:
        names.set("X", n * norm.num_bytes)
    names.set("of norm 1", n * norm.num_bytes)
    if compute is not norm:
        names.set("X", n * compute.num_bytes)
        names.drop("of norm 1")
    else:
        names.move("of norm 1", "X")
    whole, root = n * compute.num_bytes, square * compute.num_bytes
    if sides.long == sides.short:
        for _ in range(NUM_STEPS):
            names.set("A", root)
            names.sum("B", root, [(root,), (root, root)])
            names.sum("X", whole, [(whole,), (whole,)])
        names.drop("A", "B")
        return
    names.set("R", root)
    for step in range(NUM_STEPS):
        if step == RESTART_AT:
            names.set("X", whole)
            names.set("R", root)
            names.drop("Q")
        names.sum("Z", root, [(root,), (root, root)])
        if step in (0, RESTART_AT):
            names.set("Q", root)
        else:
            names.sum("Q", root, [(root,), (root,)])
        if _goes_on(step):
            names.sum("RZ", root, [(root,), (root,)])
            names.sum("R", root, [(root,), (root,)])
    names.set("X", whole)
    names.drop("R", "Z", "Q", "RZ")


def _goes_on(step: int) -> bool:
    """Whether the square is needed once more."""
    return step < NUM_STEPS - 1 and step + 1 != RESTART_AT


class Sides(NamedTuple):
    """A stack of matrices by their number, their shorter and their longer side."""

    stacked: int
    short: int
    long: int

    @property
    def numel(self) -> int:
        return self.stacked * self.short * self.long


def _matrices(shape: tuple[int, ...]) -> Sides:
    """The last two dimensions are matrices; a convolution over two of them is one matrix."""
    if len(shape) == 4:
        shape = (shape[0], prod(shape[1:]))
    *stack, rows, columns = shape
    return Sides(prod(stack), min(rows, columns), max(rows, columns))


@lru_cache(maxsize=1024)
def peak_bytes(shape: tuple[int, ...], dtype: DType, compute: DType) -> int:
    """The most that ``muon_update`` has at once, its result among it."""
    sizes: dict[str, int] = {}
    live = most = 0
    for name, num_bytes in muon_update(shape, dtype, compute):
        live += num_bytes - sizes.get(name, 0)
        sizes[name] = num_bytes
        most = max(most, live)
    return most


@lru_cache(maxsize=1024)
def update_flops(shape: tuple[int, ...]) -> int:
    """Floating point operations of the matmuls of one update: 30 r^3 of square matrices, else 28 r^3 + 8 r^2 m."""
    count, r, m = _matrices(shape)
    cube, rectangle = 2 * r**3, 2 * r * r * m
    if r == m:
        return count * NUM_STEPS * 3 * cube
    goes_on = sum(map(_goes_on, range(NUM_STEPS)))
    applied = NUM_STEPS - 2  # the first of each half is a copy
    return count * ((NUM_STEPS + applied + 2 * goes_on) * cube + 4 * rectangle)


@lru_cache(maxsize=1024)
def moved_bytes(shape: tuple[int, ...], dtype: DType, compute: DType) -> int:
    """Bytes that the update reads and writes besides its matmuls: every tensor that it makes is written once and read
    once or twice, which is counted as three times its bytes."""
    return 3 * sum(num_bytes for _, num_bytes in muon_update(shape, dtype, compute))
