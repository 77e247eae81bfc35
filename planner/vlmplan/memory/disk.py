"""Bytes on disk: a checkpoint to resume from, the result, all of a run's, and what NVMe offload swaps.

Sources: deepspeed 0.19.8 ``engine.py`` (``save_checkpoint``, ``_common_checkpoint_state``): one file of the module's
16-bit weights, and one file of master weights and states per rank; under stage 3 the module's weights are empty where
they are written, and only shards of frozen ones are (``_get_zero_frozen_param_attributes``). transformers 5.23
``trainer.py`` (``_save_checkpoint``): the model as ``save_model`` writes it, and beside it the optimizer's states, or
what DeepSpeed writes. Left out: tokenizers, random numbers, notes and DeepSpeed's script for recovery, together 0.06 to
0.2 MB in the tiny runs measured, and some MB of a real tokenizer.

An output head that shares the embedding's weight is written twice under stages 0 to 2: accelerate's ``get_state_dict``
clones every tensor for the model's file, and ``exclude_frozen_parameters`` takes a frozen embedding out of DeepSpeed's
by one of its two names (``module_state_dict``). Both seen.
"""

from typing import NamedTuple

from vlmplan.engines.muon_groups import muon_groups
from vlmplan.engines.optimizer_states import paged_bytes, state_bytes
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, OptimizerKind
from vlmplan.run.saving import Saving
from vlmplan.units import DType


class DiskSpace(NamedTuple):
    """Bytes over all ranks; ``download_bytes`` of the model as published, on every node."""

    checkpoint_bytes: int
    export_bytes: int
    nvme_swap_bytes: int
    download_bytes: int


def disk_space(
    table: ParameterTable,
    recipe: Recipe,
    *,
    stored: DType = DType.BFLOAT16,
    packed_bytes: int = 0,
    saving: Saving | None = None,
) -> DiskSpace:
    """A checkpoint holds trained weights, master weights and states; frozen weights are not written again by the
    bundled trainer. Hugging Face's writes the model or its adapters besides, and under DeepSpeed frozen weights unless
    adapters are trained.

    The export is the whole model in the type of its weights for full fine-tuning, the adapter otherwise. ``stored``:
    element type of what is downloaded, ``packed_bytes`` what it takes less than that (``mxfp4_savings``).
    """
    saving = saving or Saving()
    master_bytes, states = master_weight_bytes(table, recipe), optimizer_state_bytes(table, recipe)
    swap = master_bytes + states if recipe.offload_optimizer is Offload.NVME else 0
    if recipe.offload_params is Offload.NVME:
        swap += table.total_bytes
    export = table.trained_bytes if recipe.method is not Method.FULL else table.total_bytes
    beside = master_bytes + states + engine_weight_bytes(table, recipe, saving)
    checkpoint = beside
    if saving.by_hugging_face:
        export += table.tied_bytes if recipe.zero_stage in (0, 1, 2) and recipe.method is Method.FULL else 0
        is_gathered = recipe.zero_stage != 3 or recipe.trains_adapters or saving.gathers_shards
        model = export if is_gathered else beside  # ``save_model`` writes DeepSpeed's files in place of the model
        is_beside = is_gathered and not (saving.is_launched and recipe.uses_deepspeed)
        checkpoint = model if saving.only_model else (export if is_beside else 0) + beside
        export = model
    return DiskSpace(
        checkpoint_bytes=checkpoint,
        export_bytes=export,
        nvme_swap_bytes=swap,
        download_bytes=table.num_loaded(recipe) * stored.num_bytes - packed_bytes,
    )


def optimizer_state_bytes(table: ParameterTable, recipe: Recipe) -> int:
    """The optimizer's states over all ranks, without master weights; in plain PyTorch and DDP with those of weights
    that get no gradient, which one GPU does not have. Muon's momentum has the gradients' type."""
    if recipe.optimizer is OptimizerKind.MUON:
        groups = muon_groups(table, is_sorted=False)
        momentum = sum([group.numel for group in groups if group.uses_muon]) * recipe.precision.dtype.num_bytes
        adamw = [(group.numel,) for group in groups if not group.uses_muon]
        return momentum + state_bytes(recipe, adamw, recipe.master_dtype)
    updated = table.trained_shapes if recipe.zero_stage in (None, 0) else [(table.num_trained,)]
    if recipe.fsdp:
        on_device = state_bytes(recipe, table.updated_shapes, recipe.held_dtype)
    elif recipe.zero_stage is None:
        on_device = sum([state_bytes(recipe, shapes, dtype) for dtype, shapes in table.shapes_by_dtype.items()])
    else:
        on_device = state_bytes(recipe, updated, recipe.master_dtype)
    return on_device + paged_bytes(recipe, updated)


def master_weight_bytes(table: ParameterTable, recipe: Recipe) -> int:
    """Master weights over all ranks as they are saved: those of stages 1 to 3 in float32 training too, where they are
    flat copies; stage 0 then has none, and plain PyTorch never."""
    is_wide = table.trained_dtype is recipe.master_dtype
    if recipe.zero_stage is None or (recipe.zero_stage == 0 and is_wide):
        return 0
    return table.num_trained * recipe.master_dtype.num_bytes


def engine_weight_bytes(table: ParameterTable, recipe: Recipe, saving: Saving) -> int:
    """Weights in the engine's own file: the bundled trainer's has the trained ones, as DeepSpeed's has under
    ``exclude_frozen_parameters``, which Hugging Face's Trainer asks for with adapters alone. From stage 2 on frozen
    ones are written as fragments too, a second time under stage 2 (``save_frozen_param``)."""
    stage = recipe.zero_stage
    if recipe.fsdp:
        return sum(table.numels) * recipe.held_dtype.num_bytes
    if stage is None:
        return 0 if saving.by_hugging_face else table.trained_bytes
    has_frozen = saving.by_hugging_face and not recipe.trains_adapters
    frozen = table.frozen_bytes if has_frozen else 0
    if stage == 3:
        return frozen
    tied = table.tied_bytes if table.tied_is_frozen and not has_frozen else 0
    return table.trained_bytes + tied + frozen * (2 if stage == 2 else 1)
