"""Bytes on disk: one checkpoint to resume from, the exported model, and what NVMe offload swaps.

Sources: deepspeed 0.19.8 ``engine.py`` (``save_checkpoint``): one file of 16-bit weights (stage 3: one shard each),
and one file of master weights and states per rank.
"""

from dataclasses import dataclass

from vlmplan.engines.optimizer_states import paged_bytes, state_bytes
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Method, Offload, Recipe
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Bytes over all ranks; ``download_bytes`` of the model as published, on every node."""

    checkpoint_bytes: int
    export_bytes: int
    nvme_swap_bytes: int
    download_bytes: int


def disk_space(table: ParameterTable, recipe: Recipe, *, stored: DType = DType.BFLOAT16) -> DiskSpace:
    """A checkpoint holds trained weights, master weights and states; frozen weights are not written again.

    The export is the whole model in its 16-bit type for full fine-tuning, the adapter otherwise. ``stored``: element
    type of what is downloaded.
    """
    updated = table.trained_shapes if recipe.zero_stage in (None, 0) else [(table.num_trained,)]
    master = recipe.master_dtype
    has_master = recipe.uses_deepspeed and table.trained_dtype is not master
    if recipe.zero_stage is None:
        on_device = sum([state_bytes(recipe, shapes, dtype) for dtype, shapes in table.shapes_by_dtype.items()])
    else:
        on_device = state_bytes(recipe, updated, master)
    states = on_device + paged_bytes(recipe, updated)
    master_bytes = table.num_trained * master.num_bytes if has_master else 0
    swaps = recipe.offload_optimizer is Offload.NVME
    swap = master_bytes + states if swaps else 0
    if recipe.offload_params is Offload.NVME:
        swap += table.total_bytes
    export = table.trained_bytes if recipe.method is not Method.FULL else table.total_bytes
    return DiskSpace(
        checkpoint_bytes=table.trained_bytes + master_bytes + states,
        export_bytes=export,
        nvme_swap_bytes=swap,
        download_bytes=table.num_loaded(recipe) * stored.num_bytes,
    )
