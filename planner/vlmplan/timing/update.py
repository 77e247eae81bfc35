"""The optimizer step on the GPU, by memory bandwidth: the bytes that it reads and writes per weight.

Counted from torch 2.13 ``torch/optim/adam.py`` and ``sgd.py``, bitsandbytes 0.50, transformers 5.23 (Adafactor), and
from deepspeed 0.19.8's ``step`` around them.
"""

from vlmplan.hardware import Gpu
from vlmplan.memory.parameters import ParameterTable, partition_size
from vlmplan.recipe import OptimizerKind, Recipe
from vlmplan.timing.rates import BANDWIDTH_FRACTION, Outlook

FUSED_ADAMW_VALUES = 7
"""Gradient, weight and both moments read, weight and moments written, by one kernel."""
FOREACH_ADAMW_VALUES = 2 + 3 + 2 + 4 + 2 + 2 + 2 + 4
"""The same in eight kernels (``_multi_tensor_adam``): weight decay 2, the first moment 3, the second moment 2 and 4,
its square root 2, divided 2, plus eps 2, the update 4."""
SGD_VALUES = 3 + 3
"""Momentum: gradient and momentum read, momentum written; then the update."""
ADAFACTOR_VALUES = 16
"""Squares, their means by row and column, the update, its root mean square, its clip and scale, kernel by kernel
(``Adafactor.step``)."""
MOMENT_8BIT_BYTES = 4
"""Two moments of a byte, read and written (``optimizer_update_8bit_blockwise``)."""


def values_per_weight(recipe: Recipe) -> int:
    """Values of the master type that the update reads and writes for each weight; of 8-bit AdamW those that are not
    moments."""
    if recipe.optimizer is OptimizerKind.ADAMW:
        return FUSED_ADAMW_VALUES if recipe.fuses_optimizer else FOREACH_ADAMW_VALUES
    by_kind = {OptimizerKind.SGD: SGD_VALUES, OptimizerKind.ADAFACTOR: ADAFACTOR_VALUES}
    return by_kind.get(recipe.optimizer, 3)


def update_bytes_per_weight(table: ParameterTable, recipe: Recipe) -> int:
    """Read and written on the GPU for each weight of a rank's share.

    DeepSpeed also takes the gradients' norm, makes one buffer of them, casts it to the master type, scales it, and
    writes the weights back in theirs: m + 2p + (p + m) + 2m + (m + p), with p and m bytes in the two types.
    """
    p = table.trained_dtype.num_bytes
    m = recipe.master_dtype.num_bytes if recipe.uses_deepspeed else p
    moments = MOMENT_8BIT_BYTES if "8bit" in recipe.optimizer.value else 0
    around = m + 2 * p + (p + m) + 2 * m + (m + p) if recipe.uses_deepspeed else 0
    return values_per_weight(recipe) * m + moments + around


def update_seconds(
    table: ParameterTable, recipe: Recipe, *, num_ranks: int, gpu: Gpu, outlook: Outlook = Outlook.EXPECTED
) -> float:
    """One optimizer step of a rank. The GPU's bandwidth has to be known."""
    bandwidth = gpu.memory_bandwidth_bytes_per_second
    assert bandwidth is not None
    is_sharded = recipe.zero_stage in (1, 2, 3)
    elements = partition_size(table.num_trained, num_ranks) if is_sharded else table.num_trained
    return elements * update_bytes_per_weight(table, recipe) / (bandwidth * BANDWIDTH_FRACTION.at(outlook))
