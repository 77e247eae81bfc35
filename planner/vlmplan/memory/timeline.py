"""The one place that wires states, gradients, gathered weights and the micro batch into the phases of a run.

    load → init → forward → backward → step → save

``forward`` includes the loss, ``backward`` the gradient reduction. Phases are those of a later step, on the rank that
holds most; the first step lacks the optimizer's states until it ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlmplan.architecture.model import Part
from vlmplan.architecture.tensor import Parameter
from vlmplan.architecture.trace import Trace
from vlmplan.memory.blocks import UNWATCHED, Watcher
from vlmplan.memory.buckets import BucketedGradients, ShardedGradients
from vlmplan.memory.components import NOTHING, Components, Phase, higher
from vlmplan.memory.engines import (
    ModelStates,
    plain_states,
    stage0_states,
    stage3_loading,
    stage3_states,
    stage12_states,
)
from vlmplan.memory.gathering import GatheredWeights, num_wrappers
from vlmplan.memory.parameters import ParameterTable, fullest_rank, owned_elements, partition_of
from vlmplan.memory.replay import GradientStore, KeptGradients, Moments
from vlmplan.recipe import Method, Offload, Recipe
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The phases of a run on the fullest GPU."""

    phases: tuple[Phase, ...]

    @property
    def peak_phase(self) -> Phase:
        """The phase with the highest moment; the first of equals."""
        return max(self.phases, key=lambda phase: phase.peak.total)

    @property
    def peak(self) -> Components:
        return self.peak_phase.peak


def memory_timeline(
    table: ParameterTable,
    trace: Trace,
    recipe: Recipe,
    *,
    num_ranks: int = 1,
    rank: int | None = None,
    is_on_cpu: bool = False,
    read_bytes: int = 0,
) -> Timeline:
    """Phases of training ``table``'s model on ``num_ranks`` GPUs, each running ``trace`` as its micro batch.

    ``rank`` looks at one rank instead of the fullest (a rehearsal sees one). ``is_on_cpu``: the ranks' devices are the
    host itself; ``read_bytes``: what the rank that reads the checkpoint holds of it there (``host.read_bytes``).
    """
    if rank is None:
        rank = fullest_rank(table, num_ranks) if recipe.zero_stage in (1, 2) else 0
    states = model_states(table, recipe, num_ranks, rank)
    forward, backward, boundary = _micro_batch(table, trace, recipe, num_ranks, rank, states)
    load = loading(table, recipe, num_ranks, is_on_cpu=is_on_cpu, read_bytes=read_bytes)
    return Timeline(
        phases=(
            load,
            Phase(
                name="init",
                resident=states.at_start + states.copies,
                peak=higher(states.init_peak, states.at_start) + states.copies,
            ),
            forward,
            backward,
            Phase(
                name="step",
                resident=states.resident,
                peak=higher(states.step_peak + states.copies, without_batch(boundary)),
            ),
            # A checkpoint is written from where the tensors lie, also at stage 3.
            Phase(name="save", resident=states.resident, peak=states.resident),
        )
    )


def without_batch(boundary: Components) -> Components:
    """What the step begins with: the loop lets go of a micro batch, pixels and masks too, when its backward is over."""
    return replace(boundary, activations=0)


def model_states(table: ParameterTable, recipe: Recipe, num_ranks: int, rank: int) -> ModelStates:
    if recipe.zero_stage is None:
        return plain_states(table, recipe)
    if recipe.zero_stage == 0:
        return stage0_states(table, recipe)
    if recipe.zero_stage == 3:
        return stage3_states(table, recipe, num_ranks)
    return stage12_states(table, recipe, num_ranks, rank)


def loading(
    table: ParameterTable, recipe: Recipe, num_ranks: int, *, is_on_cpu: bool = False, read_bytes: int = 0
) -> Phase:
    """Weights arriving on the device, one tensor at a time, straight to where they stay.

    But: weights that are neither cut up nor packed arrive in host memory, from where the engine moves them; stage 3
    cuts them up (``engines.stage3_loading``); a 4-bit weight arrives in 16 bit and is packed there (``Params4bit``);
    peft's upcast makes a float32 copy before the 16-bit weight goes (``param.data = param.data.to(float32)``).
    """
    if recipe.zero_stage == 3:
        resident, peak = stage3_loading(table, recipe, num_ranks)
        return Phase(name="load", resident=resident, peak=peak + Components(temporaries=read_bytes))
    if recipe.method is not Method.QLORA and not is_on_cpu:
        return Phase(name="load", resident=NOTHING, peak=NOTHING)
    resident = Components(weights=table.total_bytes)
    passing = max([arriving_bytes(parameter, recipe) for parameter, _ in table.kinds])
    return Phase(name="load", resident=resident, peak=resident + Components(temporaries=passing))


def arriving_bytes(parameter: Parameter, recipe: Recipe) -> int:
    """Bytes of a weight as it arrives that are not those it stays in."""
    if parameter.stored_bytes is not None:
        return parameter.numel * parameter.dtype.num_bytes
    is_upcast = recipe.upcasts_frozen and not parameter.requires_grad and parameter.dtype is DType.FLOAT32
    return parameter.numel * recipe.precision.dtype.num_bytes if is_upcast else 0


def _micro_batch(
    table: ParameterTable, trace: Trace, recipe: Recipe, num_ranks: int, rank: int, states: ModelStates
) -> tuple[Phase, Phase, Components]:
    """(forward, backward, what is live when the step begins) of the last micro batch before a step."""
    gathered = gathered_weights(trace, recipe, num_ranks)
    store = gradient_store(table, recipe, num_ranks, rank, accumulates=recipe.grad_accum > 1)
    earlier = earlier_partition(table, recipe, num_ranks, rank)
    held = states.resident + states.copies + earlier
    moments = Moments(table, store, gathered)
    moments.start_peak()
    moments.forward(trace)
    casts = Components(temporaries=sum(cached_casts(table, recipe)))
    forward = Phase(name="forward", resident=held + moments.now(), peak=held + moments.peak + casts)
    moments.start_peak()
    moments.backward(trace)
    peak, at_end = moments.peak, moments.now()
    moments.end(trace)
    after = moments.now()
    if recipe.zero_stage in (0, 1) and isinstance(store, KeptGradients):
        reduction, stays = boundary_reduction(table, recipe, num_ranks, rank, at_end)
        peak, after = higher(peak, reduction), after + stays
    # With accumulation stage 2 adds the new partition to the earlier one and frees it.
    resident = states.resident + states.copies + after
    return forward, Phase(name="backward", resident=resident, peak=held + peak), resident


def gathers_weights(recipe: Recipe, num_ranks: int) -> bool:
    """Whether weights come and go: stage 3 with something to fetch from."""
    return recipe.zero_stage == 3 and (num_ranks > 1 or recipe.offload_params is not Offload.NONE)


def gathered_weights(
    trace: Trace, recipe: Recipe, num_ranks: int, *, is_first: bool = False, watcher: Watcher = UNWATCHED
) -> GatheredWeights | None:
    """The whole weights of a micro batch; None where all stay.

    In the first of all the order of modules is not known: nothing is prefetched, and nothing kept for its next use
    (``ZeRoTraceMode.RECORD`` in ``partitioned_param_coordinator.py``).
    """
    if not gathers_weights(recipe, num_ranks):
        return None
    zero = recipe.zero
    if is_first:
        zero = replace(zero, stage3_prefetch_bucket_size=0, stage3_max_reuse_distance=0)
    return GatheredWeights(
        trace=trace,
        zero=zero,
        num_ranks=num_ranks,
        num_wrappers=num_wrappers(recipe),
        offloads=recipe.offload_params is not Offload.NONE,
        watcher=watcher,
    )


def gradient_store(
    table: ParameterTable,
    recipe: Recipe,
    num_ranks: int,
    rank: int,
    *,
    accumulates: bool,
    is_last: bool = True,
    watcher: Watcher = UNWATCHED,
) -> GradientStore:
    """Where gradients go in a micro batch: the last before a step or an earlier one, and not the first of them where it
    ``accumulates``."""
    p = table.trained_dtype.num_bytes
    if recipe.zero_stage == 3:
        return ShardedGradients(
            table=table,
            zero=recipe.zero,
            num_ranks=num_ranks,
            element_bytes=p,
            offloads=recipe.offload_optimizer is not Offload.NONE,
            master_bytes=recipe.master_dtype.num_bytes,
            watcher=watcher,
        )
    reduces_early = recipe.zero_stage == 2 or (recipe.zero_stage == 1 and recipe.zero.overlap_comm and is_last)
    kept = table.trained_bytes if accumulates and recipe.zero_stage != 2 else 0
    if reduces_early:
        store = BucketedGradients(
            table=table,
            zero=recipe.zero,
            num_ranks=num_ranks,
            partition=partition_of(table.num_trained, num_ranks, rank),
            element_bytes=p,
            offloads=recipe.offload_optimizer is not Offload.NONE,
            master_bytes=recipe.master_dtype.num_bytes,
            accumulates=bool(kept),
            watcher=watcher,
        )
        store.gradients = kept
        if kept:
            store.begin()  # stage 1 keeps its buckets from the first micro batch to the reduction after the last
        return store
    bucket = recipe.zero.reduce_bucket_size * p if recipe.zero_stage == 1 and recipe.zero.contiguous_gradients else 0
    store = KeptGradients(table.gradient_sizes, accumulates, bucket, watcher=watcher)
    store.gradients = kept
    store.buffers = bucket if accumulates else 0
    return store


def earlier_partition(table: ParameterTable, recipe: Recipe, num_ranks: int, rank: int) -> Components:
    """Gradients of earlier micro batches that stage 2 keeps apart until it adds the new ones."""
    if recipe.zero_stage != 2 or recipe.grad_accum == 1 or recipe.offload_optimizer is not Offload.NONE:
        return NOTHING
    partition = partition_of(table.num_trained, num_ranks, rank)
    return Components(gradients=owned_elements(table, partition) * table.trained_dtype.num_bytes)


def boundary_reduction(
    table: ParameterTable,
    recipe: Recipe,
    num_ranks: int,
    rank: int,
    after: Components,
    watcher: Watcher = UNWATCHED,
) -> tuple[Components, Components]:
    """(peak, change) of reducing all gradients after backward: stage 0 in copied chunks, stage 1 bucket by bucket."""
    p = table.trained_dtype.num_bytes
    if recipe.zero_stage == 0:
        chunks = chunk_elements(table.numels, STAGE0_CHUNK_ELEMENTS)
        for numel in chunks:
            watcher.pass_through([numel * p])
        return after + Components(communication_buffers=max(chunks) * p), NOTHING
    reduction = BucketedGradients(
        table=table,
        zero=recipe.zero,
        num_ranks=num_ranks,
        partition=partition_of(table.num_trained, num_ranks, rank),
        element_bytes=p,
        offloads=recipe.offload_optimizer is not Offload.NONE,
        master_bytes=recipe.master_dtype.num_bytes,
        watcher=watcher,
    )
    peak = reduction.add_all(after.gradients, after.communication_buffers)
    passing = Components(communication_buffers=peak - after.gradients - after.communication_buffers)
    stays = Components(
        gradients=reduction.gradients - after.gradients, communication_buffers=-after.communication_buffers
    )
    return after + passing, stays


STAGE0_CHUNK_ELEMENTS = 500_000_000
"""Elements after which stage 0 reduces a chunk of gradients (``buffered_allreduce_fallback`` in ``engine.py``)."""


def chunk_elements(numels: Sequence[int], limit: int) -> list[int]:
    """Elements of each chunk when tensors are gathered until they exceed ``limit``.

    >>> chunk_elements([3, 3, 3], 5)
    [6, 3]
    """
    chunks: list[int] = []
    running = 0
    for numel in numels:
        running += numel
        if running > limit:
            chunks.append(running)
            running = 0
    return [*chunks, running] if running else chunks


def cached_casts(table: ParameterTable, recipe: Recipe) -> list[int]:
    """Bytes of 16-bit copies of float32 weights that autocast keeps until forward ends and the tape does not hold.

    Those of layers that are run again in backward; elsewhere the graph keeps the copies, and they are on the tape.
    Source: ``cached_cast`` in ``aten/src/ATen/autocast_mode.cpp``: casts of leaves that need a gradient are cached.
    """
    if recipe.autocast is None or not recipe.caches_casts:
        return []
    width = recipe.autocast.num_bytes
    language, others = recipe.activation_checkpointing, recipe.vision_activation_checkpointing
    return [
        entry.parameter.numel * width
        for entry in table.entries
        if entry.parameter.requires_grad
        and entry.parameter.dtype is DType.FLOAT32
        and entry.layer is not None
        and len(entry.parameter.shape) > 1
        and (language if entry.part is Part.LANGUAGE else others)
    ]
