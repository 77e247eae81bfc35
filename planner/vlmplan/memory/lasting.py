"""What is on a GPU through all optimizer steps beside what an engine and a micro batch tell of."""

from vlmplan.engines.components import Components
from vlmplan.hardware import Gpu
from vlmplan.memory.evaluation import EVALUATION, GENERATION
from vlmplan.memory.overhead import workspace_bytes
from vlmplan.memory.phases import REFERENCE_PHASE, Phase
from vlmplan.memory.timeline import Timeline
from vlmplan.recipe import Recipe

MICRO_BATCH_PHASES = ("forward", REFERENCE_PHASE, "backward")
LASTING_PHASES = (*MICRO_BATCH_PHASES, "step", EVALUATION, GENERATION, "save")


def with_lasting(timeline: Timeline, gpu: Gpu, recipe: Recipe, batch_bytes: int, copy_bytes: int = 0) -> Timeline:
    """``timeline`` with cuBLAS' workspaces, which come with the first matrix product and stay, and with micro batches
    that wait for their turn or have had it: each takes ``batch_bytes``. Of those that a phase runs through one is in
    the timeline already; between the steps, where evaluations and checkpoints are, all of the last step's are there
    still. A second model takes ``copy_bytes`` from the beginning.
    """
    workspaces = Components(temporaries=workspace_bytes(gpu))
    phases: list[Phase] = []
    for phase in timeline.phases:
        if phase.name in LASTING_PHASES:
            num_waiting = recipe.num_waiting + (phase.name not in MICRO_BATCH_PHASES)
            extra = workspaces + Components(activations=num_waiting * batch_bytes)
            phase = _with_extra(phase, extra)
        if copy_bytes:
            phase = _with_extra(phase, Components(weights=copy_bytes))
        phases.append(phase)
    return Timeline(phases=tuple(phases))


def _with_extra(phase: Phase, extra: Components) -> Phase:
    return Phase(name=phase.name, resident=phase.resident + extra, peak=phase.peak + extra)
