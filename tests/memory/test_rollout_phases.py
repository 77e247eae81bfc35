"""GRPO: what generating answers, looking up log-probabilities and vLLM on the same GPU take beside the steps."""

from math import ceil, log2
from typing import Any

import pytest

from planned import cluster, shortened
from task_phases import ANSWER, LAYERS, TOKENS, estimator, phases
from vlmplan.errors import InputError
from vlmplan.estimation import Estimator, refuse_parts_of_groups, whole_groups
from vlmplan.memory.inference_engine import ASLEEP_BYTES, GRAPH_BYTES, InferenceEngine, inference_weights
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Method, Offload
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, IdleOffload, Reference, TaskKind, TaskTrainer
from vlmplan.units import GIB
from vlmplan.workload import Workload

KV_HEADS, HEAD_DIM = 3, 64


def for_grpo(stage: int | None = 2, method: Method = Method.FULL, **settings: object) -> Recipe:
    task = TrainingTask(kind=TaskKind.GRPO, completion_tokens=ANSWER, num_generations=4, **settings)  # type: ignore[arg-type]
    return Recipe(loss=LossKind.TRL, zero_stage=stage, method=method, micro_batch=3, grad_accum=4, task=task)


def test_answers_are_generated_before_the_forward_and_nothing_is_looked_up_by_itself():
    names = list(phases(for_grpo()))
    assert names == ["load", "init", "generate", "forward", "backward", "step", "save"]


def test_answers_that_are_trained_on_twice_have_old_probabilities_looked_up_and_are_generated_between_steps():
    once, twice = phases(for_grpo()), phases(for_grpo(num_iterations=2))
    assert list(twice) == ["load", "init", "generate", "reference", "forward", "backward", "step", "save"]
    assert {name: twice[name] for name in once} == once


def test_generation_holds_keys_and_values_of_all_answers():
    """The last token's are not needed any more; the longest cache is on top of what the step leaves."""
    recipe = for_grpo()
    found = estimator().evaluated(recipe, num_ranks=2, capability=(8, 0), is_on_cpu=False)
    assert found is not None
    assert found.generated is not None
    rows = 3 * 4
    assert found.generated.cache_bytes == rows * (TOKENS - 1) * LAYERS * 2 * KV_HEADS * HEAD_DIM * 2
    generate = phases(recipe)["generate"]
    assert generate.peak.total - generate.resident.total >= found.generated.cache_bytes


@pytest.mark.parametrize(
    ("alias", "layers", "attention", "generate_bytes"),
    [
        ("gpt2", {"n_layer": 3}, AttentionImplementation.SDPA, 448_486_912),
        ("bloom-560m", {"n_layer": 3}, AttentionImplementation.EAGER, 1_662_315_520),
        ("smollm2-135m", {"num_hidden_layers": 3}, AttentionImplementation.SDPA, 258_229_248),
        ("opt-125m", {"num_hidden_layers": 3}, AttentionImplementation.SDPA, 433_697_792),
    ],
)
def test_answers_are_generated_in_training_mode(
    alias: str, layers: dict[str, int], attention: AttentionImplementation, generate_bytes: int
):
    """Peaks of ``vlmplan rehearse --task grpo --gpu a100-sxm4-80gb --zero-stage none --method lora --lora-dropout 0.1
    --seq-len 768 --micro-batch 8 --max-completion-tokens 64`` of three layers: TRL 1.16 calls no ``model.eval()``, so
    that dropout drops, and every row of prompts has positions of its own."""
    task = TrainingTask(kind=TaskKind.GRPO, completion_tokens=64)
    recipe = Recipe(loss=LossKind.TRL, zero_stage=None, method=Method.LORA, lora_dropout=0.1, micro_batch=8, task=task)
    recipe = recipe.with_changes(attention=attention)
    found = Estimator(Workload(model=shortened(alias, **layers), seq_len=768), recipe)
    generate = next(one for one in found.timeline(recipe, cluster()).phases if one.name == "generate")
    assert generate.peak.total == pytest.approx(generate_bytes, rel=2e-4)


def test_a_second_model_drops_nothing_when_it_is_looked_up():
    """``from_pretrained`` and ``prepare_deepspeed`` leave it in evaluation mode."""
    recipe = for_grpo(reference=Reference.COPY, method=Method.LORA)
    assert phases(recipe.with_changes(lora_dropout=0.5))["reference"] == phases(recipe)["reference"]


def test_generation_under_stage_3_gathers_every_weight():
    table = estimator(Method.FULL, 3).table
    whole = sum(one.numel * count for one, count in table.kinds if one.numel > 10**5) * 2
    found = phases(for_grpo(stage=3))
    assert found["generate"].peak.weights - found["generate"].resident.weights >= whole


def test_gathering_every_weight_takes_all_shards_from_the_host_to_the_gpu_at_once():
    """Half of the weights on each of 2 GPUs, beside the whole ones; what few prompts take is less than these."""
    table = estimator(Method.FULL, 3).table
    whole = sum(one.numel * count for one, count in table.kinds if one.numel > 10**5) * 2
    recipe = for_grpo(stage=3).with_changes(offload_params=Offload.CPU, micro_batch=1)
    found = phases(recipe)["generate"]
    assert found.peak.weights - found.resident.weights == whole + whole // 2


def test_a_reference_is_looked_up_before_the_forward():
    without, found = phases(for_grpo()), phases(for_grpo(reference=Reference.COPY))
    assert list(found)[2:5] == ["generate", "reference", "forward"]
    assert found["forward"].peak.total - without["forward"].peak.total == estimator().table.total_bytes


def test_vllm_has_old_probabilities_looked_up_and_weights_sent():
    found = phases(for_grpo(generation=Generation.VLLM, vllm_memory=0.25))
    assert list(found)[2:6] == ["sync", "generate", "reference", "forward"]
    total = cluster().node.gpu
    taken = int(0.25 * (total.cuda_visible_bytes or total.usable_bytes))
    for name in ("init", "sync", "generate", "reference", "forward", "backward", "step", "save"):
        assert found[name].peak.inference_engine == taken, name


@pytest.mark.parametrize("moved", [IdleOffload.NONE, IdleOffload.ALL])
def test_vllm_sleeps_again_before_generation_is_over(moved: IdleOffload):
    """So generation ends with what the trainer has, whatever was on the host meanwhile."""
    idle = {"trainer": TaskTrainer.MS_SWIFT, "idle_offload": moved}
    recipe = for_grpo(generation=Generation.VLLM, vllm_memory=0.25, vllm_sleep_level=1, **idle)
    found = phases(recipe.with_changes(loss=LossKind.TEMPERED))
    assert found["generate"].resident.inference_engine == found["forward"].resident.inference_engine
    assert found["generate"].peak.inference_engine > found["generate"].resident.inference_engine
    assert all(phase.peak.total >= phase.resident.total for phase in found.values())


def test_vllm_asleep_gives_its_memory_back():
    found = phases(for_grpo(generation=Generation.VLLM, vllm_memory=0.25, vllm_sleep_level=2))
    assert found["backward"].peak.inference_engine == ASLEEP_BYTES
    assert ASLEEP_BYTES < found["sync"].peak.inference_engine < found["generate"].peak.inference_engine


def on_the_host(level: int, **changes: Any) -> int:
    recipe = for_grpo(generation=Generation.VLLM, vllm_memory=0.25, vllm_sleep_level=level, **changes)
    return estimator().host(recipe, cluster(num_gpus=2)).steady_bytes


@pytest.mark.parametrize("num_sharing", [1, 2])
def test_vllm_asleep_at_level_1_leaves_its_weights_in_pinned_host_memory(num_sharing):
    """Of each weight the next power of two bytes, for both GPUs."""
    kept = sum(2 ** ceil(log2(2 * one.parameter.numel / num_sharing)) for one in estimator().table.entries)
    one, two = (on_the_host(level, vllm_tensor_parallel=num_sharing) for level in (1, 2))
    assert one - two == 2 * kept
    assert on_the_host(2) == on_the_host(0)


def test_vllm_packs_the_weights_of_a_4_bit_model():
    """16 bits an element, 4 and a float32 for every 64 of packed Linears, and a block with the values of 4 bits."""
    table = estimator(Method.QLORA).table
    recipe = for_grpo(method=Method.QLORA, generation=Generation.VLLM, vllm_memory=0.25)
    loaded = [one.parameter for one in table.entries if "lora_" not in one.name]
    packed = [one.numel for one in loaded if one.stored_bytes is not None]
    others = sum(one.numel for one in loaded) - sum(packed)
    found = inference_weights(table, recipe)

    def blocks(num_bytes: int) -> int:
        return 512 * -(-num_bytes // 512)

    assert found.num_bytes == 2 * others + sum(blocks(numel // 2) + blocks(4 * numel // 64) + 512 for numel in packed)
    assert found.num_bytes < inference_weights(estimator().table, for_grpo()).num_bytes


def test_a_server_takes_nothing_here():
    found = phases(for_grpo(generation=Generation.SERVER))
    assert all(phase.peak.inference_engine == 0 for phase in found.values())
    assert "reference" in found


def test_weights_are_sent_one_by_one_or_whole_where_adapters_are_merged():
    largest = 49152 * 576
    full, lora = (
        phases(for_grpo(stage=3, method=method, generation=Generation.SERVER))["sync"]
        for method in (Method.FULL, Method.LORA)
    )
    assert full.peak.total - full.resident.total == largest * 2
    whole = sum(one.numel * count for one, count in estimator(Method.LORA, 3).table.kinds if one.numel > 10**5) * 2
    assert lora.peak.total - lora.resident.total >= whole


def test_reward_models_are_sharded_under_stage_3_alone():
    params = 2 * 3 * 5 * 7 * 10**6
    for stage, ranks in ((2, 1), (3, 2)):
        without, found = (phases(for_grpo(stage=stage, reward_params=number)) for number in (0, params))
        assert found["step"].resident.total - without["step"].resident.total == params * 2 // ranks


def engine(**changes: object) -> InferenceEngine:
    known: dict[str, object] = {
        "total_bytes": 80 * GIB,
        "weight_bytes": 7 * GIB,
        "sequence_bytes": GIB // 8,
        "num_sequences": 16,
        "vocabulary": 2**17,
        "utilization": None,
        "sleep_level": 0,
    }
    return InferenceEngine(**(known | changes))  # type: ignore[arg-type]


def test_vllm_needs_room_for_all_answers_and_no_more():
    """7 GiB of weights, 16 answers of 1/8, the sampler's 8 MiB and graphs: 10.008 of 80 GiB, the next hundredth."""
    found = engine()
    assert found.fixed_bytes == 7 * GIB + 16 * 2**17 * 4 + GRAPH_BYTES
    assert found.needed_utilization == 0.13
    assert found.awake_bytes == int(0.13 * 80 * GIB)


def test_too_little_for_a_cache_is_said_and_never_fits():
    found = engine(utilization=0.1)
    assert found.problem is not None
    assert "--vllm-memory-utilization 0.1 is 8.00 GiB" in found.problem
    assert "0.11 or more is needed" in found.problem
    assert found.awake_bytes > found.total_bytes
    assert engine(utilization=0.11).problem is None


def test_answers_at_once_are_whole_groups():
    task = TrainingTask(kind=TaskKind.GRPO, num_generations=8)
    assert [whole_groups(task, 1, gpus) for gpus in (1, 2, 3, 8)] == [8, 4, 8, 1]
    assert whole_groups(TrainingTask(kind=TaskKind.DPO), 1, 1) == whole_groups(None, 1, 1) == 1
    refuse_parts_of_groups(Recipe(task=task, micro_batch=4, grad_accum=2), 3)
    with pytest.raises(InputError, match="--num-generations 8 does not divide the 12 answers"):
        refuse_parts_of_groups(Recipe(task=task, micro_batch=4, grad_accum=1), 3)


def test_answers_that_are_made_within_a_step_stand_beside_its_gradients():
    """Each of four micro batches by itself: when the next are generated, those before have left their gradients."""
    within, between = (
        {phase.name: phase.peak for phase in estimator(stage=None).timeline(recipe, cluster(num_gpus=1)).phases}
        for recipe in (
            for_grpo(stage=None, steps_per_generation=1, reference=Reference.COPY),
            for_grpo(stage=None, steps_per_generation=4, reference=Reference.COPY),
        )
    )
    assert within["generate"].gradients == estimator(stage=None).table.trained_bytes
    assert between["generate"].gradients == 0
    assert within["reference"].gradients == estimator(stage=None).table.trained_bytes
    assert within["backward"].gradients == between["backward"].gradients


@pytest.mark.parametrize("stage", [None, 0, 1, 2, 3])
def test_answers_within_a_step_leave_the_engine_as_a_step_does(stage: int | None):
    recipe = for_grpo(stage=stage, steps_per_generation=1)
    found = estimator(stage=stage)
    once, twice = (found.timeline_of_tensors(recipe, cluster(num_gpus=2)) for _ in range(2))
    assert once == twice


def test_generation_brings_every_offloaded_weight_to_a_rank_that_is_alone():
    recipe = for_grpo(stage=3).with_changes(offload_params=Offload.CPU)
    table = estimator(stage=3).table
    whole = sum(one.numel * count for one, count in table.kinds if one.numel > 10**5) * 2
    [found] = [one for one in estimator(stage=3).timeline(recipe, cluster(num_gpus=1)).phases if one.name == "generate"]
    assert found.peak.weights - found.resident.weights >= whole


def test_vllm_of_unsloth_shares_the_weights_and_is_sent_none():
    """vLLM's part of the GPU has them, so both take no more than that part and the adapters' bytes."""
    recipe = for_unsloth(generation=Generation.VLLM, vllm_memory=0.25)
    found = phases(recipe)
    assert list(found)[2:4] == ["generate", "forward"]  # nor are old log-probabilities looked up
    gpu = cluster().node.gpu
    taken = int(0.25 * (gpu.cuda_visible_bytes or gpu.usable_bytes))
    frozen = sum(one.num_bytes * count for one, count in estimator(Method.LORA).table.kinds if not one.requires_grad)
    assert found["generate"].resident.inference_engine == taken - frozen > 0


def test_unsloth_looks_up_all_answers_of_a_generation_at_once_unless_it_is_said():
    all_at_once, two = (phases(for_unsloth(reference=Reference.ADAPTER_OFF, scoring_batch=rows)) for rows in (None, 2))
    assert all_at_once["reference"].peak.total > two["reference"].peak.total
    assert (
        phases(for_unsloth(reference=Reference.ADAPTER_OFF, scoring_batch=3 * 4))["reference"]
        == all_at_once["reference"]
    )


def for_unsloth(**settings: object) -> Recipe:
    recipe = for_grpo(stage=None, method=Method.LORA, trainer=TaskTrainer.UNSLOTH, **settings)
    return recipe.with_changes(loss=LossKind.UNSLOTH)
