"""What going on from a checkpoint holds, of a model whose parts are counted here: an embedding of 35 x 12, tied to the
head, and LoRA of rank 3 on q_proj and v_proj of two layers."""

from dataclasses import replace

import pytest

from planned import cluster, cpu_cluster
from vlmplan.estimation import Estimate, Estimator
from vlmplan.hardware import Cluster
from vlmplan.memory.device import Verdict
from vlmplan.memory.host import PROCESS_BYTES
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, OptimizerKind, WeightDtype
from vlmplan.run.saving import Saving, saving_of
from vlmplan.workload import ModelFiles, Workload

SIZES = {"vocab_size": 35, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
EMBEDDING = 35 * 12
LAYER = 12 * 12 + 6 * 12 + 6 * 12 + 12 * 12 + 3 * 20 * 12 + 12 + 12
MODEL = EMBEDDING + 2 * LAYER + 12
ADAPTERS = 2 * (3 * (12 + 12) + 3 * (12 + 6))
TRAINER = saving_of("transformers")
STATES = 2 * 4
MASTER = 4


def found(recipe: Recipe, on: Cluster, saving: Saving | None = None) -> Estimate:
    files = {"model_type": "llama", **SIZES, **HEADS, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    workload = Workload(model=ModelFiles(id="tiny", config=files), seq_len=8, saving=saving or Saving())
    return Estimator(workload, recipe).estimate(recipe, on)


def init_bytes(estimate: Estimate) -> int:
    return next(phase for phase in estimate.timeline.phases if phase.name == "init").resident.total


def read_bytes(recipe: Recipe, num_ranks: int, saving: Saving | None = None) -> int:
    """Beside what is there after init, on a rank whose device is the host itself."""
    estimate = found(recipe, cpu_cluster(num_ranks), saving)
    return estimate.resume.phase.peak.total - init_bytes(estimate)


def host_bytes(recipe: Recipe, num_ranks: int, saving: Saving | None = None) -> int:
    """Beside the processes, on a node with GPUs."""
    estimate = found(recipe, cluster(num_gpus=num_ranks), saving)
    return estimate.resume_host_bytes - num_ranks * PROCESS_BYTES


def lora(stage: int | None) -> Recipe:
    return Recipe(method=Method.LORA, lora_rank=3, lora_targets="q_proj,v_proj", zero_stage=stage)


def test_a_cpu_rank_reads_the_file_of_its_engine_beside_the_model():
    plain = Recipe(zero_stage=None, weight_dtype=WeightDtype.FLOAT32)
    assert read_bytes(plain, 1) == read_bytes(plain, 2) == MODEL * (4 + STATES)
    assert read_bytes(Recipe(zero_stage=0), 2) == MODEL * (2 + MASTER + STATES)
    assert read_bytes(lora(0), 2) == ADAPTERS * (2 + MASTER + STATES) + 2 * EMBEDDING


@pytest.mark.parametrize("stage", [1, 2])
def test_weights_and_a_ranks_share_of_states_are_read_one_after_the_other(stage: int):
    assert read_bytes(Recipe(zero_stage=stage), 2) == MODEL * (MASTER + STATES) // 2
    assert read_bytes(Recipe(zero_stage=stage), 12) == MODEL * 2  # each rank reads all weights, and a twelfth of states
    assert read_bytes(lora(stage), 2) == max(ADAPTERS * 2 + 2 * EMBEDDING, ADAPTERS * (MASTER + STATES) // 2)


def test_under_zero_3_a_rank_reads_its_share_alone():
    assert read_bytes(Recipe(zero_stage=3), 4) == MODEL * (MASTER + STATES) // 4


def test_every_rank_of_a_node_reads_the_weights_for_itself():
    for ranks in (2, 8):
        assert host_bytes(Recipe(zero_stage=2), ranks) == ranks * max(2 * MODEL, -(-MODEL * (MASTER + STATES) // ranks))
        assert host_bytes(Recipe(zero_stage=0), ranks) == ranks * MODEL * (2 + MASTER + STATES)
    assert host_bytes(Recipe(zero_stage=3), 8) == 8 * -(-MODEL * (MASTER + STATES) // 8)


def test_the_ranks_of_plain_pytorch_map_one_file():
    plain = Recipe(zero_stage=None, weight_dtype=WeightDtype.FLOAT32)
    for ranks in (1, 4):
        assert host_bytes(plain, ranks) == MODEL * (4 + STATES)


def test_offloaded_states_are_there_beside_those_that_are_read():
    recipe = Recipe(zero_stage=2, offload_optimizer=Offload.CPU)
    estimate = found(recipe, cluster(num_gpus=4))
    read = 4 * max(2 * MODEL, -(-MODEL * (MASTER + STATES) // 4))
    assert estimate.resume_host_bytes == estimate.host.steady_bytes + read


def test_stage_0_has_its_states_twice_for_a_moment():
    estimate = found(Recipe(zero_stage=0), cluster(num_gpus=2))
    resume, init = estimate.resume.phase, init_bytes(estimate)
    assert init == MODEL * (2 + MASTER + STATES)
    assert (resume.peak.total, resume.resident.total) == (init + MODEL * STATES, init)


@pytest.mark.parametrize("stage", [None, 1, 2, 3])
def test_other_engines_need_no_more_of_a_gpu_than_a_step_does(stage: int | None):
    recipe = Recipe(zero_stage=stage)
    estimate = found(recipe, cluster(num_gpus=2))
    step = next(phase for phase in estimate.timeline.phases if phase.name == "step")
    assert estimate.resume.phase.peak.total <= step.peak.total
    assert estimate.resume.phase.resident.optimizer_states == step.resident.optimizer_states


def test_hugging_faces_trainer_reads_states_past_the_host_where_there_are_several_ranks():
    recipe = Recipe(zero_stage=None, weight_dtype=WeightDtype.FLOAT32)
    assert host_bytes(recipe, 1, TRAINER) == MODEL * STATES
    assert host_bytes(recipe, 2, TRAINER) == MODEL * 4  # the model's file, mapped
    assert read_bytes(recipe, 2, TRAINER) == MODEL * STATES
    small = replace(recipe, optimizer=OptimizerKind.ADAMW_8BIT)
    one, two = (found(small, cluster(num_gpus=ranks), TRAINER) for ranks in (1, 2))
    states = one.disk.checkpoint_bytes - MODEL * 4
    assert one.resume.phase.peak == one.resume.phase.resident
    assert two.resume.phase.peak.total == two.resume.phase.resident.total + states
    assert host_bytes(small, 1, TRAINER) == max(2 * states, MODEL * 4)


def test_a_run_that_fits_and_cannot_go_on_says_so():
    recipe = Recipe(zero_stage=0)
    estimate = found(recipe, cluster(num_gpus=8))
    assert not [note for note in estimate.cautions if "going on from a checkpoint" in note]
    ram = estimate.host.peak_bytes + 1
    node = replace(estimate.cluster.node, host_ram_bytes=ram)
    short = replace(estimate, cluster=replace(estimate.cluster, node=node))
    assert short.verdict is Verdict.FITS
    assert short.resumes is (estimate.resume_host_bytes <= ram)
    large = estimate.resume._replace(host_bytes=ram)
    [caution] = [note for note in replace(short, resume=large).cautions if "going on from a checkpoint" in note]
    assert "of host RAM" in caution
    assert "of each GPU" not in caution
