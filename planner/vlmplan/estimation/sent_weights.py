"""What sending weights to vLLM takes of a training GPU, beside them and beside vLLM's.

TRL: one weight at a time, which stage 3 gathers; with adapters all of them under stage 3, and what an adapter adds to
the largest weight (peft's ``merge_adapter``).

ms-swift: all weights of a group at once, which stage 3 gathers: all there are, or so many layers of the language model,
or what is in none of its layers, or what is not of it (``split_batches`` in ``rlhf_trainers/rollout_mixin.py`` of
4.6.0); to a server in one piece for each bucket (``_create_parameter_buckets`` in ``utils.py``).

verl and EasyR1: the buffer, and the largest weight as its shards have it (``full_tensor``) and as it is sent
(``rollout_mode`` in ``fsdp_workers.py``, ``update_weights`` in ``vllm_rollout.py`` of verl@b178a3cd); adapters go by
way of the host. FSDP1's flat parameters are made into a dictionary of weights before, each of them a copy of this
rank's rows that stays until all are sent: verl does so while vLLM sleeps, and moves the shards to the host behind it
where they wait there. From 0.9 on it does so beside vLLM's weights (``update_weights`` in ``engine_workers.py`` of
verl@1dda039b), as EasyR1 does (``load_vllm_and_sync_weights`` in ``fsdp_vllm.py`` of EasyR1@b44b311b).
"""

from collections.abc import Sequence

from vlmplan.architecture.parameter import Parameter
from vlmplan.engines.flat_units import FlatUnits, flat_units
from vlmplan.engines.parameters import ParameterTable
from vlmplan.memory.inference_engine import inference_weights
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload, Part
from vlmplan.recipe.task_choices import TaskTrainer
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
    if task.is_of_ms_swift:
        return _in_groups(table, recipe, num_ranks)
    if recipe.trains_adapters:
        merged = largest * recipe.trained_dtype.num_bytes
        return whole_bytes(table, recipe, num_ranks) + merged
    return largest * recipe.trained_dtype.num_bytes if recipe.zero_stage == 3 and num_ranks > 1 else 0


def _in_groups(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """The largest of ms-swift's groups, with what an adapter adds to the largest weight or, where weights go to a
    server, the largest of its buckets."""
    assert recipe.task is not None
    is_gathered = recipe.zero_stage == 3 and (num_ranks > 1 or recipe.offload_params is not Offload.NONE)
    limit = recipe.zero.stage3_param_persistence_threshold
    groups = list(_groups(table, recipe.task.sync_groups).values())
    gathered = [sum(_padded_bytes(one, num_ranks) for one in group if one.numel > limit) for group in groups]
    largest = max(one.numel for one, _ in table.kinds)
    merged = largest * recipe.trained_dtype.num_bytes if recipe.trains_adapters else 0
    bucket = 0
    if recipe.task.sync_buffer_mib:
        bucket = max(_largest_bucket(group, recipe.task.sync_buffer_mib * 2**20) for group in groups)
    return (max(gathered) if is_gathered else 0) + max(merged, bucket)


def _padded_bytes(one: Parameter, num_ranks: int) -> int:
    return -(-one.numel // num_ranks) * num_ranks * one.dtype.num_bytes


def _groups(table: ParameterTable, num_groups: int) -> dict[int | str, list[Parameter]]:
    """The parameters that go together, by the name of their group."""
    if not num_groups:
        return {"all": [entry.parameter for entry in table.entries]}
    layers = [entry.layer for entry in table.entries if entry.layer is not None and entry.part is Part.LANGUAGE]
    size = -(-(max(layers, default=0) + 1) // num_groups)
    found: dict[int | str, list[Parameter]] = {}
    for entry in table.entries:
        ends = "ends" if entry.layer is None else entry.layer // size
        found.setdefault(ends if entry.part is Part.LANGUAGE else "others", []).append(entry.parameter)
    return found


def _largest_bucket(group: Sequence[Parameter], limit: int) -> int:
    """Bytes of the fullest, which end before the weight that would be over the limit."""
    largest = current = 0
    for one in group:
        size = one.numel * one.dtype.num_bytes
        current = size if current + size > limit else current + size
        largest = max(largest, current)
    return largest


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
    units = flat_units(table, recipe, recipe.sharing_ranks(num_ranks))
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
