"""Linears whose weight is in 8 bits (LLM.int8): inputs are quantised for each product, and kept to the end.

Source: bitsandbytes 0.50 ``nn/modules.py`` (``Linear8bitLt``, ``Int8Params``), ``autograd/_functions.py``
(``MatMul8bitLt``), ``backends/cuda/ops.py`` (``int8_vectorwise_quant``, ``int8_mm_dequant``) and
``backends/default/ops.py`` (``int8_mixed_scaled_mm``, ``int8_scaled_mm``).

- The weight is one byte an element and a float32 scale for each row (``SCB``).
- Forward quantises the input by rows, in float16 whatever its type is, but for the columns in which some value reaches
  the threshold: these are multiplied in 16 bits with the same columns of the weight. The product of bytes is int32,
  then float16, then of the input's type.
- The input and its outlier columns are attributes of the graph node (``ctx.tensors``), not saved tensors. So they stay
  as long as the graph, until the loss is dropped, and activation checkpointing does not see them: its first forward
  keeps them too. Only what runs again has a graph that goes at once.
- Backward makes the weight whole in the input's type, and multiplies the gradient by it. It does not use the input,
  which is there for the weight's own gradient.

How many columns are outliers a batch decides: ``OUTLIER_COLUMNS`` says what is assumed. A product of bytes is counted
as one of 16 bits: on tensor cores it may take half of that, which the paper found only of large layers (arXiv
2208.07339, appendix D); what quantising and scaling move is counted as it is. Nor does the time count that the host
waits for each input's outliers (``outliers.any()``).
"""

from collections.abc import Sequence
from math import prod

from vlmplan.architecture import ops
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.packed_weight import LEAST_BLOCK_BYTES, PackedLinear
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.recipe.choices import OUTLIER_COLUMNS
from vlmplan.units import DType


def int8_bytes(rows: int, columns: int) -> int:
    """Bytes of a weight in 8 bits with its rows' scales, in whole blocks of the allocator, and of the numbers of the
    last input's outlier columns (``state.idx``).

    >>> int8_bytes(1024, 512) == 1024 * 512 + 4 * 1024 + 512
    True
    """
    sizes = (rows * columns, rows * DType.FLOAT32.num_bytes, OUTLIER_COLUMNS * DType.INT64.num_bytes)
    return sum([-(-num_bytes // LEAST_BLOCK_BYTES) * LEAST_BLOCK_BYTES for num_bytes in sizes])


class Linear8bitLt(PackedLinear):
    """``bnb.nn.Linear8bitLt`` with ``has_fp16_weights=False``, as transformers makes it."""

    def __init__(self, base: Linear) -> None:
        rows, numel = base.out_features, base.weight.numel
        super().__init__(base, int8_bytes(rows, numel // rows), numel)

    def forward(self, x: Tensor) -> Tensor:
        tape = x.tape
        node = tape.node((x,), _matmul_8bit_backward, meta=(x.shape, x.dtype, self.weight))
        kept = ops.copy(x.detached()) if self.copies_input and x.shape[0] > 1 else x.detached()
        out, outliers = self._product(kept)
        tape.attach(node, kept, outliers)
        out.node = node
        return ops.part(out, *out.shape) if self.copies_gradient else out

    def dequantised(self, dtype: DType, tape: ForwardTape) -> Tensor:
        """``int8_vectorwise_dequant``, float32 whatever ``dtype`` says: ``A * stats.view(-1, 1) * (1 / 127)``."""
        del dtype
        with tape.charged_to(Kind.TEMPORARY):
            scaled = tape.tensor(self.weight.shape, DType.FLOAT32)
        made = tape.tensor(self.weight.shape, DType.FLOAT32)
        tape.move(self.weight.num_bytes + 2 * scaled.num_bytes + made.num_bytes)
        del scaled
        return made

    def _product(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``int8_mixed_scaled_mm`` of a quantised input: the result, and the outlier columns of ``x``."""
        tape, width = x.tape, x.shape[-1]
        rows, num_outliers = x.numel // width, min(OUTLIER_COLUMNS, width)
        with tape.charged_to(Kind.TEMPORARY):
            quantised, row_scales = _quantised(x, rows)
        outliers = tape.tensor((rows, num_outliers), x.dtype)
        with tape.charged_to(Kind.TEMPORARY):
            columns = self._dequantised_columns(num_outliers, x.dtype, tape)
            scaled = self._scaled_product(x, quantised, rows)
        # addmm, which autocast casts for
        dtype = x.dtype if tape.autocast is None else tape.autocast
        with tape.charged_to(Kind.TEMPORARY):
            casts = [ops.to(one, dtype) for one in (outliers, columns, scaled)]
        out = tape.tensor((*x.shape[:-1], self.out_features), dtype)
        tape.matmul(2 * rows * num_outliers * self.out_features, sum(one.num_bytes for one in (*casts, out)), dtype)
        del casts, scaled, columns, quantised, row_scales
        return out, outliers

    def _dequantised_columns(self, num_outliers: int, dtype: DType, tape: ForwardTape) -> Tensor:
        """The weight's columns of the outliers, in the input's type."""
        shape = (self.out_features, num_outliers)
        as_bytes = tape.tensor(shape, DType.UINT8)
        scaled = tape.tensor(shape, DType.FLOAT32)
        whole = tape.tensor(shape, DType.FLOAT32)
        del scaled, as_bytes
        return ops.to(whole, dtype)

    def _scaled_product(self, x: Tensor, quantised: Tensor, rows: int) -> Tensor:
        """``int8_scaled_mm``: int32, float16, then the input's type; a bias is added in place."""
        tape, shape = x.tape, (*x.shape[:-1], self.out_features)
        integers = tape.tensor(shape, DType.INT32)
        hbm_bytes = quantised.num_bytes + self.weight.num_bytes + integers.num_bytes
        tape.matmul(2 * rows * x.shape[-1] * self.out_features, hbm_bytes, DType.FLOAT16)
        halves = tape.tensor(shape, DType.FLOAT16)
        tape.move(integers.num_bytes + halves.num_bytes)
        if self.bias is not None and self.bias.dtype is not DType.FLOAT16:
            tape.move(2 * halves.num_bytes)
        scaled = ops.to(halves, x.dtype)
        del integers
        return scaled


def _quantised(x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """``int8_vectorwise_quant`` of ``x.to(float16)``: bytes, and a scale for each row."""
    tape = x.tape
    halves = ops.to(x, DType.FLOAT16)
    row_scales = tape.tensor((rows,), DType.FLOAT32)
    quantised = tape.tensor(x.shape, DType.UINT8)
    sizes = tape.tensor(x.shape, DType.FLOAT16)
    is_outlier = tape.tensor(x.shape, DType.BOOL)
    tape.move(2 * halves.num_bytes + sizes.num_bytes)
    tape.move(sizes.num_bytes + is_outlier.num_bytes)
    del sizes
    tape.move(2 * is_outlier.num_bytes, 2)
    tape.move(halves.num_bytes + quantised.num_bytes)
    return quantised, row_scales


def _matmul_8bit_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    shape, dtype, weight = node.meta
    tape = g.tape
    with tape.charged_to(Kind.TEMPORARY):
        whole = _whole(weight, dtype, tape)
        g = ops.to(g, dtype)
    grad_x = tape.tensor(shape, dtype)
    tape.matmul(2 * grad_x.numel * (weight.numel // shape[-1]), grad_x.num_bytes + whole.num_bytes + g.num_bytes, dtype)
    del whole
    return (grad_x,)


def _whole(weight: Parameter, dtype: DType, tape: ForwardTape) -> Tensor:
    """``CB.to(dtype, copy=True).mul_(SCB.unsqueeze(1).mul(1 / 127))``."""
    whole = tape.tensor((weight.shape[0], prod(weight.shape[1:])), dtype)
    tape.move(weight.num_bytes + whole.num_bytes)
    scales = tape.tensor((weight.shape[0],), DType.FLOAT32)
    tape.move(2 * whole.num_bytes)
    del scales
    return whole
