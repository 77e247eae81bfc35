"""Bytes that an optimizer keeps per weight, and what its update allocates for a moment.

``n`` elements are updated in the element type ``dtype`` (float32 master weights, or the weights' own type). Sources:
torch 2.13 ``torch/optim/adamw.py`` and ``sgd.py``; bitsandbytes 0.50 ``optim/optimizer.py``; torchao 0.18 ``optim``;
transformers 5.23 ``optimization.py`` (Adafactor); EasyR1@b44b311b ``verl/utils/torch_functional.py``
(AnyPrecisionAdamW).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import TORCHAO_BITS, TORCHAO_BLOCK, OptimizerKind, Precision
from vlmplan.units import DType

NORM_BYTES = 8
"""A gradient's norm is taken in float64 under ZeRO (``get_norm_dtype`` in ``zero/utils.py``)."""
NORM_PIECE = 65_536
"""Elements of which one block of threads adds up the squares (``kChunkSize`` in ``cuda/MultiTensorApply.cuh``)."""
MIN_8BIT_ELEMENTS = 4096
"""Smaller tensors keep 32-bit moments (bitsandbytes' ``min_8bit_size``)."""
MOMENT_BLOCK = 256
"""Elements per scale of an 8-bit moment (bitsandbytes' blockwise optimizers)."""
MIN_PAGED_ELEMENTS = 100_000
"""Smaller moments are not paged (``get_state_buffer``)."""
NUM_MOMENTS: Mapping[OptimizerKind, int] = {
    OptimizerKind.ADAMW_8BIT: 2,
    OptimizerKind.PAGED_ADAMW: 2,
    OptimizerKind.PAGED_ADAMW_8BIT: 2,
    OptimizerKind.LION: 1,
    OptimizerKind.LION_8BIT: 1,
    OptimizerKind.PAGED_LION: 1,
    OptimizerKind.PAGED_LION_8BIT: 1,
}
"""Of bitsandbytes' optimizers: ``Optimizer2State`` and ``Optimizer1State``."""


MIN_TORCHAO_ELEMENTS = 4096
"""Smaller tensors keep moments in their own type, and so do those that blocks do not fill (``_new_buffer``)."""


def state_bytes(recipe: Recipe, shapes: Sequence[tuple[int, ...]], dtype: DType) -> int:
    """Bytes of optimizer states on the device after the first step, for tensors of ``shapes``.

    AdamW keeps two moments in the tensor's type, also of what Muon leaves to it; 8-bit AdamW two bytes and two scales
    per block; torchao's two of 8 or 4 bits, scales and tables; SGD a momentum; Lion one moment in float32, 8-bit Lion a
    byte and a scale per block, paged AdamW two moments in float32; Adafactor a float32 row and column sum per matrix,
    but a whole float32 tensor for what is one-dimensional. AnyPrecisionAdamW keeps two moments and a compensation in
    bfloat16.
    Paged moments live in host memory and are not counted here.
    """
    return sum([count * sum(state_sizes(recipe.optimizer, shape, dtype)) for shape, count in Counter(shapes).items()])


def state_sizes(kind: OptimizerKind, shape: tuple[int, ...], dtype: DType) -> list[int]:
    """Bytes of each state of one tensor that is on the device, in the order in which they are made."""
    numel = prod(shape)
    if kind.has_adamw:
        return [numel * dtype.num_bytes] * 2
    if kind is OptimizerKind.SGD:
        return [numel * dtype.num_bytes]
    if kind is OptimizerKind.ADAFACTOR:
        if len(shape) < 2:
            return [numel * DType.FLOAT32.num_bytes]
        return [numel // shape[axis] * DType.FLOAT32.num_bytes for axis in (-1, -2)]
    if kind is OptimizerKind.ANY_PRECISION_ADAMW:
        return [numel * DType.BFLOAT16.num_bytes] * 3
    if kind.is_torchao:
        return _torchao_sizes(kind, numel, dtype)
    num_moments, is_paged = NUM_MOMENTS[kind], kind.is_paged and numel >= MIN_PAGED_ELEMENTS
    if is_paged and not kind.is_8bit:
        return []
    if not kind.is_8bit or numel < MIN_8BIT_ELEMENTS:
        return [numel * DType.FLOAT32.num_bytes] * num_moments
    scales = -(-numel // MOMENT_BLOCK) * DType.FLOAT32.num_bytes
    if is_paged:
        return [scales] * num_moments
    return [numel] * num_moments + [scales] * num_moments


def _torchao_sizes(kind: OptimizerKind, numel: int, dtype: DType) -> list[int]:
    """Bytes of the tensors of each moment: codes, a scale for every block, and the table of values that codes mean
    (``OptimState8bit.zeros``, ``OptimState4bit.zeros`` in ``torchao/optim``, 0.18)."""
    bits = torchao_bits(kind, numel)
    if bits is None:
        return [numel * dtype.num_bytes] * 2
    width = DType.FLOAT32.num_bytes
    return [numel * bits // 8, numel // TORCHAO_BLOCK * width, 2**bits * width] * 2


def torchao_bits(kind: OptimizerKind, numel: int) -> int | None:
    """Bits of a moment of a tensor; None where it has the tensor's type."""
    is_quantized = numel >= MIN_TORCHAO_ELEMENTS and numel % TORCHAO_BLOCK == 0
    return TORCHAO_BITS.get(kind) if is_quantized else None


def paged_bytes(recipe: Recipe, shapes: Sequence[tuple[int, ...]]) -> int:
    """Bytes of moments in paged (host) memory."""
    if not recipe.optimizer.is_paged:
        return 0
    numels = [prod(shape) for shape in shapes]
    num_bytes = NUM_MOMENTS[recipe.optimizer] * (1 if recipe.optimizer.is_8bit else DType.FLOAT32.num_bytes)
    return sum(num_bytes * numel for numel in numels if numel >= MIN_PAGED_ELEMENTS)


def update_bytes(recipe: Recipe, shapes: Sequence[tuple[int, ...]], dtype: DType) -> int:
    """Bytes that one update allocates and frees again, gradients in ``dtype`` already there.

    - fused kernels (torch ``fused=True``, bitsandbytes): nothing;
    - foreach AdamW: the square roots of all second moments at once (``_foreach_sqrt`` in ``_multi_tensor_adamw``);
    - foreach SGD with momentum works in place;
    - torchao's are compiled, into one kernel with 8 bits, which makes nothing else, and with 4 bits into several: per
      tensor, for both moments, scales, scaled values in float32 and codes as 64-bit integers, of which two become a
      byte. What Inductor of torch 2.13 generates for compute capability 9.0 was looked at, not run;
    - Adafactor, per tensor: the squared gradient and its sum with eps, then the update and its negative, two float32
      tensors at a time, and float32 copies of a 16-bit gradient and weight. The update of the tensor before has its
      name until that sum is made;
    - AnyPrecisionAdamW, per tensor: the root of the second moment in bfloat16, and that divided; then a copy of the
      weight beside it. Both have their names until the next tensor's are there, of which the first is made beside them.
    """
    return max(map(sum, update_sizes(recipe, shapes, dtype)), default=0)


def plain_update_sizes(recipe: Recipe, by_dtype: Mapping[DType, Sequence[tuple[int, ...]]]) -> list[list[int]]:
    """``update_sizes`` of an optimizer that updates tensors of several types, one type after another.

    The loop of foreach AdamW still names the roots of one type while it makes those of the next
    (``_multi_tensor_adam``; rehearsed), so both are there at once; there are two types at most.
    """
    found = [sizes for dtype, shapes in by_dtype.items() for sizes in update_sizes(recipe, shapes, dtype)]
    is_foreach = recipe.optimizer is OptimizerKind.ADAMW and not recipe.fuses_optimizer
    return [[size for sizes in found for size in sizes]] if is_foreach else found


def update_sizes(recipe: Recipe, shapes: Sequence[tuple[int, ...]], dtype: DType) -> list[list[int]]:
    """The tensors of ``update_bytes``: each list is there at once, one list after another."""
    if recipe.optimizer is OptimizerKind.ADAFACTOR:
        copies = 0 if dtype is DType.FLOAT32 else 2
        wide = [prod(shape) * DType.FLOAT32.num_bytes for shape in shapes]
        return [[own] * (2 + copies) + [before] for own, before in zip(wide, [0, *wide], strict=False)]
    if recipe.optimizer is OptimizerKind.ANY_PRECISION_ADAMW:
        return _any_precision_sizes([prod(shape) for shape in shapes], dtype)
    if recipe.optimizer is OptimizerKind.TORCHAO_ADAMW_4BIT:
        numels = [prod(shape) for shape in shapes]
        return [_packing_sizes(numel) for numel in numels if torchao_bits(recipe.optimizer, numel)]
    if recipe.optimizer.has_adamw and not recipe.fuses_optimizer:
        return [[prod(shape) * dtype.num_bytes for shape in shapes]]
    return []


def _any_precision_sizes(numels: Sequence[int], dtype: DType) -> list[list[int]]:
    """Root and divided root beside those names of the tensor before, then the copy beside the one that is left."""
    moment, found, before = DType.BFLOAT16.num_bytes, list[list[int]](), [0, 0]
    for numel in numels:
        divided, copied = numel * moment, numel * dtype.num_bytes
        found += [[*before, divided, divided], [before[1], divided, copied]]
        before = [divided, copied]
    return found


def norm_sizes(recipe: Recipe, by_dtype: Mapping[DType, Sequence[tuple[int, ...]]]) -> list[int]:
    """Bytes that CUDA takes while ``clip_grad_norm_`` finds the norms of the gradients of each type, with ``by_dtype``
    the shapes of all: one number in float32 for each piece of the largest of them, as many again for every other one
    (``output_per_tensor`` in torch's ``aten/src/ATen/native/cuda/ForeachReduceOp.cu``). Engines of DeepSpeed have norms
    of their own. Hugging Face's Trainer, which runs tasks, asks for norms where it clips nothing too."""
    if not recipe.gradient_clipping and recipe.task is None:
        return []
    pieces = ((len(shapes), -(-max(map(prod, shapes)) // NORM_PIECE)) for shapes in by_dtype.values() if shapes)
    return [count * most * DType.FLOAT32.num_bytes for count, most in pieces]


def _packing_sizes(numel: int) -> list[int]:
    return [size for width in (4 / TORCHAO_BLOCK, 4, 8) for size in [int(numel * width)] * 2]


def overflow_check_bytes(recipe: Recipe) -> int:
    """Bytes per element of looking for infinities in all of a rank's gradients at once, as ZeRO stage 3 does in fp16.

    ``torch.isinf(self.grad_partitions_flat_buffer)`` in ``has_overflow`` is ``self.abs() == inf``
    (``aten/src/ATen/native/TensorCompare.cpp``): absolute values in the type of the gradients, and a byte.
    """
    return recipe.precision.dtype.num_bytes + 1 if recipe.precision is Precision.FP16 else 0
