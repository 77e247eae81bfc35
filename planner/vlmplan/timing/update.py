"""The optimizer step on the GPU, by memory bandwidth: the bytes that it reads and writes per weight.

Counted kernel by kernel from torch 2.13 (``torch/optim/adam.py``, ``sgd.py``), bitsandbytes 0.50, transformers 5.23
(``Adafactor.step``) and deepspeed 0.19.8's ``step`` around them; rehearsals dispatch the same. Weights do not decay, as
the trainer has it unless asked.
"""

from collections import Counter

from vlmplan.engines.choice import engine_of
from vlmplan.engines.muon_groups import muon_groups
from vlmplan.engines.newton_schulz import COMPUTE, moved_bytes, update_flops
from vlmplan.engines.optimizer_states import NUM_MOMENTS
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.partitions import partition_elements
from vlmplan.hardware import Gpu
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import OptimizerKind, Precision
from vlmplan.timing.rates import Scenario, gpu_rates, measured, memory_bytes_per_second
from vlmplan.units import DType

FUSED_ADAMW_VALUES = 7
"""Gradient, weight and both moments read, weight and moments written, by one kernel."""
FOREACH_ADAMW_VALUES = 3 + 2 + 3 + 2 + 2 + 2 + 4
"""The same in seven kernels (``_multi_tensor_adam``): the first moment's lerp 3, the second moment scaled 2, the square
of the gradient added 3 (the gradient is both factors, and read once), its square root 2, divided 2, plus eps 2, the
update 4."""
SGD_VALUES = 2 + 3 + 3
"""The momentum scaled, the gradient added to it, and it to the weight (``_multi_tensor_sgd``)."""
ADAFACTOR_VALUES = 1 + 2 + 2 + 1 + 1 + 1 + 3 + 1 + 2 + 2 + 2 + 3
"""Of a matrix: its root mean square 1, the squared gradient 2, plus eps 2, means by row and column 1 each, their
product 1, times the gradient 3, its root mean square 1, clipped 2, scaled 2, negated 2, added to the weight 3."""
FLAT_ADAFACTOR_VALUES = ADAFACTOR_VALUES - 1 - 1 - 1 + 2 + 3 + 2
"""Of a flat partition, which has no rows: in place of the means and their product a whole second moment is scaled 2,
added to 3, and its inverse square root taken 2."""
MUON_VALUES = 2 + 3
"""Of what Muon has made orthogonal: the weight decays 2, the update is added 3 (``MuonWithAuxAdam.step``)."""
ONE_KERNEL_VALUES = 3
"""Gradient and weight read, weight written, by one kernel, apart from its moments: bitsandbytes' of 8 bits
(``optimizer_update_8bit_blockwise``) and of 32 (``optimizer_update_32bit``), and torchao's, which are compiled."""
ANY_PRECISION_VALUES = 2 + 2 + 3 + 2 + 3 + 2 + 2 + 2 + 4 + 2 + 3 + 3 + 3
"""Of ``AnyPrecisionAdamW.step``, one kernel after another: the weight decays 2, which EasyR1 has it do by default; the
first moment scaled 2, the gradient added 3, the second moment scaled 2, the square of the gradient added 3, its root 2,
divided 2, plus eps 2, the compensation less the update 4, the weight copied 2, the compensation added 3, the weight
taken from its copy 3, and that added to the compensation 3."""
MOMENTS_8BIT_BYTES = 4
"""Two moments of a byte, read and written."""
PACKING_BYTES = 2 * 2 * (4 + 8)
"""Of two moments of 4 bits on their way: scaled values and codes as 64-bit integers, written and read."""
FLOAT64_BYTES = 8


def update_bytes_per_weight(table: ParameterTable, recipe: Recipe) -> int:
    """Read and written on the GPU for each weight of a rank's share; with Muon, of those that it updates."""
    p = table.trained_dtype.num_bytes
    m = recipe.master_dtype.num_bytes if recipe.casts_weights else p
    around = _deepspeed_bytes(recipe, p, m) if recipe.uses_deepspeed else _plain_bytes(recipe, m)
    return _optimizer_bytes(recipe, m) + around


def _optimizer_bytes(recipe: Recipe, m: int) -> int:
    """The optimizer's own ``step``, with ``m`` bytes a weight and gradient. Adafactor makes float32 copies."""
    is_flat = recipe.partitions_states
    match recipe.optimizer:
        case OptimizerKind.ADAMW:
            return (FUSED_ADAMW_VALUES if recipe.fuses_optimizer else FOREACH_ADAMW_VALUES) * m
        case OptimizerKind.SGD:
            return SGD_VALUES * m
        case OptimizerKind.ADAFACTOR:
            f = DType.FLOAT32.num_bytes
            copies = 0 if m == f else (m + f) + (m + f) + (f + m)  # of gradient and weight, and the weight back
            return (FLAT_ADAFACTOR_VALUES if is_flat else ADAFACTOR_VALUES) * f + copies
        case OptimizerKind.MUON:
            return MUON_VALUES * m
        case OptimizerKind.ANY_PRECISION_ADAMW:
            return ANY_PRECISION_VALUES * DType.BFLOAT16.num_bytes
        case OptimizerKind.TORCHAO_ADAMW:
            return FUSED_ADAMW_VALUES * m
        case OptimizerKind.TORCHAO_ADAMW_8BIT:
            return ONE_KERNEL_VALUES * m + MOMENTS_8BIT_BYTES
        case OptimizerKind.TORCHAO_ADAMW_4BIT:
            return ONE_KERNEL_VALUES * m + MOMENTS_8BIT_BYTES // 2 + PACKING_BYTES
        case kind:  # bitsandbytes', whose moments are read and written
            return ONE_KERNEL_VALUES * m + 2 * NUM_MOMENTS[kind] * (1 if kind.is_8bit else DType.FLOAT32.num_bytes)


def _plain_bytes(recipe: Recipe, p: int) -> int:
    """``clip_grad_norm_`` takes the norm and scales; fp16's ``GradScaler`` scales once more."""
    clips = p + 2 * p if recipe.gradient_clipping else 0
    return clips + (2 * p if recipe.precision is Precision.FP16 else 0)


def _deepspeed_bytes(recipe: Recipe, p: int, m: int) -> int:
    """Bytes that ``step`` moves in ``zero/stage_1_and_2.py`` and ``stage3.py``, with p bytes a gradient and m a master
    weight:

    - the largest and the smallest value of 16-bit gradients, to see whether they are finite;
    - the norm, of float64 copies (float32 in stage 0, which keeps gradients apart);
    - one flat buffer of the gradients (not in stage 0), cast to the master type, and scaled;
    - the weights written back in their own type.
    """
    is_sharded = recipe.zero_stage != 0
    if recipe.precision is Precision.FP32 and not is_sharded:
        return _plain_bytes(recipe, p)
    finite = 0 if recipe.precision is Precision.FP32 else p + p
    copy = FLOAT64_BYTES if is_sharded else DType.FLOAT32.num_bytes
    norm = (p + copy) + copy
    flat = 2 * p if is_sharded else 0
    cast = 0 if p == m else p + m
    scales = 2 * m if recipe.gradient_clipping or recipe.precision is Precision.FP16 else 0
    return finite + norm + flat + cast + scales + (m + p)


def update_seconds(
    table: ParameterTable, recipe: Recipe, *, num_ranks: int, gpu: Gpu, scenario: Scenario = Scenario.EXPECTED
) -> float:
    """One optimizer step of a rank. The GPU's bandwidth has to be known, or measured."""
    found = measured(gpu, "optimizer_bandwidth")
    bytes_per_second = memory_bytes_per_second(gpu, scenario) if found is None else found.at(scenario)
    assert bytes_per_second is not None
    is_sharded = recipe.partitions_states or recipe.fsdp
    elements = partition_elements(table.num_trained, num_ranks) if is_sharded else table.num_trained
    if recipe.optimizer is OptimizerKind.MUON:
        return _muon_seconds(table, recipe, num_ranks, gpu, scenario, bytes_per_second)
    return elements * update_bytes_per_weight(table, recipe) / bytes_per_second


def _muon_seconds(
    table: ParameterTable, recipe: Recipe, num_ranks: int, gpu: Gpu, scenario: Scenario, bytes_per_second: float
) -> float:
    """Seconds of both groups' updates, and of the rank's matrices made orthogonal: their products at the rate of those
    of the model, and what they read and write."""
    adamw, num_bytes, flops = recipe.with_changes(optimizer=OptimizerKind.ADAMW), 0, 0
    for group in muon_groups(table, is_sorted=False):
        per_weight = update_bytes_per_weight(table, recipe if group.uses_muon else adamw)
        num_bytes += partition_elements(group.numel, num_ranks) * per_weight
    for shape, count in Counter(engine_of(table, recipe, num_ranks=num_ranks).orthogonalised).items():
        num_bytes += count * moved_bytes(shape, table.trained_dtype, COMPUTE)
        flops += count * update_flops(shape)
    rates = gpu_rates(gpu, recipe, scenario)
    computing = 0.0 if rates is None else flops / rates.matmul_flops_per_second
    return computing + num_bytes / bytes_per_second
