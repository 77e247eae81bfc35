"""What sending weights to vLLM takes of a training GPU, beside them and beside vLLM's.

TRL: one weight at a time, which stage 3 gathers; with adapters all of them under stage 3, and what an adapter adds to
the largest weight (peft's ``merge_adapter``).

verl and EasyR1: the buffer, and the largest weight as its shards have it (``full_tensor``) and as it is sent
(``rollout_mode`` in ``fsdp_workers.py``, ``update_weights`` in ``vllm_rollout.py`` of verl@b178a3cd); adapters go by
way of the host. FSDP1's flat parameters are made into a dictionary of weights before, each of them a copy of this
rank's rows that stays until all are sent: verl does so while vLLM sleeps, and moves the shards to the host behind it
where they wait there. From 0.9 on it does so beside vLLM's weights (``update_weights`` in ``engine_workers.py`` of
verl@1dda039b), as EasyR1 does (``load_vllm_and_sync_weights`` in ``fsdp_vllm.py`` of EasyR1@b44b311b).
"""

from vlmplan.engines.flat_units import FlatUnits, flat_units
from vlmplan.engines.parameters import ParameterTable
from vlmplan.memory.inference_engine import inference_weights
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.recipe.task import TaskTrainer
from vlmplan.units import DType


def sync_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """Bytes of what is beside the weights and vLLM's at the most."""
    task = recipe.task
    assert task is not None
    largest = max(one.numel for one, _ in table.kinds)
    if task.is_of_verl:
        widths = 0 if recipe.trains_adapters else recipe.held_dtype.num_bytes + DType.BFLOAT16.num_bytes
        sending = task.sync_buffer_mib * 2**20 + largest * widths
        return _with_dictionary(table, recipe, num_ranks, sending) if recipe.is_flat else sending
    if recipe.trains_adapters:
        merged = largest * recipe.trained_dtype.num_bytes
        return whole_bytes(table, recipe, num_ranks) + merged
    return largest * recipe.trained_dtype.num_bytes if recipe.zero_stage == 3 and num_ranks > 1 else 0


def whole_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """Bytes of all weights but those that are whole anyway, each padded to a multiple of the ranks
    (``trl/models/utils.py`` ``unwrap_model_for_generation``: ``deepspeed.zero.GatheredParameters`` of all)."""
    if recipe.fsdp:
        return table.total_bytes if num_ranks > 1 else 0
    is_whole = num_ranks == 1 and recipe.offload_params is Offload.NONE
    if recipe.zero_stage != 3 or is_whole:
        return 0
    limit = recipe.zero.stage3_param_persistence_threshold
    return sum(
        -(-one.numel // num_ranks) * num_ranks * one.dtype.num_bytes * count
        for one, count in table.kinds
        if one.numel > limit
    )


def _with_dictionary(table: ParameterTable, recipe: Recipe, num_ranks: int, sending: int) -> int:
    """``sending`` beside FSDP1's dictionary, or what making that takes, if it is more."""
    task = recipe.task
    assert task is not None
    units = flat_units(table, recipe, num_ranks)
    width = recipe.held_dtype.num_bytes
    copied = sum(map(units.copied_numel, units.all)) * width
    making = _most_while_copied(units) * width
    if task.trainer is TaskTrainer.EASYR1:
        return max(making, copied + sending)
    is_asleep = task.trainer is TaskTrainer.VERL and task.vllm_sleep_level
    asleep = inference_weights(table, recipe).num_bytes if is_asleep else 0
    idle = sum(unit.shard_numel for unit in units.all) * width if task.idle_offload.has_weights else 0
    return max(making - asleep, copied + sending - idle, 0)


def _most_while_copied(units: FlatUnits) -> int:
    """Elements while a unit after the other is whole and copied, all beside the whole root, which comes last: of each
    weight the whole, of which a rank's rows are kept. Source: torch 2.13 ``_state_dict_utils.py``
    (``_sharded_pre_state_dict_hook``, ``_sharded_post_state_dict_hook``), ``_shard_utils.py``
    (``_create_chunk_dtensor``)."""
    most = copied = 0
    for unit in units.all:
        whole = 0 if unit is units.root else unit.padded_numel
        for entry in unit.weights:
            rows = units.groups.shard_numel(entry)
            most = max(most, copied + whole + entry.parameter.numel + rows)
            copied += rows
    return units.root.padded_numel + most
