"""What GRPO does before its steps: seconds by unreduced arithmetic, a published time of a token, and laws."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_calls import call
from planned import cluster, model_files, of_few_layers
from vlmplan.architecture.trace import Run, Section, Trace, Work
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, Reference, TaskKind
from vlmplan.timing import GenerationWork, RolloutWork, gpu_rates
from vlmplan.timing.rates import Scenario
from vlmplan.timing.rollout import (
    TOKEN_OPERATIONS,
    VLLM_STEP_SECONDS,
    forward_work,
    generation_seconds,
    rollout_seconds,
)
from vlmplan.workload import Workload

TOKENS, ANSWER = 300, 100
A100 = cluster("a100-sxm4-80gb", num_gpus=4)
PLAIN = Recipe(zero_stage=None)
RATES = gpu_rates(A100.node.gpu, PLAIN)
assert RATES is not None


def grpo(**changes) -> TrainingTask:
    return TrainingTask(**{"kind": TaskKind.GRPO, "completion_tokens": ANSWER, "num_generations": 4, **changes})


def recipe_of(task: TrainingTask, **changes) -> Recipe:
    return Recipe(**{"loss": LossKind.TRL, "zero_stage": 2, "task": task, "micro_batch": 2, "grad_accum": 4, **changes})


def estimated(task: TrainingTask, **changes):
    recipe = recipe_of(task, **changes)
    estimator = Estimator(Workload(model=of_few_layers("smollm2-135m"), seq_len=TOKENS), recipe)
    return estimator.estimate(recipe, A100)


def trace_of(**work) -> Trace:
    return Trace(sections={"all": Section(forward_work=Work(**work))}, schedule=[Run("all", None)])


# One product of 2 GFLOP that reads 1 MB, twice; 3 MB moved beside; 10 operations in all.
PROMPT = {"matmuls": {(2 * 10**9, 10**6): 2}, "elementwise_bytes": 3 * 10**6, "num_kernels": 10}
TOKEN = {"matmuls": {(2 * 10**6, 10**6): 2}, "elementwise_bytes": 3 * 10**3, "num_kernels": 10}
CACHED = 7 * 10**5


def work_of(**changes) -> GenerationWork:
    made = {"prompt": trace_of(**PROMPT), "token": trace_of(**TOKEN), "token_cache_bytes": CACHED}
    return GenerationWork(**{**made, "prompt_tokens": 200, "new_tokens": 100, **changes})


def test_transformers_asks_for_every_operation_of_every_token():
    """The host takes longer here than the GPU, but for the prompts."""
    asking = (10 + TOKEN_OPERATIONS.expected) * RATES.kernel_seconds
    prompt = 2 * (2e9 / RATES.matmul_flops_per_second + RATES.ramp_seconds) + 3e6 / RATES.bytes_per_second
    token = 2 * (1e6 / RATES.bytes_per_second + RATES.ramp_seconds) + 3e3 / RATES.bytes_per_second
    cache = 3 * CACHED * (200 + 100 / 2) / RATES.bytes_per_second
    expected = max(prompt, asking) + (100 - 1) * max(token + cache, asking)
    assert generation_seconds(work_of(), RATES, Scenario.EXPECTED) == pytest.approx(expected, rel=1e-12)
    assert token + cache < asking


def test_vllm_reads_weights_and_cache_once_for_a_token_and_asks_for_nothing():
    prompt = 2 * (2e9 / RATES.matmul_flops_per_second + RATES.ramp_seconds)
    token = 2 * (1e6 / RATES.bytes_per_second + RATES.ramp_seconds)
    cache = CACHED * (200 + 100 / 2) / RATES.bytes_per_second
    around = VLLM_STEP_SECONDS.expected
    for num_sharing in (1, 4):
        expected = prompt / num_sharing + around + (100 - 1) * ((token + cache) / num_sharing + around)
        found = generation_seconds(work_of(is_vllm=True, num_sharing=num_sharing), RATES, Scenario.EXPECTED)
        assert found == pytest.approx(expected, rel=1e-12)


def test_a_token_reads_every_weight_of_every_layer_once():
    recipe = recipe_of(grpo(), method=Method.FULL)
    files = model_files("smollm2-135m")
    work = Estimator(Workload(model=files, seq_len=TOKENS), recipe).rollout_work(
        recipe, A100.node.gpu.kernel_capability, num_ranks=A100.num_gpus
    )
    rows, hidden, inner, vocabulary = 2 * 4, 576, 1536, 49152
    layer = 2 * hidden * hidden + 2 * hidden * 192 + 3 * hidden * inner
    assert work.generation.token_cache_bytes == rows * 30 * 2 * 192 * 2
    token = forward_work(work.generation.token)
    assert token.flops - token.attention_flops == 2 * rows * (30 * layer + hidden * vocabulary)
    assert sum(count * num_bytes for (_, num_bytes), count in token.matmuls.items()) > 2 * (30 * layer)


def test_a_token_of_a_model_of_seven_billion_weights_takes_as_long_as_was_measured():
    """Published: 23.6 ms for one token of Qwen2-7B by transformers on an L40S (NVIDIA/TensorRT-LLM issue 2705, time of
    one forward of "generation phrase"; Qwen2.5-7B has the same shapes)."""
    recipe = recipe_of(grpo(num_generations=2), method=Method.FULL, micro_batch=1, grad_accum=2, zero_stage=0)
    card = cluster("l40s")
    work = Estimator(Workload(model=model_files("qwen2.5-7b"), seq_len=TOKENS), recipe).rollout_work(
        recipe, card.node.gpu.kernel_capability, num_ranks=card.num_gpus
    )
    longer = work.generation._replace(new_tokens=ANSWER + 1)
    rates = gpu_rates(card.node.gpu, recipe)
    one, more = (generation_seconds(made, rates, Scenario.EXPECTED) for made in (work.generation, longer))
    assert more - one == pytest.approx(23.6e-3, rel=0.1)


def test_only_grpo_generates_and_scores():
    parts = estimated(grpo()).step_time.as_json()
    assert parts["generation"] > 0
    assert parts["scoring"] == 0  # by functions, and answers are of the model as it is
    dpo = TrainingTask(kind=TaskKind.DPO, completion_tokens=ANSWER)
    assert not {"generation", "scoring"} & set(estimated(dpo).step_time.as_json())


def test_a_server_generates_in_seconds_that_are_not_known():
    found = estimated(grpo(generation=Generation.SERVER))
    assert found.step_time.generation == 0
    assert found.step_time.scoring > 0  # old log-probabilities
    assert any("how long a server takes" in note for note in found.cautions)
    assert not any("how long a server takes" in note for note in estimated(grpo()).cautions)


def test_references_and_reward_models_score():
    plain = estimated(grpo(), activation_checkpointing=False)  # which takes the host time in forward
    beside = estimated(grpo(reference=Reference.COPY))
    forward_seconds = plain.step_time.forward
    assert beside.step_time.scoring == pytest.approx(forward_seconds, rel=0.35)  # of half a micro batch's operations
    rewarded = estimated(grpo(reward_params=7 * 10**9)).step_time.scoring
    rates = gpu_rates(A100.node.gpu, PLAIN)
    assert rewarded == pytest.approx(2 * 7e9 * (2 * 4 * TOKENS) / rates.matmul_flops_per_second)


def test_stage_3_gathers_the_whole_model_once_for_all_answers():
    flat, sharded = (estimated(grpo(), zero_stage=stage, method=Method.FULL) for stage in (2, 3))
    assert sharded.step_time.generation > flat.step_time.generation


def test_a_generation_that_lasts_several_steps_is_shared_by_them():
    once = RolloutWork(num_micro_batches=4, num_passes=4, generation=work_of(), passes=())
    recipe = recipe_of(grpo(), grad_accum=2)
    found = rollout_seconds(once, recipe, A100)
    assert found.generation == pytest.approx(generation_seconds(work_of(), RATES, Scenario.EXPECTED) * 2 / 4)


def test_answers_that_are_trained_on_twice_are_generated_half_as_often():
    once, twice = (estimated(grpo(num_iterations=count)).step_time for count in (1, 2))
    assert twice.generation == once.generation / 2


@given(st.integers(2, 400), st.integers(1, 200), st.sampled_from([False, True]))
def test_longer_answers_take_longer(tokens: int, more: int, is_vllm: bool):
    one, other = (work_of(new_tokens=length, is_vllm=is_vllm) for length in (tokens, tokens + more))
    for scenario in Scenario:
        assert generation_seconds(one, RATES, scenario) < generation_seconds(other, RATES, scenario)


MORE = {
    "tokens": st.sampled_from([(160, 300), (300, 301), (300, 600)]),
    "micro_batch": st.sampled_from([(2, 4), (4, 12)]),
    "grad_accum": st.sampled_from([(1, 2), (2, 3)]),
}
"""What there may be more of, the rest being as it was: two values of each."""


@settings(max_examples=12)
@given(st.sampled_from(TaskKind), st.sampled_from([Method.FULL, Method.LORA]), st.sampled_from([None, 2, 3]), st.data())
def test_no_part_of_a_tasks_step_is_negative_or_takes_less_time_of_more(kind, method, stage, data):
    task = TrainingTask(kind=kind, completion_tokens=None if kind is TaskKind.REWARD else ANSWER, num_generations=2)
    loss = LossKind.BRADLEY_TERRY if task.is_reward else LossKind.TRL
    name = data.draw(st.sampled_from(sorted(MORE)))
    parts = []
    for value in data.draw(MORE[name]):
        sized = {"tokens": TOKENS, "micro_batch": 2, "grad_accum": 2, name: value}
        workload = Workload(model=of_few_layers("smollm2-135m"), seq_len=sized.pop("tokens"))
        recipe = recipe_of(task, loss=loss, method=method, zero_stage=stage, **sized)
        found = Estimator(workload, recipe).estimate(recipe, A100)
        parts.append((found.step_seconds, found.step_time.as_json()))
    (few, few_parts), (more, more_parts) = parts
    assert few <= more
    assert few_parts.keys() == more_parts.keys()
    for part, seconds in few_parts.items():
        assert seconds >= 0, part
        if part != "communication":  # which hides behind what takes longer
            assert seconds <= more_parts[part] * (1 + 1e-9), part


@pytest.mark.sweep
def test_what_recommend_plans_takes_as_long_in_estimate():
    words = ("--model", "smollm2-135m", "--gpu", "rtx-4090:2", "--task", "grpo", "--num-samples", "1000")
    plan, *_ = call("recommend", *words, "--json").document["plans"]
    planned, recipe = plan["estimate"]["step_seconds_by_part"], plan["recipe"]
    sized = ("--micro-batch", str(recipe["micro_batch"]), "--grad-accum", str(recipe["grad_accum"]))
    way = ("--method", recipe["method"], "--zero-stage", str(recipe["zero_stage"]), "--expandable-segments")
    found = call("estimate", *words, *sized, *way, "--json").document["step_seconds_by_part"]
    assert found["generation"] == planned["generation"] > 0
    assert found["scoring"] == planned["scoring"]
