"""Bytes of host memory on one node, while loading and in steady state.

Symbols as in ``engines``. Sources: transformers 5.23 ``modeling_utils.py`` (loading); deepspeed 0.19.8
``stage_1_and_2.py`` and ``stage3.py`` (pinned buffers), ``swap_tensor/`` for NVMe.
"""

from math import prod
from typing import NamedTuple

from vlmplan.engines.optimizer_states import overflow_check_bytes, paged_bytes, state_bytes
from vlmplan.engines.parameter_groups import OptimizerGroup, flat_order
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.partitions import overlapping, partition_elements, partition_of, shares
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, Precision
from vlmplan.recipe.task_choices import Reference
from vlmplan.units import GIB, DType

PROCESS_BYTES = 3 * GIB
"""Resident memory of one training process before it holds anything of the model: Python, torch and CUDA's host side.
Assumed: 2 to 4 GiB are seen."""
NVME_BUFFER_FRACTION = 0.25
"""Part of what is swapped to NVMe that stays in host buffers on its way. Assumed: DeepSpeed keeps a few sub-groups."""


class HostMemory(NamedTuple):
    """Bytes of one node."""

    load_bytes: int
    steady_bytes: int
    evaluation_bytes: int = 0
    """What evaluation keeps for metrics, beside what is there in training."""

    @property
    def peak_bytes(self) -> int:
        return max(self.load_bytes, self.steady_bytes + self.evaluation_bytes)


def host_memory(
    table: ParameterTable,
    recipe: Recipe,
    *,
    num_ranks: int,
    ranks_per_node: int,
    stored: DType = DType.BFLOAT16,
    packed_bytes: int = 0,
) -> HostMemory:
    """Host bytes of the node with the first rank; ``stored``: element type of the checkpoint.

    ``packed_bytes``: what the files take less than that (``mxfp4_savings``); dequantised, each rank has a copy.

    Loading: transformers builds the model in host memory, from where the engine moves it to the GPU. Weights that keep
    their type are the mapped files themselves, which all ranks of a node share; other types are copies of each rank's
    own beside the mapped files: so are float32 weights that DeepSpeed casts afterwards (measured of 259 M parameters in
    16 bit: 3 MiB of a process's own in that type, 1,034 in float32 and 1,560 at the peak). Packed weights go to the GPU
    tensor by tensor; those of 8 bits come back once (``Bnb8bitQuantize`` of transformers). Stage 3 never has the model:
    the first rank maps all files and sends what the others need. Then every rank moves its trained shards through the
    host (``defragment`` in ``zero/utils.py``). Mapped pages count although the system may drop them: reading them again
    from disk takes long.
    """
    base = ranks_per_node * PROCESS_BYTES
    offloaded = ranks_per_node * _offloaded_bytes(table, recipe, num_ranks)
    paged = ranks_per_node * paged_bytes(recipe, _updated_shapes(table, recipe, num_ranks))
    if recipe.zero_stage == 3:
        shards = ranks_per_node * _offloaded_weight_bytes(table, recipe, num_ranks)
        moved = ranks_per_node * table.sharded_elements(num_ranks) * table.trained_dtype.num_bytes
        arriving = shards + max(read_bytes(table, recipe, stored), moved)
    elif recipe.method.packs_weights:
        copies = 2 if recipe.method is Method.LORA_8BIT else 1
        arriving = ranks_per_node * copies * table.largest_bytes
    else:
        mapped = table.num_loaded(recipe) * stored.num_bytes - packed_bytes
        copied = ranks_per_node * table.num_loaded(recipe) * recipe.loaded_dtype.num_bytes
        arriving = mapped if recipe.loaded_dtype is stored and not packed_bytes else mapped + copied
    return HostMemory(load_bytes=base + arriving, steady_bytes=base + offloaded + paged)


def pinned_bytes(num_bytes: int) -> int:
    """What torch's allocator of pinned memory takes for a tensor: the next power of two (``CachingHostAllocator.h`` of
    torch 2.13).

    >>> pinned_bytes(33 * 2**20) // 2**20
    64
    """
    return 1 << max(0, num_bytes - 1).bit_length()


def mxfp4_savings(table: ParameterTable) -> int:
    """Bytes that a checkpoint with stacked weights in MXFP4 takes less than one in 16 bits: 4 bits an element, and a
    scale of 8 bits for every 32 (OCP Microscaling Formats 1.0; ``integrations/mxfp4.py`` of transformers 5.23)."""
    num_packed = table.stacked_numel
    return 2 * num_packed - (num_packed // 2 + num_packed // 32)


FP8_BLOCK = 128
"""Rows and columns that share a float32 scale (``weight_block_size`` of DeepSeek-V3 and of Qwen's FP8 checkpoints)."""


def fp8_savings(table: ParameterTable) -> int:
    """Bytes that a checkpoint in FP8 takes less than one in 16 bits: a byte an element of Linears and stacked experts,
    and a scale for each block (``integrations/finegrained_fp8.py`` of transformers 5.23). Embeddings, the output head
    and whatever the checkpoint leaves out besides stay as they are; the latter is small and counted as packed."""
    saved = 0
    for entry in table.entries:
        *experts, rows, columns = (1, *entry.parameter.shape)
        is_kept = len(entry.parameter.shape) < 2 or entry.name.endswith(("embed_tokens.weight", "lm_head.weight"))
        if is_kept or "lora_" in entry.name:
            continue
        blocks = -(-rows // FP8_BLOCK) * -(-columns // FP8_BLOCK)
        saved += entry.parameter.numel - 4 * prod(experts) * blocks
    return saved


def read_bytes(table: ParameterTable, recipe: Recipe, stored: DType) -> int:
    """The whole checkpoint, which stage 3's first rank holds while it loads (``map_location = "cpu"`` on rank 0,
    ``"meta"`` on the others, in transformers' ``_load_pretrained_model``); 0 for other engines."""
    return table.num_loaded(recipe) * stored.num_bytes if recipe.zero_stage == 3 else 0


def with_devices(
    host: HostMemory, ranks_per_node: int, *, load_bytes: int, peak_bytes: int, read_bytes: int
) -> HostMemory:
    """``host`` where the ranks' devices are the host itself: each rank's ``load_bytes`` while loading and
    ``peak_bytes`` in all, which hold its process too, take the place of ``PROCESS_BYTES``; the first rank has
    ``read_bytes`` besides."""
    return host._replace(
        load_bytes=ranks_per_node * load_bytes + read_bytes,
        steady_bytes=host.steady_bytes + ranks_per_node * (peak_bytes - PROCESS_BYTES),
    )


def _updated_shapes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> list[tuple[int, ...]]:
    if recipe.zero_stage in (None, 0):
        return table.trained_shapes  # of FSDP2 too, whose optimizers page nothing, and of weights without a gradient
    return [(partition_elements(table.num_trained, num_ranks),)]


def _offloaded_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """Pinned bytes of one rank: those of optimizer offload, and of parameter offload the shards of all weights."""
    total = 0
    if recipe.fsdp:
        sharing = recipe.sharing_ranks(num_ranks)
        return 0 if recipe.offload_params is Offload.NONE else _fsdp_bytes(table, recipe, sharing)
    if recipe.offload_optimizer is not Offload.NONE:
        states = offloaded_optimizer_bytes(table, recipe, num_ranks)
        total += round(states * NVME_BUFFER_FRACTION) if recipe.offload_optimizer is Offload.NVME else states
    return total + _offloaded_weight_bytes(table, recipe, num_ranks)


def _fsdp_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """FSDP2's shards, pinned, and of those that get a gradient gradients and states (``CPUOffloadPolicy``); FSDP1's
    shards, gradients (``_cpu_grad``) and states."""
    if recipe.is_flat:
        from vlmplan.engines.flat_units import flat_units

        units = flat_units(table, recipe, num_ranks).all
        trained = [(unit.shard_numel,) for unit in units if unit.ordinals]
        states = state_bytes(recipe, [(unit.updated_numel,) for unit in units if unit.ordinals], recipe.held_dtype)
        gradients = sum([numel for (numel,) in trained]) * recipe.held_dtype.num_bytes
        return sum([unit.shard_bytes for unit in units]) + gradients + states
    from vlmplan.engines.layer_groups import layer_groups

    groups = layer_groups(table, recipe, num_ranks)
    dtype = recipe.held_dtype
    trained = [groups.shard_numel(table.trained_entries[ordinal]) for ordinal in table.reduced_ordinals]
    states = state_bytes(recipe, [(numel,) for numel in trained], dtype)
    gradients = sum(trained) * dtype.num_bytes
    return sum([group.shard_bytes for group in groups.all]) + gradients + states


def offloaded_optimizer_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """What one rank keeps on the host for its optimizer, with p and m bytes of a weight and of a master weight.

    Per element of the rank's part: master weight m, its gradient m, two moments 2m, and p for the copy that is sent
    back (stages 1 and 2: ``param_buffer_of_bit16_for_cpu_offload_groups``), or the precision's type for the gradient
    (stage 3: ``grad_partitions_flat_buffer``, and in fp16 looking for infinities in it). Stages 1 and 2 have a staging
    buffer of the largest parameter (``temp_grad_buffer_for_cpu_offload``), and stage 2 keeps gradients between the
    micro batches of a step: of whole parameters that reach into the rank's partition, in p
    (``async_accumulate_grad_in_cpu_via_gpu``), but for bf16-pure in the master gradients that are there. Stage 1 keeps
    them on the GPU and reduces once.
    """
    p, m = table.trained_dtype.num_bytes, recipe.master_dtype.num_bytes
    if recipe.zero_stage == 3:
        check = overflow_check_bytes(recipe)
        return table.sharded_elements(num_ranks) * (4 * m + recipe.precision.dtype.num_bytes + check)
    states = partition_elements(table.num_trained, num_ranks) * (4 * m + p) + table.largest_trained * p
    if recipe.zero_stage == 1 or recipe.grad_accum == 1 or recipe.precision is Precision.BF16_PURE:
        return states
    return states + _most_kept_elements(table, recipe, num_ranks) * p


def _most_kept_elements(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """Elements of whole parameters that get a gradient and reach into the partition of the rank that has most."""
    if not recipe.zero.round_robin_gradients:
        return max([share.owned - share.idle for share in shares(table, num_ranks)])
    dealt = OptimizerGroup(table, flat_order(range(len(table.numels)), recipe, num_ranks))
    parts = [overlapping(dealt, partition_of(dealt.numel, num_ranks, rank)) for rank in range(num_ranks)]
    reached = [dealt.ordinals[slice(*part)] for part in parts]
    return max(sum(table.numels[one] for one in ordinals if one not in table.idle) for ordinals in reached)


def _offloaded_weight_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """Shards of all weights, and of a second model where there is one."""
    if recipe.offload_params is Offload.NONE:
        return 0
    num_models = 2 if recipe.reference is Reference.COPY else 1
    weights = num_models * sum([count * -(-parameter.num_bytes // num_ranks) for parameter, count in table.kinds])
    return round(weights * NVME_BUFFER_FRACTION) if recipe.offload_params is Offload.NVME else weights
