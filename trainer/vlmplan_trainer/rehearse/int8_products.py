"""LLM.int8's operations as bitsandbytes has them on CUDA, whose kernels no fake tensor meets.

Source: bitsandbytes 0.50 ``backends/cuda/ops.py`` and ``backends/default/ops.py``. What its own fake kernels say of
them has no number of outlier columns and nothing of what they make on the way.
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from vlmplan.recipe.choices import OUTLIER_COLUMNS
from vlmplan_trainer.rehearse.replaced import replaced

STEP = 1 / 127
"""Of a scale, by which a byte counts."""


@contextmanager
def quantising_for_products() -> Iterator[None]:
    """Quantise inputs, with as many outlier columns as are planned, for products with weights of 8 bits."""
    importlib.import_module("bitsandbytes")  # registers the operations
    packed: Any = torch.ops.bitsandbytes
    with ExitStack() as stack:
        for operation, function in (
            (packed.int8_vectorwise_quant, quantised),
            (packed.int8_vectorwise_dequant, dequantised),
            (packed.int8_scaled_mm, scaled_product),
        ):
            stack.enter_context(replaced(operation, "default", function))
        stack.enter_context(replaced(packed, "int8_mixed_scaled_mm", mixed_product))
        yield


def quantised(x: torch.Tensor, threshold: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Bytes, a scale for each row, and which columns are outliers."""
    row_scales = x.new_empty((x.numel() // x.shape[-1],), dtype=torch.float32)
    in_bytes = torch.empty_like(x, dtype=torch.int8)
    if threshold == 0.0:
        return in_bytes, row_scales, None
    is_outlier = x.abs() >= threshold
    is_outlier.any()
    is_outlier.any(dim=0)
    columns = torch.arange(min(OUTLIER_COLUMNS, x.shape[-1]), device=x.device)
    in_bytes[:, columns] = 0
    return in_bytes, row_scales, columns


def dequantised(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight in float32."""
    return weight * scales.view(-1, 1) * STEP


def scaled_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    row_scales: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The product of bytes, which the kernel writes in float16; its int32 has a name until all is over."""
    del row_scales, scales
    product: Any = torch.ops.bitsandbytes.int8_linear_matmul.default
    integers = product(x, weight)
    halves = torch.empty_like(integers, dtype=torch.float16)
    if bias is not None and bias.dtype != torch.float16:
        halves.add_(bias)
    return halves.to(dtype or torch.float16)


def mixed_product(
    x: torch.Tensor,
    in_bytes: torch.Tensor,
    weight: torch.Tensor,
    row_scales: torch.Tensor,
    scales: torch.Tensor,
    columns: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The product of bytes, and to it that of the outlier columns; with these."""
    assert columns is not None
    outliers = x[:, columns].contiguous()
    opposite = dequantised(weight[:, columns].contiguous(), scales).to(x.dtype).t()
    result = scaled_product(in_bytes, weight, row_scales, scales, bias, x.dtype)
    return result.addmm(outliers, opposite), outliers
