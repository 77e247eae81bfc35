"""What loading holds: on a GPU, on a rank that runs on the CPU, and in the host's memory.

The model has two layers of width 12: an embedding of 35 x 12 weights, and per layer 12 x 12 (q), 6 x 12 (k, v),
12 x 12 (o), three times 20 x 12 and two norms of 12; one last norm of 12.
"""

from typing import Any

import pytest

from planned import cluster, cpu_cluster
from vlmplan.engines import engine_of
from vlmplan.engines.parameters import ParameterTable
from vlmplan.estimation import Estimator
from vlmplan.memory.host import PROCESS_BYTES, HostMemory, host_memory
from vlmplan.memory.peaks import PeakTracker
from vlmplan.memory.phases import Phase
from vlmplan.models import stored_dtype
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, Precision, WeightDtype
from vlmplan.units import MIB, DType
from vlmplan.workload import ModelFiles, Workload

SIZES = {"vocab_size": 35, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
EMBEDDING, NORM = 35 * 12, 12
LAYER = [12 * 12, 6 * 12, 6 * 12, 12 * 12, 20 * 12, 20 * 12, 20 * 12, NORM, NORM]
WEIGHTS = [EMBEDDING, *LAYER, *LAYER, NORM]


def estimator(recipe: Recipe, *, ties: bool = True, **config: Any) -> Estimator:
    files = {"model_type": "llama", **SIZES, **HEADS, "tie_word_embeddings": ties, "torch_dtype": "bfloat16", **config}
    return Estimator(Workload(model=ModelFiles(id="tiny", config=files), seq_len=8), recipe)


def load_phase(table: ParameterTable, recipe: Recipe, num_ranks: int, *, is_on_cpu: bool = False) -> Phase:
    """What the device holds while the checkpoint is read."""
    tracker = PeakTracker()
    engine_of(table, recipe, num_ranks=num_ranks, sink=tracker).load(is_on_cpu=is_on_cpu)
    return Phase(name="load", resident=tracker.now(), peak=tracker.peak)


def shards(weights: list[int], num_ranks: int) -> int:
    return sum(2 * -(-numel // num_ranks) for numel in weights)


def stage_3(*, num_ranks: int = 3, ties: bool = True, **fields: Any) -> Phase:
    recipe = Recipe(zero_stage=3, **fields)
    return load_phase(estimator(recipe, ties=ties).table, recipe, num_ranks)


# On the device


def test_where_ranks_run_on_the_cpu_weights_arrive_where_they_stay():
    recipe = Recipe()
    load = load_phase(estimator(recipe).table, recipe, 1, is_on_cpu=True)
    assert load.peak.total == load.resident.total == 4 * sum(WEIGHTS)


def test_stage_3_gathers_one_module_beside_all_shards_while_it_loads():
    load = stage_3(ties=False)
    assert load.resident.total == shards([*WEIGHTS, EMBEDDING], 3)
    assert load.peak.total == shards([*WEIGHTS, EMBEDDING], 3) + 2 * EMBEDDING


def test_a_tied_head_is_a_weight_of_its_own_while_stage_3_loads():
    load = stage_3(ties=True)
    assert load.resident.total == shards([*WEIGHTS, EMBEDDING], 3)
    assert load.peak.total == shards([*WEIGHTS, EMBEDDING], 3) + 2 * EMBEDDING


def test_hpz_keeps_a_secondary_partition_of_the_tied_head_too_while_it_loads():
    both = [*WEIGHTS, EMBEDDING]
    load = stage_3(num_ranks=4, hpz=2, ties=True)
    assert load.resident.total == shards(both, 4) + shards(both, 2)
    assert load.peak.total == shards(both, 4) + shards(both, 2) + 2 * EMBEDDING


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_stage_3_with_offloaded_weights_has_nothing_but_the_module_and_its_shards_on_the_gpu(num_ranks: int):
    load = stage_3(num_ranks=num_ranks, offload_params=Offload.CPU)
    assert load.peak.total == 2 * EMBEDDING + 2 * EMBEDDING // num_ranks
    assert load.resident.total == 0


def test_adapters_are_whole_until_the_engine_of_stage_3_cuts_them_up():
    load = stage_3(method=Method.LORA, lora_rank=5, lora_targets="q_proj", ties=False)
    assert load.resident.total == shards([*WEIGHTS, EMBEDDING], 3) + 2 * (2 * 5 * (12 + 12))


def test_what_is_trained_in_a_copy_is_copied_when_all_adapters_are_there():
    load = stage_3(method=Method.LORA, lora_rank=5, lora_targets="q_proj", train_embeddings=True)
    adapters, copy = 2 * (2 * 5 * (12 + 12)), 2 * EMBEDDING
    assert load.resident.total == shards([*WEIGHTS, EMBEDDING], 3) + adapters + copy
    assert load.peak.total == load.resident.total + shards([EMBEDDING], 3) * 3


def test_the_first_cpu_rank_holds_the_whole_checkpoint_as_well():
    recipe = Recipe(zero_stage=3)
    for stored, width in (("bfloat16", 2), ("float32", 4)):
        found = estimator(recipe, torch_dtype=stored)
        on_cpu, on_gpu = (found.timeline(recipe, on).phases[0] for on in (cpu_cluster(3), cluster(num_gpus=3)))
        assert on_cpu.peak.total - on_gpu.peak.total == width * sum(WEIGHTS)


@pytest.mark.parametrize(("method", "largest"), [(Method.FULL, EMBEDDING), (Method.LORA, 16 * 20)])
def test_hooks_of_stage_3_gather_trained_weights_alone(method: Method, largest: int):
    recipe = Recipe(zero_stage=3, method=method, lora_rank=16)
    init = estimator(recipe).timeline(recipe, cluster(num_gpus=3)).phases[1]
    assert init.peak.total - init.resident.total == 3 * 2 * -(-largest // 3)  # cut among three, so padded


def test_adapters_of_packed_weights_come_in_16_bits_and_are_made_wide_after_the_embedding():
    """``set_types`` of the trainer goes through all weights in the order of the model, whose first is the embedding."""
    recipe = Recipe(method=Method.QLORA, zero_stage=None, upcasts_frozen=True, lora_rank=2)
    table = estimator(recipe, vocab_size=3500).table
    load = load_phase(table, recipe, 1)
    embedding, norms, adapters = 3500 * 12, 5 * NORM, table.num_trained
    packed = table.total_bytes - 4 * (embedding + norms + adapters)
    assert load.resident.total == table.total_bytes
    assert load.peak.total == packed + 2 * (norms + adapters) + (2 + 4) * embedding


def test_packed_weights_come_in_float32_where_all_weights_do():
    """At the last of the MLP's, before which the embedding and three norms have come."""
    usual, wide = (
        load_phase(estimator(recipe, intermediate_size=2000).table, recipe, 1).peak.total
        for recipe in (
            Recipe(method=Method.LORA_8BIT, zero_stage=None, weight_dtype=dtype, lora_targets="q_proj")
            for dtype in (WeightDtype.TABLE, WeightDtype.FLOAT32)
        )
    )
    assert wide - usual == 2 * (2000 * 12 + EMBEDDING + 3 * NORM)


# In the host's memory


def arriving(recipe: Recipe, *, ranks_per_node: int = 4, num_ranks: int = 4, **config: Any) -> int:
    """Bytes while loading besides those of the processes."""
    found = estimator(recipe, **config)
    host: HostMemory = host_memory(
        found.table,
        recipe,
        num_ranks=num_ranks,
        ranks_per_node=ranks_per_node,
        stored=found.stored_dtype,
    )
    return host.load_bytes - ranks_per_node * PROCESS_BYTES


def test_the_host_of_stage_3_holds_one_checkpoint_however_many_ranks_it_has():
    for ranks in (1, 4):
        assert arriving(Recipe(zero_stage=3), ranks_per_node=ranks, num_ranks=4) == 2 * sum(WEIGHTS)


def test_the_host_holds_offloaded_shards_beside_the_checkpoint():
    recipe = Recipe(zero_stage=3, offload_params=Offload.CPU)
    assert arriving(recipe) == 2 * sum(WEIGHTS) + 4 * shards(WEIGHTS, 4)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_ranks_share_the_mapped_files_of_weights_that_keep_their_type(stage: int):
    assert arriving(Recipe(zero_stage=stage)) == 2 * sum(WEIGHTS)
    assert arriving(Recipe(zero_stage=stage), torch_dtype="float32") == 4 * 2 * sum(WEIGHTS) + 4 * sum(WEIGHTS)


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_every_rank_has_the_whole_model_in_float32_where_it_is_loaded_so_and_cast_by_deepspeed(ranks: int, stage: int):
    recipe = Recipe(zero_stage=stage, weight_dtype=WeightDtype.FLOAT32)
    found = arriving(recipe, ranks_per_node=ranks, num_ranks=ranks)
    assert found == ranks * 4 * sum(WEIGHTS) + 2 * sum(WEIGHTS)
    assert arriving(recipe, torch_dtype="float32") == 4 * sum(WEIGHTS)  # the mapped files of all ranks
    sharded = arriving(recipe.with_changes(zero_stage=3), ranks_per_node=ranks, num_ranks=ranks)
    assert sharded == arriving(Recipe(zero_stage=3), ranks_per_node=ranks, num_ranks=ranks)


def test_a_cpu_rank_has_it_in_float32_until_each_weight_is_cast():
    recipe = Recipe(zero_stage=2, weight_dtype=WeightDtype.FLOAT32)
    load = load_phase(estimator(recipe).table, recipe, 2, is_on_cpu=True)
    assert load.peak.total == 4 * sum(WEIGHTS) + 2 * EMBEDDING
    assert load.resident.total == 2 * sum(WEIGHTS)
    on_gpu = load_phase(estimator(recipe).table, recipe, 2)
    assert on_gpu.peak.total == 0  # they come to the GPU in 16 bit


def test_plain_training_in_float32_copies_every_weight_on_the_host():
    recipe = Recipe(zero_stage=None, precision=Precision.BF16)
    assert arriving(recipe, ranks_per_node=1, num_ranks=1) == (4 + 2) * sum(WEIGHTS)


def test_4_bit_weights_pass_through_the_host_one_by_one():
    assert arriving(Recipe(zero_stage=2, method=Method.QLORA)) == 4 * 2 * EMBEDDING


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "float32"}, DType.FLOAT32),
        ({"torch_dtype": "float16"}, DType.FLOAT16),
        ({"torch_dtype": "half"}, DType.FLOAT16),
        ({"dtype": "float"}, DType.FLOAT32),
        ({"text_config": {"torch_dtype": "float32"}}, DType.FLOAT32),
        ({}, DType.BFLOAT16),
    ],
)
def test_the_type_of_a_checkpoint_is_what_its_configuration_says(config: dict[str, Any], dtype: DType):
    assert stored_dtype(config) is dtype


# Ranks on the CPU


@pytest.mark.parametrize("stage", [2, 3])
def test_cpu_ranks_have_neither_a_cuda_context_nor_nccl(stage: int):
    recipe = Recipe(zero_stage=stage)
    found = estimator(recipe).estimate(recipe, cpu_cluster(2))
    assert (found.device.context_bytes, found.device.nccl_bytes) == (0, 0)
    assert found.device.device_bytes == found.device.reserved_bytes + found.device.process_bytes


def test_only_the_first_cpu_rank_reads_the_checkpoint():
    recipe = Recipe(zero_stage=3)
    found = estimator(recipe).estimate(recipe, cpu_cluster(3))
    first = found.timeline.phases[0].peak.total
    assert found.host.load_bytes == 3 * (first + found.device.process_bytes) - 2 * 2 * sum(WEIGHTS)


def test_a_gpu_rank_has_a_context_and_its_process_on_the_host():
    recipe = Recipe(zero_stage=2)
    found = estimator(recipe).estimate(recipe, cluster(num_gpus=2)).device
    assert found.context_bytes > 100 * MIB
    assert found.nccl_bytes > 0
    assert found.process_bytes == 0
