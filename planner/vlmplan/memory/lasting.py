"""What is on a GPU through all optimizer steps beside what an engine and a micro batch tell of."""

from typing import NamedTuple

from vlmplan.engines.components import Components
from vlmplan.hardware import Gpu
from vlmplan.memory.inference_engine import InferenceEngine
from vlmplan.memory.overhead import workspace_bytes
from vlmplan.memory.phases import MICRO_BATCH_PHASES, ROLLOUT_PHASES, Phase, num_waiting
from vlmplan.memory.timeline import Timeline
from vlmplan.phase_names import EVALUATION, GENERATE, GENERATION, INIT, LOAD, SAVE, STEP, SYNC
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method

LASTING_PHASES = (*ROLLOUT_PHASES, *MICRO_BATCH_PHASES, STEP, EVALUATION, GENERATION, SAVE)


class Buffers(NamedTuple):
    """Bytes of the model's own tables, and of those among them that are in its layers."""

    num_bytes: int
    layer_bytes: int


def with_lasting(
    timeline: Timeline,
    gpu: Gpu,
    recipe: Recipe,
    batch_bytes: int,
    copy_bytes: int,
    adapter_bytes: int,
    buffers: Buffers,
) -> Timeline:
    """``timeline`` with cuBLAS' workspaces, which come with the first matrix product and stay, and with micro batches
    that wait for their turn or have had it: each takes ``batch_bytes``. Of those that a phase runs through one is in
    the timeline already; between the steps, where evaluations and checkpoints are, all of the last step's are there
    still. A second model takes ``copy_bytes`` from the beginning, a reference's adapters ``adapter_bytes`` from when
    the trainer is made, and the model's own ``buffers`` from when its weights come to the GPU.
    """
    workspaces = Components(temporaries=workspace_bytes(gpu))
    phases: list[Phase] = []
    for phase in timeline.phases:
        if phase.name in LASTING_PHASES:
            waiting = num_waiting(recipe, phase.name) * batch_bytes
            extra = workspaces + Components(activations=waiting)
            phase = _with_extra(phase, extra)
        if copy_bytes and phase.name == LOAD and not recipe.uses_deepspeed:
            phase = _whole_by_then(phase, timeline)
        if phase.name != LOAD or phase.peak.total:
            is_sharded = phase.name == INIT and recipe.fsdp and recipe.method is not Method.QLORA
            phase = _with_sharded(phase, buffers) if is_sharded else _with_extra(phase, _weights(buffers.num_bytes))
        beside_bytes = copy_bytes + (0 if phase.name == LOAD else adapter_bytes)
        if beside_bytes:
            phase = _with_extra(phase, _weights(beside_bytes))
        phases.append(phase)
    return timeline._replace(phases=tuple(phases))


def _whole_by_then(load: Phase, timeline: Timeline) -> Phase:
    """``Trainer.__init__`` moves the model to the GPU before TRL loads a second one (``dpo_trainer.py``)."""
    init = next(phase for phase in timeline.phases if phase.name == INIT)
    moved = Phase(name=LOAD, resident=init.resident, peak=Components(weights=init.resident.weights))
    return max((load, moved), key=lambda phase: phase.peak.total)


def _with_sharded(init: Phase, buffers: Buffers) -> Phase:
    """``fully_shard`` brings a module's tables with its weights (``_move_states_to_device`` in torch's
    ``_fully_shard/_fsdp_init.py``), layers before the embeddings, whose whole weights are most: those of layers
    are there by then, others come last."""
    resident = init.resident + _weights(buffers.num_bytes)
    peak = max(init.peak + _weights(buffers.layer_bytes), resident, key=lambda one: one.total)
    return Phase(name=init.name, resident=resident, peak=peak)


def _weights(num_bytes: int) -> Components:
    return Components(weights=num_bytes)


def _with_extra(phase: Phase, extra: Components) -> Phase:
    return Phase(name=phase.name, resident=phase.resident + extra, peak=phase.peak + extra)


def with_inference_engine(timeline: Timeline, engine: InferenceEngine | None) -> Timeline:
    """``timeline`` with what vLLM takes of the GPU in every phase from its start on, which ``init`` ends with.

    It sleeps again before generation is over (``VLLMGeneration.generate`` of TRL). What ms-swift has moved to the host
    comes back behind that (``_fast_infer`` in its ``rollout_mixin.py``), and is no part of the peak: with an engine
    that does not sleep, what is left behind is more.
    """
    if engine is None:
        return timeline
    training = Components(inference_engine=engine.training_bytes)
    phases: list[Phase] = []
    for phase in timeline.phases:
        if phase.name in (GENERATE, GENERATION):
            awake = phase.peak + Components(inference_engine=engine.awake_bytes)
            phase = Phase(name=phase.name, resident=phase.resident + training, peak=awake)
        elif phase.name == SYNC:
            phase = _with_extra(phase, Components(inference_engine=engine.syncing_bytes))
        elif phase.name != LOAD:
            phase = _with_extra(phase, training)
        phases.append(phase)
    return timeline._replace(phases=tuple(phases))


def with_moved(
    timeline: Timeline, gone: Components, *, copied_bytes: int, doubled_bytes: int, kept_bytes: int
) -> Timeline:
    """``timeline`` without what is ``gone`` to the host while answers are generated, with copies of weights that are
    beside them from then to the step's end, and of them with those that are there to the next answers, and with states
    that stand twice at all other times."""
    if not gone.total and not copied_bytes and not doubled_bytes:
        return timeline
    copies, doubled = Components(weights=copied_bytes), Components(optimizer_states=doubled_bytes)
    kept = Components(weights=kept_bytes) + doubled
    phases: list[Phase] = []
    for phase in timeline.phases:
        resident, peak = phase.resident, phase.peak
        if phase.name == GENERATE:
            left = Components._make(max(0, have - less) for have, less in zip(peak, gone, strict=True))
            phase = Phase(name=phase.name, resident=resident + copies + doubled, peak=left)
        elif phase.name in MICRO_BATCH_PHASES:
            phase = _with_extra(phase, copies + doubled)
        elif phase.name == STEP:
            phase = Phase(name=phase.name, resident=resident + kept, peak=peak + copies + doubled)
        elif phase.name in (SYNC, SAVE):
            phase = _with_extra(phase, kept)
        phases.append(phase)
    return timeline._replace(phases=tuple(phases))
