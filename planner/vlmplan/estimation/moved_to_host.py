"""What ms-swift moves to the host while vLLM generates, and what it leaves behind when that comes back.

``offload_model`` moves the data of every parameter, and of every buffer. Under DeepSpeed trained weights are views of
flat buffers (``bit16_groups_flat`` in ``zero/stage_1_and_2.py``, ``fp16_partitioned_groups_flat`` in ``stage3.py``),
which stay on the GPU: nothing is freed, and what comes back are copies beside them, until the step makes views of the
parameters again (``_update_model_bit16_weights``, ``_unflatten_partitioned_parameters``). Shards of ZeRO-3 that wait on
the host come to the GPU with the rest, as ``load_model`` asks nothing of where they were. ``offload_optimizer`` moves
the optimizer's states and not DeepSpeed's master weights, which are no states. Of stages 1 and 2 every weight has views
of its states (``set_optim_state_fragment`` in ``utils/tensor_fragment.py``), by which these stay on the GPU, and stand
there twice when they come back, to the end of the run.

Sources: ``offload_context`` in ``rlhf_trainers/grpo_trainer.py`` and ``offload_model``, ``load_model`` and
``offload_optimizer`` in ``rollout_mixin.py`` of ms-swift 4.6.0; deepspeed 0.19.8.
"""

from typing import NamedTuple

from vlmplan.engines.choice import engine_of
from vlmplan.engines.components import NOTHING, Components
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.shards import Shards
from vlmplan.estimation.references import copy_bytes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.units import DType


class Moved(NamedTuple):
    """``gone``: what is on the host while vLLM generates; ``copied_bytes``: of weights that stand twice on the GPU from
    then until a step's end, ``kept_bytes`` of them to the next answers; ``doubled_bytes``: of states that stand twice
    but while vLLM generates."""

    gone: Components = NOTHING
    copied_bytes: int = 0
    doubled_bytes: int = 0
    kept_bytes: int = 0

    @property
    def host_bytes(self) -> int:
        """Bytes that go to the host."""
        return self.gone.total + self.copied_bytes + self.doubled_bytes


def moved_to_host(table: ParameterTable, recipe: Recipe, num_ranks: int) -> Moved:
    """Of one of ``num_ranks`` GPUs, with a second model and tables that are no weights."""
    task = recipe.task
    if task is None or not task.is_ms_swifts_grpo:
        return Moved()
    weights, copied, kept = 0, 0, 0
    if task.idle_offload.has_weights:
        weights, copied, kept = _moved_weights(table, recipe, num_ranks)
        weights += table.table_bytes(recipe) + copy_bytes(table, recipe, num_ranks)
    states = _moved_states(table, recipe, num_ranks) if task.idle_offload.has_optimizer else 0
    if recipe.zero_stage in (1, 2):
        return Moved(Components(weights=weights), copied, states)
    return Moved(Components(weights=weights, optimizer_states=states), copied, kept_bytes=kept)


def _moved_weights(table: ParameterTable, recipe: Recipe, num_ranks: int) -> tuple[int, int, int]:
    """(bytes that leave the GPU, bytes that stand there twice behind, those of them that no step makes views of flat
    ones: frozen ones that were on the host)."""
    if not recipe.uses_deepspeed:
        return table.total_bytes, 0, 0
    if recipe.zero_stage != 3:
        return table.frozen_bytes, table.trained_bytes, 0
    shards = Shards(table, recipe, num_ranks)
    (whole, _), (frozen, _) = shards.weight_totals, shards.frozen_weight_totals
    return (0, whole, frozen) if recipe.offload_params is not Offload.NONE else (frozen, whole - frozen, 0)


def _moved_states(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    states = engine_of(table, recipe, num_ranks=num_ranks).states().resident.optimizer_states
    if not recipe.uses_deepspeed or recipe.master_dtype is not DType.FLOAT32:
        return states
    shares = num_ranks if recipe.partitions_states else 1
    return max(0, states - -(-table.num_trained // shares) * DType.FLOAT32.num_bytes)
