"""Going on from a checkpoint: what a GPU and a node's host hold while it is read beside the model.

Sources: deepspeed 0.19.8 ``runtime/engine.py`` (``_load_checkpoint``: every rank reads the file of the module whole,
with ``map_location=lambda storage, loc: storage``, which leaves it on the CPU;
``_get_all_zero_checkpoint_state_dicts``: and its own optimizer states with ``map_location="cpu"``),
``runtime/zero/stage_1_and_2.py``, ``stage3.py`` and ``runtime/fp16/unfused_optimizer.py`` (``load_state_dict``); torch
2.13 ``optim/optimizer.py`` (``load_state_dict`` makes states on the weights' device, and those that lie there already
stay as they are); bitsandbytes 0.50 ``optim/optimizer.py`` (a deep copy first); transformers 5.23 ``trainer.py``
(``_load_from_checkpoint`` reads the model on the CPU, ``_load_optimizer_and_scheduler`` on the GPU where there are
several ranks, else on the CPU); the bundled trainer's ``engines/plain.py``.
"""

from typing import NamedTuple

from vlmplan.engines.components import Components
from vlmplan.engines.parameters import ParameterTable
from vlmplan.hardware import Cluster
from vlmplan.memory.disk import engine_weight_bytes, master_weight_bytes, optimizer_state_bytes
from vlmplan.memory.phases import Phase
from vlmplan.memory.timeline import Timeline
from vlmplan.phase_names import INIT, RESUME, STEP
from vlmplan.recipe import Recipe
from vlmplan.run.saving import Saving


class ResumeMemory(NamedTuple):
    """``phase`` is of the fullest GPU, or of a rank whose device is the host itself; ``host_bytes`` of a node, beside
    its processes and what is offloaded."""

    phase: Phase
    host_bytes: int


def resume_read_bytes(
    table: ParameterTable,
    recipe: Recipe,
    saving: Saving,
    *,
    export_bytes: int,
    num_ranks: int,
    ranks_per_node: int,
) -> int:
    """Host memory of a node that reading takes, beside its processes and what is offloaded."""
    reads = _reads(table, recipe, saving, export_bytes=export_bytes, num_ranks=num_ranks, is_on_cpu=False)
    return max(ranks_per_node * read.each + read.shared for read in reads)


def resume_memory(
    table: ParameterTable,
    recipe: Recipe,
    saving: Saving,
    timeline: Timeline,
    cluster: Cluster,
    *,
    export_bytes: int,
) -> ResumeMemory:
    """What reading a checkpoint takes, from the end of init to where the states are those of a later step.
    ``export_bytes``: of the model as the trainer writes it (``DiskSpace``).

    Where the device is the host, states that were read stay as they are: there are not two of them.
    """
    num_ranks, phases = cluster.num_gpus, {phase.name: phase for phase in timeline.phases}
    init, states = phases[INIT].resident, phases[STEP].resident.optimizer_states
    resident = init + Components(optimizer_states=states - init.optimizer_states)
    if cluster.node.gpu.is_cpu:
        reads = _reads(table, recipe, saving, export_bytes=export_bytes, num_ranks=num_ranks, is_on_cpu=True)
        peak = init + Components(temporaries=max(read.each + read.shared for read in reads))
        return ResumeMemory(phase=Phase(name=RESUME, resident=resident, peak=peak), host_bytes=0)
    peak = resident + Components(optimizer_states=_states_twice(table, recipe, saving, num_ranks))
    host_bytes = resume_read_bytes(
        table, recipe, saving, export_bytes=export_bytes, num_ranks=num_ranks, ranks_per_node=cluster.node.num_gpus
    )
    return ResumeMemory(phase=Phase(name=RESUME, resident=resident, peak=peak), host_bytes=host_bytes)


def _states_twice(table: ParameterTable, recipe: Recipe, saving: Saving, num_ranks: int) -> int:
    """Optimizer states that a GPU has beside those that stay: stage 0 has made some in init, and what bitsandbytes
    copies lies there where it was read to there."""
    has_made = recipe.zero_stage == 0 and master_weight_bytes(table, recipe) > 0
    if has_made or (_reads_to_gpu(recipe, saving, num_ranks) and _copies_states(recipe)):
        return optimizer_state_bytes(table, recipe)
    return 0


class _Read(NamedTuple):
    """Bytes in host memory at the same time: what ``each`` rank has of its own, and mapped files, ``shared`` by all."""

    each: int = 0
    shared: int = 0


def _reads(
    table: ParameterTable, recipe: Recipe, saving: Saving, *, export_bytes: int, num_ranks: int, is_on_cpu: bool
) -> list[_Read]:
    """One after the other: weights, then optimizer states; one file has both in plain PyTorch and under stage 0."""
    states = optimizer_state_bytes(table, recipe)
    copies = states if _copies_states(recipe) else 0
    updated = master_weight_bytes(table, recipe) + states + copies
    weights = engine_weight_bytes(table, recipe, saving)
    match recipe.zero_stage:
        case None if recipe.fsdp:  # every rank its own file
            return [_Read(each=-(-(weights + states) // recipe.sharing_ranks(num_ranks)))]
        case None if saving.by_hugging_face:
            is_elsewhere = _reads_to_gpu(recipe, saving, num_ranks) and not is_on_cpu
            return [_Read(shared=export_bytes), _Read(each=0 if is_elsewhere else states + copies)]
        case None:
            return [_Read(shared=weights + states, each=copies)]
        case 0:
            return [_Read(each=weights + updated)]
        case 3:
            return [_Read(each=-(-weights // num_ranks)), _Read(each=-(-updated // num_ranks))]
        case _:
            return [_Read(each=weights), _Read(each=-(-updated // num_ranks))]


def _reads_to_gpu(recipe: Recipe, saving: Saving, num_ranks: int) -> bool:
    """Whether optimizer states are read to where they stay, past the host."""
    return saving.by_hugging_face and recipe.zero_stage is None and num_ranks > 1


def _copies_states(recipe: Recipe) -> bool:
    return recipe.optimizer.is_bitsandbytes
