"""Functions of torch that are one instruction each, whatever they do inside.

What a product does depends on whether a gradient is needed (``should_fold`` in
``aten/src/ATen/native/LinearAlgebra.cpp``), which a capture, where none is, would not see; what dropout does depends on
the device (``is_fused_kernel_acceptable`` in ``aten/src/ATen/native/Dropout.cpp``).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from vlmplan_trainer.capture.operations import Capture

FUNCTIONS = (
    (torch.nn.functional, "linear"),
    (torch.nn.functional, "dropout"),
    (torch, "matmul"),
    (torch.Tensor, "matmul"),
    (torch.Tensor, "__matmul__"),
)


@contextmanager
def functions_captured(capture: Capture) -> Iterator[None]:
    """Within, each product with a matrix is one instruction, and so is what drops out."""
    before = [getattr(owner, name) for owner, name in FUNCTIONS]
    try:
        for (owner, name), function in zip(FUNCTIONS, before, strict=True):
            setattr(owner, name, _captured(capture, name, function))
        yield
    finally:
        for (owner, name), function in zip(FUNCTIONS, before, strict=True):
            setattr(owner, name, function)


def _captured(capture: Capture, name: str, function: Any) -> Any:
    if name == "dropout":
        return _dropout(capture, function)
    return _product(capture, function, is_linear=name == "linear")


def _product(capture: Capture, function: Any, *, is_linear: bool) -> Any:
    def product(*args: Any, **kwargs: Any) -> Any:
        operands = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
        is_of_matrix = is_linear or (len(operands) > 1 and operands[1].dim() == 2 < operands[0].dim())
        is_of_tokens = capture.is_in_language or any(capture.is_of_tokens(tensor) for tensor in operands)
        if not capture.is_on or capture.depth or not is_of_matrix or is_of_tokens:
            return function(*args, **kwargs)
        capture.depth += 1
        try:
            result = function(*args, **kwargs)
        finally:
            capture.depth -= 1
        numbers = [capture.operand(tensor) for tensor in operands]
        copies = not is_foldable(operands[0])
        capture.add("linear", numbers, [capture.output(result)], copies=copies, is_transposed=not is_linear)
        return result

    return product


def _dropout(capture: Capture, function: Any) -> Any:
    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        is_watched = capture.is_on and not capture.depth and not capture.is_in_language
        if not is_watched or capture.is_of_tokens(input) or not training or not p:
            return function(input, p, training, inplace)
        capture.depth += 1
        try:
            result = torch.empty_like(input)
        finally:
            capture.depth -= 1
        capture.add("native_dropout", [capture.operand(input)], [capture.output(result)], probability=float(p))
        return result

    return dropout


def is_foldable(x: torch.Tensor) -> bool:
    """Whether the rows of x are those of a matrix as they lie."""
    rows = [(size, stride) for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    return all(stride == size * inner for (_, stride), (size, inner) in pairwise(rows))
