"""GRPO as verl runs it: what is on the GPU in each phase, and what waits on the host."""

from dataclasses import replace

import pytest

from planned import cluster, of_few_layers, workload
from vlmplan.estimation import Estimator, estimate
from vlmplan.phase_names import BACKWARD, GENERATE, REFERENCE, SYNC
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    AttentionImplementation,
    Batching,
    FlatParameters,
    LossKind,
    Method,
    ShardUnits,
    WeightDtype,
)
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, IdleOffload, Reference, ReferenceShards, TaskKind, TaskTrainer
from vlmplan.units import MIB

NUM_RANKS = 4
TASK = TrainingTask(
    kind=TaskKind.GRPO,
    trainer=TaskTrainer.VERL,
    generation=Generation.VLLM,
    vllm_memory=0.5,
    vllm_sleep_level=2,
    reference=Reference.NONE,
    completion_tokens=64,
    num_generations=4,
    scoring_batch=2,
)
RECIPE = Recipe(
    fsdp=True,
    reduces_in_float32=True,
    shard_units=ShardUnits.EMBEDDING_TOO,
    batching=Batching.PADDING_FREE,
    attention=AttentionImplementation.FLASH_ATTENTION_2,
    loss=LossKind.VERL,
    micro_batch=2,
    grad_accum=3,
    task=TASK,
)
WORKLOAD = workload(of_few_layers("tinyllama-1.1b"), seq_len=128)
MACHINE = cluster("a100-sxm4-80gb", NUM_RANKS)


def phases(recipe: Recipe = RECIPE):
    found = Estimator(WORKLOAD, recipe).timeline(recipe, MACHINE)
    return {phase.name: phase for phase in found.phases}


def with_task(**changes: object) -> Recipe:
    return RECIPE.with_changes(task=replace(TASK, **changes))


def num_params() -> int:
    return estimate(WORKLOAD, RECIPE, MACHINE).num_params


def test_idle_weights_and_states_are_gone_while_answers_are_generated_and_there_to_train():
    here, moved = phases(), phases(with_task(idle_offload=IdleOffload.ALL))
    shards = 4 * num_params() // NUM_RANKS
    assert here[GENERATE].peak.weights == pytest.approx(shards, rel=1e-3)
    assert here[GENERATE].peak.total - moved[GENERATE].peak.total == pytest.approx(3 * shards, rel=1e-3)
    assert moved[GENERATE].peak.weights == moved[GENERATE].peak.optimizer_states == 0
    assert moved[SYNC].peak.weights == here[SYNC].peak.weights
    assert moved[REFERENCE].peak.optimizer_states == 0
    assert moved[BACKWARD] == here[BACKWARD]


def test_what_is_moved_is_on_the_host():
    sizes = [estimate(WORKLOAD, with_task(idle_offload=kind), MACHINE).host.steady_bytes for kind in IdleOffload]
    none, weights, optimizer, everything = sizes
    assert weights - none == pytest.approx(4 * num_params(), rel=1e-3)
    assert optimizer - none == pytest.approx(8 * num_params(), rel=1e-3)
    assert everything - none == weights - none + optimizer - none


def test_weights_go_to_vllm_through_a_buffer_one_by_one():
    embedding = 32000 * 2048
    without, buffered = phases(), phases(with_task(sync_buffer_mib=100))
    assert without[SYNC].peak.weights - without[SYNC].resident.weights == embedding * (4 + 2)
    assert buffered[SYNC].peak.total - without[SYNC].peak.total == 100 * 2**20


def test_fsdp1_sends_a_dictionary_of_copies_which_verl_makes_while_vllm_sleeps():
    """While it is made the root is whole in float32, and its head once more: in EasyR1 beside vLLM's weights. Shards
    that wait on the host are there when it is sent."""
    flat = RECIPE.with_changes(
        shard_units=ShardUnits.LAYERS, flat_parameters=FlatParameters.BACKWARD_PRE, uses_orig_params=False
    )
    copies, embedding, norm = 4 * num_params() // NUM_RANKS, 32000 * 2048, 2048

    def taken(**changes: object) -> int:
        sync = phases(flat.with_changes(task=replace(TASK, **changes)))[SYNC]
        return sync.peak.weights - sync.resident.weights

    assert taken() == copies + embedding * (4 + 2)
    made = copies + 4 * (2 * embedding + norm) + 4 * embedding
    assert taken(trainer=TaskTrainer.EASYR1) == taken(trainer=TaskTrainer.VERL_ENGINE) == made
    assert taken(idle_offload=IdleOffload.WEIGHTS) == made - 2 * num_params()


def test_log_probabilities_take_whole_logits_and_a_float32_of_each_for_the_entropy():
    one, two = (phases(with_task(scoring_batch=rows))[REFERENCE].peak.logits for rows in (64, 128))
    of_rows = 64 * 128 * 32000
    assert two - one == pytest.approx(of_rows * (2 + 4), rel=1e-3)
    easy = [
        phases(with_task(trainer=TaskTrainer.EASYR1, scoring_batch=rows))[REFERENCE].peak.logits for rows in (64, 128)
    ]
    assert easy[1] - easy[0] == pytest.approx(of_rows * 2, rel=1e-3)


def test_the_quotient_that_verl_looks_up_later_is_beside_the_logits():
    later = RECIPE.with_changes(loss=LossKind.VERL_QUOTIENT)
    one, two = (
        phases(later.with_changes(task=replace(TASK, trainer=TaskTrainer.VERL_ENGINE, scoring_batch=rows)))
        for rows in (64, 128)
    )
    grown = two[REFERENCE].peak.logits - one[REFERENCE].peak.logits
    assert grown == pytest.approx(64 * 128 * 32000 * (2 + 2 + 4), rel=1e-3)


def test_a_second_model_on_the_host_takes_nothing_of_the_gpu():
    alone = phases()[BACKWARD].resident.weights
    on_gpu, on_host, wide = (with_task(reference=Reference.COPY, reference_shards=kind) for kind in ReferenceShards)
    assert phases(on_host)[BACKWARD].resident.weights == alone
    assert phases(on_gpu)[BACKWARD].resident.weights - alone == -(-num_params() // NUM_RANKS) * 2
    hosts = [estimate(WORKLOAD, recipe, MACHINE).host.steady_bytes for recipe in (RECIPE, on_host, wide)]
    assert [one - hosts[0] for one in hosts] == pytest.approx([0, 2 * num_params(), 4 * num_params()], rel=1e-3)


def test_frozen_weights_of_verl_are_sharded_in_float32_and_gathered_in_16_bits():
    lora = RECIPE.with_changes(method=Method.LORA)
    narrow, wide = phases(lora), phases(lora.with_changes(weight_dtype=WeightDtype.FLOAT32))
    grown = wide[BACKWARD].resident.weights - narrow[BACKWARD].resident.weights
    assert grown == pytest.approx(2 * num_params() / NUM_RANKS, rel=0.01)


@pytest.mark.parametrize("flat", [FlatParameters.NONE, FlatParameters.BACKWARD_PRE])
@pytest.mark.parametrize("trainer", [TaskTrainer.VERL, TaskTrainer.VERL_ENGINE])
def test_of_copies_a_gpu_holds_what_fewer_without_copies_hold(flat: FlatParameters, trainer: TaskTrainer):
    """2 copies on 4 GPUs each: what is sent of FSDP1 is made of a copy's shards. The reference of ``FSDPEngine`` is
    shared by all."""
    units = ShardUnits.EMBEDDING_TOO if flat is FlatParameters.NONE else ShardUnits.LAYERS
    task = {"idle_offload": IdleOffload.ALL, "reference": Reference.COPY, "trainer": trainer}
    loss = LossKind.VERL if trainer is TaskTrainer.VERL else LossKind.VERL_QUOTIENT
    recipe = with_task(**task, reference_shards=ReferenceShards.HOST_FLOAT32).with_changes(
        flat_parameters=flat, shard_units=units, loss=loss
    )
    copied = recipe.with_changes(dp_shard_size=NUM_RANKS)
    on_two = replace(MACHINE, num_nodes=2)
    alone, copies = estimate(WORKLOAD, recipe, MACHINE), estimate(WORKLOAD, copied, on_two)
    found = {phase.name: phase for phase in copies.timeline.phases}
    for phase in alone.timeline.phases:
        assert phase.name == BACKWARD or found[phase.name] == phase
    shards = NUM_RANKS * 4 * num_params() // NUM_RANKS
    less = 0 if trainer is TaskTrainer.VERL else shards // 2
    assert alone.host.steady_bytes - copies.host.steady_bytes == pytest.approx(less, abs=MIB)
