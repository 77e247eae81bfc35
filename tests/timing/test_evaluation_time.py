"""Seconds of evaluation: forwards over its samples and how often, by task; and the answers that have them agree."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_calls import call
from planned import cluster, of_few_layers
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, Estimator
from vlmplan.launch.plan_options import request_of
from vlmplan.plan.file import plan_from_json
from vlmplan.plan.making import plan_from_estimate
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import FlatParameters, LossKind, Offload, ShardUnits
from vlmplan.recipe.evaluation import Evaluation, Moment, every_value, parse_every
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, KTOLoss, Reference, TaskKind
from vlmplan.timing import micro_batch_seconds
from vlmplan.workload import Workload

FILES = of_few_layers("tinyllama-1.1b", 2)
ON_ONE, ON_FOUR = cluster("a100-sxm4-80gb"), cluster("a100-sxm4-80gb", num_gpus=4)
INTERVALS = st.one_of(st.integers(1, 10_000), st.floats(1e-6, 1, exclude_max=True))
TASKS = {
    "samples": Recipe(zero_stage=None, loss=LossKind.FULL),
    "dpo": Recipe(
        task=TrainingTask(kind=TaskKind.DPO, reference=Reference.COPY), loss=LossKind.TRL, zero_stage=2, micro_batch=2
    ),
    "kto": Recipe(task=TrainingTask(kind=TaskKind.KTO), loss=LossKind.TRL, zero_stage=2, micro_batch=2),
    "reward": Recipe(task=TrainingTask(kind=TaskKind.REWARD), loss=LossKind.BRADLEY_TERRY, zero_stage=2),
    "grpo": Recipe(
        task=TrainingTask(kind=TaskKind.GRPO, completion_tokens=64, num_generations=4),
        loss=LossKind.TRL,
        zero_stage=2,
        micro_batch=4,
    ),
}


@cache
def estimator(zero_stage: int | None) -> Estimator:
    recipe = TASKS["samples"].with_changes(zero_stage=zero_stage)
    return Estimator(Workload(model=FILES, seq_len=256, num_samples=4000, epochs=2.5), recipe)


def time_of(recipe: Recipe, on=ON_ONE, **values: Any):
    evaluated = recipe.with_changes(evaluation=Evaluation(**{"batch": 4, "samples": 100} | values))
    found = estimator(recipe.zero_stage).evaluation_time(evaluated, on)
    assert found is not None
    return found


def estimate(recipe: Recipe, on=ON_ONE) -> Estimate:
    return estimator(recipe.zero_stage).estimate(recipe, on)


@given(steps=st.integers(1, 3000), every=INTERVALS, delay=st.just(0.0) | st.floats(0, 4000))
def test_a_run_evaluates_as_often_as_its_steps_have_it_due_and_at_the_end(steps, every, delay):
    evaluation = Evaluation(batch=1, every=every, delay=delay)
    due = [step for step in range(1, steps + 1) if evaluation.is_due(step, steps)]
    assert due[-1:] == ([steps] if delay <= steps else [])
    assert all(step >= delay for step in due)
    assert len(due) == evaluation.num_in(steps, 1.0)


@given(whole=st.integers(0, 50), part=st.sampled_from([0.0, 0.25, 0.75]), delay=st.floats(0, 60))
def test_a_run_evaluates_at_the_ends_of_epochs_that_are_not_before_the_delay(whole, part, delay):
    evaluation = Evaluation(batch=1, delay=delay)
    ends = [*range(1, whole + 1), *([whole + part] if part else [])]
    assert evaluation.num_in(1000, whole + part) == sum(map(evaluation.is_due_at_end_of, ends))


@given(
    per_epoch=st.integers(1, 40),
    steps=st.integers(1, 90),
    every=st.sampled_from(Moment) | INTERVALS,
    delay=st.just(0.0) | st.floats(0, 90),
    after_training=st.booleans(),
)
def test_what_is_due_behind_each_step_is_what_is_planned_of_all(per_epoch, steps, every, delay, after_training):
    more = {} if every is Moment.END else {"delay": delay, "after_training": after_training}
    evaluation = Evaluation(batch=1, every=every, **more)
    due = [evaluation.num_due_after(step, steps, step / per_epoch) for step in range(1, steps + 1)]
    assert sum(due) == evaluation.num_in(steps, steps / per_epoch)


@given(steps=st.integers(1, 3000), every=st.one_of(st.just(Moment.EPOCH), INTERVALS))
def test_what_evaluates_once_more_after_training_does_so_once_more(steps, every):
    plain, more = [Evaluation(batch=1, every=every, after_training=flag) for flag in (False, True)]
    assert more.num_in(steps, 1.5) == plain.num_in(steps, 1.5) + 1


@pytest.mark.parametrize("more", [{"delay": 2.0}, {"after_training": True}])
def test_an_evaluation_at_the_end_alone_is_neither_delayed_nor_repeated(more):
    option = "--eval-" + next(iter(more)).replace("_", "-")
    with pytest.raises(InputError, match=f"{option} does not go with --eval-every end"):
        Evaluation(batch=1, every=Moment.END, **more)


@pytest.mark.parametrize(("epochs", "count"), [(1.0, 1), (0.2, 1), (2.0, 2), (2.5, 3)])
def test_an_epoch_that_is_not_whole_is_evaluated_too(epochs, count):
    assert Evaluation(batch=1).num_in(1000, epochs) == count
    assert Evaluation(batch=1, every=Moment.END).num_in(1000, epochs) == 1
    assert Evaluation(batch=1, on_start=True).num_in(1000, epochs) == count + 1


@given(every=st.one_of(st.sampled_from(Moment), INTERVALS))
def test_how_often_is_read_as_it_is_written(every):
    assert parse_every(every_value(every)) == (every if isinstance(every, Moment) else pytest.approx(every, rel=1e-14))


@pytest.mark.parametrize("text", ["1.5", "0", "-3", "nan", "never", "1e99"])
def test_what_is_no_interval_is_refused_with_what_is_allowed(text):
    words = ("--model", "qwen2.5-0.5b", "--gpu", "rtx-4090:1", "--eval-batch", "2", f"--eval-every={text}")
    found = call("estimate", *words)
    assert found.code == 1
    assert f"--eval-every is '{text}'; epoch, end, a whole number of steps or a part of the run below 1" in found.err


@given(few=st.integers(1, 10_000), more=st.integers(0, 10_000), task=st.sampled_from(sorted(TASKS)))
def test_more_samples_never_take_less_time(few, more, task):
    least, most = [time_of(TASKS[task], samples=samples).seconds for samples in (few, few + more)]
    assert 0 < least <= most


@pytest.mark.parametrize("num_samples", [1, 64, 65, 1000])
def test_an_evaluation_takes_the_forwards_of_its_batches(num_samples):
    recipe = TASKS["samples"].with_changes(evaluation=Evaluation(batch=16, samples=num_samples))
    evaluated = estimator(None).evaluated(recipe, num_ranks=4, capability=(8, 0), is_on_cpu=False)
    assert evaluated is not None
    seconds = micro_batch_seconds(evaluated.passes[0].trace, ON_FOUR.node.gpu, recipe)
    found = estimator(None).evaluation_time(recipe, ON_FOUR)
    assert found.num_batches == -(-num_samples // (16 * 4))
    assert found.seconds == pytest.approx(found.num_batches * seconds.phases[0])


def test_a_batch_as_large_as_a_micro_batch_takes_its_forward_and_not_its_backward():
    recipe = TASKS["samples"].with_changes(micro_batch=16, activation_checkpointing=False)
    step = estimate(recipe).step_time
    assert time_of(recipe, batch=16).batch_seconds == pytest.approx(step.forward, rel=0.02)


def test_sharded_and_offloaded_weights_are_brought_for_every_forward():
    recipe = Recipe(zero_stage=3, loss=LossKind.FULL)
    alone, sharded = time_of(recipe, ON_ONE).batch_seconds, time_of(recipe, ON_FOUR).batch_seconds
    offloaded = time_of(recipe.with_changes(offload_params=Offload.CPU), ON_FOUR).batch_seconds
    assert alone < sharded < offloaded


def test_both_models_of_preferences_run_and_of_a_precomputed_reference_one():
    both = time_of(TASKS["dpo"]).batch_seconds
    precomputed = replace(TASKS["dpo"].task, reference=Reference.PRECOMPUTED)
    alone = time_of(TASKS["dpo"].with_changes(task=precomputed)).batch_seconds
    assert both == pytest.approx(2 * alone, rel=0.01)


def test_an_estimate_of_the_kl_divergence_runs_the_forward_once_more():
    kto = TASKS["kto"]
    without = kto.with_changes(task=replace(kto.task, kto_loss=KTOLoss.APO_ZERO))
    assert time_of(kto).batch_seconds == pytest.approx(2 * time_of(without).batch_seconds)


@pytest.mark.parametrize("generation", list(Generation))
def test_answers_are_generated_and_scored_as_in_training_before_their_loss(generation):
    task = replace(TASKS["grpo"].task, generation=generation)
    recipe = TASKS["grpo"].with_changes(task=task)
    step, found = estimate(recipe).step_time, time_of(recipe, batch=4, generations=4)
    assert found.num_batches == 100
    loss = found.batch_seconds - step.generation - step.scoring
    assert loss == pytest.approx(step.forward, rel=0.1)
    assert time_of(recipe, batch=4, generations=2).num_batches == 50


def test_generated_text_takes_a_forward_for_each_token():
    recipe = TASKS["samples"]
    found = [time_of(recipe, new_tokens=tokens, computes_loss=False).batch_seconds for tokens in (1, 101, 201)]
    assert found[1] - found[0] == pytest.approx(found[2] - found[1], rel=0.02)
    loss = time_of(recipe).batch_seconds
    assert time_of(recipe, new_tokens=101).batch_seconds == pytest.approx(found[1] + loss)


def test_a_run_has_its_evaluations_in_its_seconds_and_without_them_its_steps_alone():
    recipe = TASKS["samples"].with_changes(micro_batch=4)
    plain = estimate(recipe)
    assert (plain.num_evaluations, plain.evaluation_seconds) == (0, 0)
    assert plain.run_seconds == plain.num_steps * plain.step_seconds
    evaluated = estimate(recipe.with_changes(evaluation=Evaluation(batch=8, samples=80, every=100)))
    assert evaluated.num_evaluations == 2500 / 100
    assert evaluated.step_seconds == plain.step_seconds
    assert evaluated.run_seconds == plain.run_seconds + 25 * evaluated.evaluating.seconds


def test_samples_that_nobody_has_counted_are_told_of_and_in_no_second():
    plain, found = [
        estimate(TASKS["samples"].with_changes(evaluation=evaluation)) for evaluation in (None, Evaluation(batch=8))
    ]
    assert (found.evaluating, found.evaluation_seconds) == (None, None)
    assert found.run_seconds == plain.run_seconds
    assert [note for note in found.cautions if "how many samples are evaluated is not known" in note]


@pytest.mark.parametrize("every", [Moment.EPOCH, Moment.END, 300, 0.1])
def test_a_plan_has_the_seconds_of_its_estimate_and_of_fewer_steps_their_part(every):
    found = estimate(TASKS["samples"].with_changes(evaluation=Evaluation(batch=8, samples=80, every=every)))
    plan = plan_from_json(plan_from_estimate(found).as_json())
    assert plan.expected.run_seconds == plan.seconds_of(found.num_steps) == pytest.approx(found.run_seconds)
    assert plan.recipe.evaluation == found.recipe.evaluation
    done = found.recipe.evaluation.num_in(1000, 2.5 * 1000 / found.num_steps)
    left = plan.seconds_of(1000) - 1000 * found.step_seconds
    assert left == pytest.approx(done * found.evaluating.seconds)
    assert request_of(plan, model="tinyllama-1.1b", gpu="a100-sxm4-80gb:1").evaluation.every == every


def test_a_plan_of_before_has_no_evaluations_in_its_time():
    document = plan_from_estimate(estimate(TASKS["samples"])).as_json()
    del document["expected"]["evaluation_seconds"]
    assert plan_from_json(document).expected.evaluation_seconds == 0


@pytest.mark.parametrize(("words", "has_run"), [((), False), (("--eval-batch", "4", "--eval-samples", "64"), True)])
def test_setups_side_by_side_have_a_column_for_the_run_where_it_evaluates(words, has_run):
    found = call("estimate", "--model", "smollm2-135m", "--gpu", "rtx-4090:1", "--compare", "checkpointing", *words)
    assert found.code == 0, found.err
    titles = next(line.split() for line in found.out.splitlines() if line.startswith("variant"))
    assert (titles[-2] == "run") is has_run
    assert ("run: all steps and evaluations" in found.out) is has_run


@pytest.mark.parametrize("flat", [FlatParameters.NONE, FlatParameters.BACKWARD_PRE])
def test_copies_of_the_model_gather_what_is_evaluated_within_a_node(flat: FlatParameters):
    """As fast as on one node, whatever the network; without copies weights cross it."""
    recipe = TASKS["samples"].with_changes(fsdp=True, flat_parameters=flat, shard_units=ShardUnits.LAYERS)
    slow = replace(ON_FOUR, num_nodes=2, inter_node_bytes_per_second=1e8)
    alone, copies, together = (
        time_of(one, on).batch_seconds
        for one, on in ((recipe, ON_FOUR), (recipe.with_changes(dp_shard_size=4), slow), (recipe, slow))
    )
    assert copies == alone < 0.5 * together
