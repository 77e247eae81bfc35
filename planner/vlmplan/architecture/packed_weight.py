"""Linears whose weight bitsandbytes packs, and those of 4 bits (QLoRA), which dequantise it for every matmul.

Source: bitsandbytes 0.50 ``nn/modules.py`` (``Linear4bit``), ``autograd/_functions.py`` (``MatMul4Bit``),
``functional.py`` (``dequantize_4bit``) and ``backends/cuda/ops.py`` (``_dequant_linear_fallback``).
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType

NF4_BLOCK = 64
"""Weights per 4-bit block with one scale (bitsandbytes' default ``blocksize``)."""
NF4_SCALE_BLOCK = 256
"""Scales per block of the second quantisation."""
NF4_CODE_BYTES = 16 * DType.FLOAT32.num_bytes
"""The 16 values that four bits stand for, of every packed weight (``get_4bit_type`` in bitsandbytes 0.50
``functional.py``)."""
NF4_SCALE_CODE_BYTES = 256 * DType.FLOAT32.num_bytes
"""The 256 values that a scale of one byte stands for (``quantize_blockwise``, which copies its table)."""
LEAST_BLOCK_BYTES = 512
"""Of a tensor on a GPU (``kMinBlockSize`` in torch 2.13 ``c10/cuda/CUDACachingAllocator.cpp``)."""


def nf4_bytes(numel: int, *, double_quantises: bool = True) -> int:
    """Bytes of ``numel`` weights in NF4: half a byte each and a scale per 64, in whole blocks of the allocator.

    A scale is a float32, or with double quantisation one byte, and a float32 for every 256 of them:
    4 + 8/64 + 32/(64 * 256) = 4.127 bits a weight against 4 + 32/64 = 4.5. Source: Dettmers et al., QLoRA,
    arXiv 2305.14314, section 3; ``quantize_4bit(compress_statistics=True)``. Beside them are tables of the values that
    are coded, and with double quantisation the scales' mean, 2 kB in all of however small a weight.
    """
    return sum(nf4_sizes(numel, double_quantises=double_quantises))


def nf4_sizes(numel: int, *, double_quantises: bool) -> list[int]:
    """Those of each tensor, first of the elements."""
    num_blocks, width = -(-numel // NF4_BLOCK), DType.FLOAT32.num_bytes
    tensors = [-(-numel // 2), NF4_CODE_BYTES]
    if double_quantises:
        tensors += [width, NF4_SCALE_CODE_BYTES, num_blocks, width * -(-num_blocks // NF4_SCALE_BLOCK)]
    else:
        tensors.append(width * num_blocks)
    return [-(-num_bytes // LEAST_BLOCK_BYTES) * LEAST_BLOCK_BYTES for num_bytes in tensors]


class PackedLinear(Module):
    """A Linear that bitsandbytes has put in the place of ``base``: its weight is frozen and takes ``stored_bytes``, of
    which ``packed_bytes`` are elements and the others say what they stand for."""

    def __init__(self, base: Linear, stored_bytes: int, packed_bytes: int) -> None:
        self.in_features, self.out_features = base.in_features, base.out_features
        self.copies_input, self.copies_gradient = base.copies_input, base.copies_gradient
        self.weight = base.weight
        self.weight.stored_bytes, self.weight.packed_bytes = stored_bytes, packed_bytes
        self.weight.requires_grad = False
        self.bias = base.bias

    def dequantised(self, dtype: DType, tape: ForwardTape) -> Tensor:
        """The whole weight as peft reads it, in ``dtype`` where that is the packing's to choose."""
        raise NotImplementedError(type(self).__name__)

    def bias_dtype(self, dtype: DType) -> DType:
        """The type in which its forward on an x of ``dtype`` leaves the bias for good: that of what it multiplies."""
        return dtype


class Linear4bit(PackedLinear):
    """``bnb.nn.Linear4bit``: the weight is dequantised for each product and kept packed in between.

    Kernels that multiply packed weights are for few tokens, at most 1,536 and mostly 64 to 512 by card and shape
    (``_gemm_4bit_use_custom_cuda``), and in forward alone; they are not planned.
    """

    def __init__(self, base: Linear, compute_dtype: DType, *, double_quantises: bool) -> None:
        numel = base.weight.numel
        super().__init__(base, nf4_bytes(numel, double_quantises=double_quantises), -(-numel // 2))
        self.compute_dtype = compute_dtype

    def forward(self, x: Tensor) -> Tensor:
        """The product. Scales that are quantised too are there twice beside the weight, less their mean and with it."""
        dtype = x.dtype
        x = ops.to(x, self.compute_dtype)
        tape = x.tape
        # MatMul4Bit keeps the packed weight only: no activation is saved for it.
        node = tape.node((x,), _matmul_4bit_backward, meta=(x.shape, x.dtype, self.weight))
        with tape.charged_to(Kind.TEMPORARY):
            scales = [*_float32_scales(self.weight, tape), *_float32_scales(self.weight, tape)]
            whole = tape.tensor((self.out_features, self.in_features), x.dtype)
        out = tape.tensor((*x.shape[:-1], self.out_features), x.dtype, node)
        tape.move(self.weight.num_bytes + whole.num_bytes)
        tape.matmul(2 * x.numel * self.out_features, x.num_bytes + whole.num_bytes + out.num_bytes, x.dtype)
        del scales, whole
        out = ops.to(ops.part(out, *out.shape) if self.copies_gradient else out, dtype)
        return out  # what it was cast of goes before the input that was cast

    def dequantised(self, dtype: DType, tape: ForwardTape) -> Tensor:
        return dequantised(self.weight, dtype, tape)

    def bias_dtype(self, dtype: DType) -> DType:
        return self.compute_dtype


def dequantised(weight: Parameter, dtype: DType, tape: ForwardTape) -> Tensor:
    """The whole weight (``dequantize_4bit``), made with its scales in float32 beside it."""
    with tape.charged_to(Kind.TEMPORARY):
        scales = _float32_scales(weight, tape)
    made = tape.tensor(weight.shape, dtype)
    del scales
    tape.move(weight.num_bytes + made.num_bytes)
    return made


def _float32_scales(weight: Parameter, tape: ForwardTape) -> list[Tensor]:
    """The scales of blocks written out in float32, where they are quantised themselves; others are stored so."""
    if weight.stored_bytes != nf4_bytes(weight.numel, double_quantises=True):
        return []
    return [tape.tensor((-(-weight.numel // NF4_BLOCK),), DType.FLOAT32)]


def _matmul_4bit_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    shape, dtype, weight = node.meta
    tape = g.tape
    with tape.charged_to(Kind.TEMPORARY):
        whole = ops.to(dequantised(weight, weight.dtype, tape), g.dtype)
    grad_x = tape.tensor(shape, dtype)
    tape.matmul(2 * grad_x.numel * (weight.numel // shape[-1]), grad_x.num_bytes + whole.num_bytes + g.num_bytes, dtype)
    del whole
    return (grad_x,)
