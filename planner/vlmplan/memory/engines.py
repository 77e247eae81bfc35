"""Model states under each engine: what plain PyTorch and the ZeRO stages keep on a GPU, at init and in the step.

Symbols: p bytes of a trained weight and of its gradient, m bytes of a master weight, Φ trained elements, Ψ all, N
data-parallel ranks, s bytes of optimizer states. ``deepspeed`` is 0.19.8. The functions give ``Components`` of one
GPU; gradients and buffers during the micro batch come from the replay.
"""

from dataclasses import dataclass

from vlmplan.architecture.tensor import Parameter
from vlmplan.memory.components import NOTHING, Components, higher
from vlmplan.memory.optimizer_states import plain_update_sizes, state_bytes, update_bytes
from vlmplan.memory.parameters import (
    ParameterTable,
    Partition,
    owned_elements,
    partition_of,
    sharded_elements,
    slices,
    sub_group_elements,
)
from vlmplan.recipe import Offload, Precision, Recipe
from vlmplan.units import DType

NORM_BYTES = 8
"""Gradient norms are taken in float64 under ZeRO (``get_norm_dtype``)."""


@dataclass(frozen=True, slots=True)
class ModelStates:
    """What one GPU holds through the run, apart from the micro batch.

    ``at_start`` before the first step, ``resident`` after it; ``init_peak`` while the engine is built;
    ``step_peak`` inside the optimizer step, gradients of ``boundary_gradients`` bytes included. ``copies`` are on the
    GPU besides from loading to the end of a step, but not after it.
    """

    at_start: Components
    resident: Components
    init_peak: Components
    step_peak: Components
    copies: Components = NOTHING


def plain_states(table: ParameterTable, recipe: Recipe) -> ModelStates:
    """Plain PyTorch: weights and gradients in the weights' type, states in the same.

    16 bytes a trained weight in float32 (4 + 4 + 8), 8 in pure bfloat16 (2 + 2 + 4), and in the step the copy that
    foreach AdamW makes: 10 in pure bfloat16.
    """
    by_dtype = table.shapes_by_dtype.items()
    start = Components(weights=table.total_bytes)
    resident = start + Components(optimizer_states=sum([state_bytes(recipe, one, dtype) for dtype, one in by_dtype]))
    update = max(map(sum, plain_update_sizes(recipe, table.shapes_by_dtype)), default=0)
    step = resident + Components(gradients=table.trained_bytes, temporaries=update)
    return ModelStates(start, resident, start, step)


def stage0_states(table: ParameterTable, recipe: Recipe) -> ModelStates:
    """ZeRO stage 0: every rank keeps everything; 16-bit weights under ``FP16_UnfusedOptimizer``.

    pΦ weights + mΦ master + sΦ; the step adds a master-type copy of every gradient:
    2 + 4 + 8 + 2 + 4 = 20 bytes a weight for bf16 and AdamW, and so does the trial step at init, on zero gradients
    (``fp16/unfused_optimizer.py``: ``initialize_optimizer_states``, ``step``). In float32 there is no second copy.
    """
    shapes = table.trained_shapes
    master = DType.FLOAT32
    has_master = table.trained_dtype is not master
    master_bytes = table.num_trained * master.num_bytes if has_master else 0
    states = state_bytes(recipe, shapes, master)
    resident = Components(weights=table.total_bytes, optimizer_states=master_bytes + states)
    update = update_bytes(recipe, shapes, master)
    norm = table.largest_trained * 4 if has_master else 0  # get_weight_norm casts one gradient at a time
    grads = Components(gradients=table.trained_bytes)
    step = resident + grads + Components(temporaries=max(norm, master_bytes + update))
    start = resident if has_master else Components(weights=table.total_bytes)
    init = resident + grads + Components(temporaries=master_bytes + update) if has_master else start
    return ModelStates(start, resident, init, step)


def stage12_states(table: ParameterTable, recipe: Recipe, num_ranks: int, rank: int) -> ModelStates:
    """ZeRO stages 1 and 2 (``stage_1_and_2.py``).

    Weights whole, in one flat buffer: pΦ. Master weights mΦ/N and states sΦ/N of the rank's partition, on the GPU or,
    offloaded, on the host. At init the flat buffer is written beside the weights (2pΦ), then the master copy passes
    through a clone of the slice, and a gradient of its size is made and dropped (``initialize_optimizer_states``).
    The step flattens the partition's gradients (p) and casts them to the master type (m): 2Ψ + 20Φ/N for bf16 and
    AdamW = 2Ψ + (4 + 8 + 2 + 2 + 4)Φ/N.
    """
    partition = partition_of(table.num_trained, num_ranks, rank)
    p, m = table.trained_dtype.num_bytes, recipe.master_dtype.num_bytes
    weights = Components(weights=table.frozen_bytes + partition.size * num_ranks * p)
    unflattened = Components(weights=table.total_bytes)
    flattening = unflattened + Components(weights=partition.size * num_ranks * p)
    if recipe.offload_optimizer is not Offload.NONE:
        return _offloaded_stage12(table, weights, flattening, partition)
    master = Components(optimizer_states=partition.size * m)
    start = weights + master
    init = higher(flattening, start + Components(temporaries=partition.size * max(p, m)))
    flat = [(partition.size,)]
    resident = start + Components(optimizer_states=state_bytes(recipe, flat, recipe.master_dtype))
    owned = Components(gradients=owned_elements(table, partition) * p)
    norm = max(slices(table, partition), default=0) * NORM_BYTES
    cast = partition.size * (p + (m if m != p else 0))
    update = (partition.size * m) + update_bytes(recipe, flat, recipe.master_dtype)
    step = higher(
        resident + owned + Components(temporaries=max(norm, cast)),
        resident + Components(temporaries=update),
    )
    return ModelStates(start, resident, init, step)


def _offloaded_stage12(
    table: ParameterTable, weights: Components, flattening: Components, partition: Partition
) -> ModelStates:
    """With the optimizer on the host the GPU keeps weights and a staging buffer of the largest gradient.

    The clone of the slice that becomes the master copy goes to the host as it is: a blocking copy from the GPU changes
    the type there (``copy_requires_temporaries``, ``aten/src/ATen/native/cuda/Copy.cu``).
    """
    p = table.trained_dtype.num_bytes
    resident = weights + Components(communication_buffers=table.largest_trained * p)
    init = higher(flattening, weights + Components(temporaries=partition.size * p))
    return ModelStates(resident, resident, init, resident)


def stage3_states(table: ParameterTable, recipe: Recipe, num_ranks: int) -> ModelStates:
    """ZeRO stage 3 (``stage3.py``): shards of weights, gradients and states; the bucket lives from init on.

    pΨ/N + whole small weights (persistent, from their first use on) + pΦ/N gradient buffer + mΦ/N + sΦ/N + p·bucket.
    The step works in sub-groups: it flattens the gradients of one (p) and casts them (m), where the types differ. There
    is a master copy even where they are the same: ``_create_fp32_partitions`` compares ``tensor.device ==
    self.device``, a ``torch.device`` with the string ``cuda:0``, which are never equal. Beside the master copies there
    is once the gradient of a sub-group in their type (``converted``, then ``initialize_optimizer_states``), and every
    trained weight is whole for a moment when it gets the hook that takes its gradient
    (``create_reduce_and_remove_grad_hooks``). With ``offload_params`` the shards live on the host, with
    ``offload_optimizer`` everything of the optimizer does, gradients included. With ``hpz`` there is a second shard of
    every weight, N/hpz as large: ``_partition_param_sec``. Those of frozen weights stay, those of trained weights go
    with the step and come back when the weight is first released (``invalidate_secondary_tensor``).
    """
    p, m = table.trained_dtype.num_bytes, recipe.master_dtype.num_bytes
    shards, persistent = _stage3_weights(table, recipe, num_ranks)
    trained = sharded_elements(table.numels, num_ranks)
    group = max(sub_group_elements(table.numels, num_ranks, recipe.zero.sub_group_size))
    bucket = Components(communication_buffers=recipe.zero.reduce_bucket_size * p)
    offloads_weights = recipe.offload_params is not Offload.NONE
    coming = -(-table.largest_trained // num_ranks) * p if offloads_weights and num_ranks > 1 else 0
    hooked = Components(weights=table.largest_trained * p, temporaries=coming)
    is_offloaded = recipe.offload_optimizer is not Offload.NONE
    frozen_copies, trained_copies = secondary_bytes(table, recipe, num_ranks)
    copies = Components(weights=trained_copies)
    weights = Components(weights=0 if offloads_weights else shards + frozen_copies)
    whole = Components(weights=persistent)
    if is_offloaded:
        start = weights + bucket
        building = start + hooked
        return ModelStates(start, start + whole, building, start + whole, copies)
    master = Components(optimizer_states=trained * m)
    gradients = Components(gradients=trained * p)
    start = weights + master + gradients + bucket
    making = weights + master + Components(temporaries=group * m)
    building = higher(making, start + hooked)
    states = Components(optimizer_states=state_bytes(recipe, [(trained,)], recipe.master_dtype))
    resident = start + whole + states
    cast = group * (p + (m if m != p else 0))
    update = group * m + update_bytes(recipe, [(group,)], recipe.master_dtype)
    norm = -(-table.largest_trained // num_ranks) * NORM_BYTES
    check = trained * overflow_check_bytes(recipe)
    step = resident + Components(temporaries=max(cast, update, norm, check))
    return ModelStates(start, resident, building, step, copies)


def secondary_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> tuple[int, int]:
    """Bytes of a rank's second shards of (frozen, trained) weights: those of all ranks cut among ``hpz`` only."""
    if recipe.hpz == 1 or recipe.zero_stage != 3:
        return 0, 0
    shards = {True: 0, False: 0}
    for parameter, count in table.kinds:
        shards[parameter.requires_grad] += count * secondary_shard_bytes(parameter, recipe, num_ranks)
    return shards[False], shards[True]


def secondary_shard_bytes(parameter: Parameter, recipe: Recipe, num_ranks: int) -> int:
    """A rank's second shard of one weight: padded for all ranks, cut among ``hpz``."""
    return -(-parameter.numel // num_ranks) * num_ranks // recipe.hpz * parameter.dtype.num_bytes


def overflow_check_bytes(recipe: Recipe) -> int:
    """Bytes per element of looking for infinities in all of a rank's gradients at once, as stage 3 does in fp16.

    ``torch.isinf(self.grad_partitions_flat_buffer)`` in ``has_overflow`` is ``self.abs() == inf``
    (``aten/src/ATen/native/TensorCompare.cpp``): absolute values in the type of the gradients, and a byte.
    """
    return recipe.trained_dtype.num_bytes + 1 if recipe.precision is Precision.FP16 else 0


def stage3_loading(table: ParameterTable, recipe: Recipe, num_ranks: int) -> tuple[Components, Components]:
    """(what stays, the highest moment) of loading under ``deepspeed.zero.Init``.

    Every module is cut up once it is built, and gathered once more, all its own weights together, to get the values
    that the first rank has read (transformers' ``_load_state_dict_into_zero3_model``). A tied head is a weight of its
    own until the end (``no_tie_weights``). Adapters are added whole and cut up by the engine.
    """
    shards = adapters = 0
    for parameter, count in table.kinds:
        if recipe.trains_adapters and parameter.requires_grad:
            adapters += count * parameter.num_bytes
        else:
            shards += count * -(-parameter.numel // num_ranks) * parameter.dtype.num_bytes
    frozen_copies, trained_copies = secondary_bytes(table, recipe, num_ranks)
    shards += frozen_copies + (0 if recipe.trains_adapters else trained_copies)
    tied = -(-table.tied_numel // num_ranks) * recipe.precision.dtype.num_bytes
    if recipe.offload_params is not Offload.NONE:
        shards = tied = 0
    resident = Components(weights=shards + adapters)
    gathered = Components(weights=shards + tied, temporaries=table.largest_module_bytes)
    return resident, higher(gathered, resident)


def _stage3_weights(table: ParameterTable, recipe: Recipe, num_ranks: int) -> tuple[int, int]:
    """(bytes of a rank's shards, bytes of weights that stay whole on every rank)."""
    shards = persistent = 0
    for parameter, count in table.kinds:
        width = count * parameter.dtype.num_bytes
        shards += -(-parameter.numel // num_ranks) * width
        if parameter.numel <= recipe.zero.stage3_param_persistence_threshold:
            persistent += parameter.numel * width
    return shards, persistent if num_ranks > 1 else 0
