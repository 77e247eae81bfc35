"""Evaluation's phase: what one forward without a graph takes, and what the loop keeps of every batch beside it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import strategies as st

from cli_calls import request_of_words
from laws import law
from planned import cluster, model_files, of_few_layers, shortened
from vlmplan.cli.estimate import estimate as command
from vlmplan.engines import engine_of
from vlmplan.engines.bounds import peak_bound, peak_floor
from vlmplan.engines.profile import micro_batch_profile
from vlmplan.estimation import Estimator, estimate
from vlmplan.hardware import Cluster
from vlmplan.memory.device import Verdict
from vlmplan.memory.evaluation import Generated, KeptOutputs, with_evaluation
from vlmplan.memory.phases import Phase
from vlmplan.memory.replayed_steps import MicroBatch, alike
from vlmplan.memory.reservation import Reservation
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method, Offload
from vlmplan.recipe.evaluation import Evaluation, Kept
from vlmplan.requested import requested_estimate
from vlmplan.units import GIB
from vlmplan.workload import Workload

VOCABULARY, WIDTH, TOKENS = 49152, 576, 300
CAPABILITY = (8, 0)
OF_HUGGING_FACE = Recipe(zero_stage=2, loss=LossKind.MODEL)


@cache
def estimator(method: Method = Method.FULL, stage: int | None = 2) -> Estimator:
    workload = Workload(model=shortened("smollm2-135m", num_hidden_layers=3), seq_len=TOKENS)
    return Estimator(workload, Recipe(method=method, zero_stage=stage))


def phases(recipe: Recipe, num_gpus: int = 2) -> dict[str, Phase]:
    found = estimator(recipe.method, recipe.zero_stage)
    return {phase.name: phase for phase in found.timeline_of_tensors(recipe, cluster(num_gpus=num_gpus)).phases}


def beyond_states(recipe: Recipe, num_gpus: int = 2) -> int:
    """What evaluation's peak is above what the step leaves."""
    found = phases(recipe, num_gpus)
    return found["evaluation"].peak.total - found["step"].resident.total


def kept(**values: int | None) -> KeptOutputs:
    sizes: dict[str, int | None] = {"sample_bytes": 7, "numpy_bytes": 11, "accumulation": None}
    return KeptOutputs(**{**sizes, **values})  # type: ignore[arg-type]


def test_a_run_that_evaluates_nothing_has_no_such_phase():
    assert "evaluation" not in phases(OF_HUGGING_FACE)


def test_the_loss_of_a_batch_takes_ten_bytes_a_logit_in_16_bit():
    """2 of the logits, 4 of their float32 copy, 4 of its log-softmax; beside them ids, labels, mask and the last hidden
    states, which the model's forward holds."""
    recipe = OF_HUGGING_FACE.with_changes(evaluation=Evaluation(batch=3))
    logits, ids, hidden = 3 * TOKENS * VOCABULARY, 3 * TOKENS * 8, 3 * TOKENS * WIDTH * 2
    scalar = 4
    assert 0 <= beyond_states(recipe) - (2 + 4 + 4) * logits - 3 * ids - hidden <= scalar


def test_nothing_of_a_layer_is_left_for_a_backward():
    """A batch of one sample takes less than the same in training, however many layers there are."""
    recipe = OF_HUGGING_FACE.with_changes(evaluation=Evaluation(batch=1), activation_checkpointing=False)
    found = phases(recipe)
    assert found["evaluation"].peak.activations < found["forward"].peak.activations / 2
    assert found["evaluation"].resident == found["step"].resident == found["save"].resident


def test_the_chunked_loss_makes_no_gradients():
    recipe = OF_HUGGING_FACE.with_changes(loss=LossKind.CHUNKED, evaluation=Evaluation(batch=8))
    whole = OF_HUGGING_FACE.with_changes(evaluation=Evaluation(batch=8))
    assert phases(recipe)["evaluation"].peak.gradients == 0
    assert beyond_states(recipe) < beyond_states(whole) / 2


def test_all_batches_stay_on_every_gpu_and_are_joined_there():
    """5 batches of 3 samples on 2 ranks: 24 earlier, 6 gathered of the last and 30 joined, 28 of which are samples."""
    of_all = kept(batch_rows=3, num_samples=28, num_ranks=2)
    assert of_all.num_steps == 5
    assert of_all.moved == [4 * 2 * 3 * 7, 2 * 3 * 7, 28 * 7]
    assert of_all.held == [4 * 2 * 3 * 7, 2 * 3 * 7, 0]  # beside the last forward, with the batch before once more


def test_one_gpu_gathers_nothing_and_its_last_batch_is_smaller():
    of_all = kept(batch_rows=3, num_samples=13, num_ranks=1)
    assert of_all.moved == [4 * 3 * 7, 3 * 7, 13 * 7]


def test_what_moves_to_the_host_after_every_batch_leaves_one_gathered_batch():
    of_all = kept(batch_rows=3, num_samples=5000, num_ranks=2, accumulation=1)
    assert of_all.held == [0, 0, 0]
    assert of_all.moved == [0, 3 * 7, 2 * 3 * 7]


def test_the_host_has_float32_of_every_sample_for_each_rank():
    assert kept(batch_rows=3, num_samples=100, num_ranks=2).host_bytes == 100 * (7 + 11)
    assert kept(batch_rows=3, num_samples=100, num_ranks=2, accumulation=2).host_bytes == 100 * (11 + 11)


def test_logits_are_kept_in_the_type_in_which_the_model_gives_them():
    """accelerate makes them float32 under autocast, DeepSpeed leaves 16 bit."""
    evaluation = Evaluation(batch=4, samples=32, kept=Kept.LOGITS)
    of_all = 32 * TOKENS * (VOCABULARY * 2 + 8)
    earlier, last = of_all - 4 * TOKENS * (VOCABULARY * 2 + 8), 4 * TOKENS * (VOCABULARY * 2 + 8)
    zero_2 = OF_HUGGING_FACE.with_changes(evaluation=evaluation)
    assert beyond_states(zero_2, num_gpus=1) == earlier + last + of_all + 3 * 4 * TOKENS * 8
    plain = zero_2.with_changes(zero_stage=None, precision=zero_2.precision)
    wide = 32 * TOKENS * (VOCABULARY * 4 + 8)
    assert beyond_states(plain, num_gpus=1) == wide + wide + 3 * 4 * TOKENS * 8


def test_predictions_take_next_to_nothing():
    evaluation = Evaluation(batch=4, samples=1000, kept=Kept.PREDICTIONS)
    loss_alone = OF_HUGGING_FACE.with_changes(evaluation=Evaluation(batch=4))
    grown = beyond_states(OF_HUGGING_FACE.with_changes(evaluation=evaluation)) - beyond_states(loss_alone)
    assert 0 < grown <= 1000 * TOKENS * 2 * 8


def test_zero_3_has_weights_left_from_the_forward_before():
    """No backward takes what prefetch and reuse have kept for it, so the next forward finds it."""
    recipe = OF_HUGGING_FACE.with_changes(zero_stage=3, evaluation=Evaluation(batch=1))
    nothing_kept = recipe.with_changes(
        zero=replace(recipe.zero, stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=0)
    )
    assert beyond_states(recipe) > beyond_states(nothing_kept)


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({}, VOCABULARY * WIDTH + WIDTH),  # the tied head with the norm, which no backward has resharded
        ({"reshard_after_forward": False}, None),  # all of them
    ],
)
def test_what_fsdp2_has_whole_after_an_evaluation_is_there_through_the_checkpoint(changes, whole):
    recipe = Recipe(fsdp=True, evaluation=Evaluation(batch=1), **changes)
    model = shortened("smollm2-135m", num_hidden_layers=3)
    found = estimate(Workload(model=model, seq_len=TOKENS), recipe, cluster(num_gpus=2))
    resident = {phase.name: phase.resident.total for phase in found.timeline.phases}
    numel = found.num_params if whole is None else whole
    assert resident["evaluation"] == resident["save"] == resident["step"] + 2 * numel


@law(
    st.sampled_from([None, 0, 1, 2, 3]),
    st.sampled_from([LossKind.FULL, LossKind.MODEL, LossKind.CHUNKED]),
    st.integers(1, 9),
    st.sampled_from(Kept),
    st.none() | st.integers(1, 4),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([0, 0, 7, 4000]),
    quick=25,
)
def test_bounds_of_a_search_stay_around_what_is_evaluated(
    stage, loss, batch, keeps, accumulation, num_gpus, new_tokens
):
    evaluation = Evaluation(
        batch=batch, samples=50, kept=keeps, accumulation=accumulation, new_tokens=new_tokens, computes_loss=batch != 5
    )
    recipe = Recipe(zero_stage=stage, loss=loss, evaluation=evaluation)
    found = estimator(Method.FULL, stage)
    engine = engine_of(found.table, recipe, num_ranks=num_gpus)
    states, profile = engine.states(), micro_batch_profile(found.trace(recipe, CAPABILITY))
    evaluated = found.evaluated(recipe, num_ranks=num_gpus, capability=CAPABILITY, is_on_cpu=False)
    bounds = peak_floor(states, profile, 0), peak_bound(engine, states, profile, accumulates=False)
    least, most = with_evaluation(bounds, engine, states, evaluated)
    peak = found.timeline_of_tensors(recipe, cluster(num_gpus=num_gpus)).peak.total
    assert least <= peak <= most


@pytest.mark.parametrize("stage", [None, 2, 3])
@pytest.mark.parametrize("expands", [True, False])
def test_the_allocator_reserves_room_for_evaluation_too(stage, expands):
    evaluation = Evaluation(batch=8, samples=64, kept=Kept.LOGITS)
    recipe = OF_HUGGING_FACE.with_changes(zero_stage=stage, evaluation=evaluation, expandable_segments=expands)
    found = estimator(Method.FULL, stage).estimate(recipe, cluster(num_gpus=2))
    assert found.timeline.peak_phase.name == "evaluation"
    assert found.device.reserved_bytes >= found.peak_allocated_bytes


@pytest.mark.parametrize("engine", [{"fsdp": True, "zero_stage": None, "reshard_after_forward": False}, {}])
@pytest.mark.parametrize("on_start", [True, False])
def test_the_replay_evaluates_before_the_first_step_where_the_run_does(engine, on_start: bool):
    """What FSDP2 does not reshard is whole then when training begins."""
    recipe = Recipe(zero_stage=3, loss=LossKind.MODEL, evaluation=Evaluation(batch=1, on_start=on_start))
    recipe = recipe.with_changes(**engine)
    found = estimator(Method.FULL, 3)
    order, live = list[str](), list[int]()

    class Watched(Reservation):
        def _evaluate(self, *args: Any, **settings: Any) -> None:
            order.append("evaluation")
            super()._evaluate(*args, **settings)

        def _step(self, micro_batches: Sequence[MicroBatch], step: int) -> None:
            order.append("step")
            live.append(self.allocator.allocated_bytes)
            super()._step(micro_batches, step)

    machine = cluster(num_gpus=2)
    micro_batches = alike(found._logged(recipe, machine), recipe)
    evaluated = found._evaluated_operations(recipe, machine)
    Watched(found.table, recipe, micro_batches, num_ranks=2, evaluated=evaluated).run()
    assert order == [*(["evaluation"] if on_start else []), "step", "step", "step", "evaluation"]
    whole = 2 * found.table.num_params
    kept = live[0] - states_bytes(recipe, found)
    assert kept > 0.9 * whole if engine and on_start else kept < 0.1 * whole


def states_bytes(recipe: Recipe, found: Estimator) -> int:
    """What a new engine holds."""
    return engine_of(found.table, recipe, num_ranks=2).states().at_start.total


def test_a_run_that_trains_but_cannot_evaluate_does_not_fit():
    many = Evaluation(batch=8, samples=3000, kept=Kept.LOGITS)
    machine: Cluster = cluster(num_gpus=2)
    fits = estimator().estimate(OF_HUGGING_FACE.with_changes(evaluation=Evaluation(batch=1)), machine)
    does_not = estimator().estimate(OF_HUGGING_FACE.with_changes(evaluation=many), machine)
    assert (fits.verdict, does_not.verdict) == (Verdict.FITS, Verdict.DOES_NOT_FIT)
    assert any("evaluation takes the most" in hint for hint in does_not.hints)
    assert does_not.host.evaluation_bytes > 2 * 3000 * TOKENS * VOCABULARY * 4
    assert does_not.device.device_bytes > 80 * GIB


def test_offloaded_weights_are_brought_for_evaluation_too():
    recipe = OF_HUGGING_FACE.with_changes(zero_stage=3, offload_params=Offload.CPU, evaluation=Evaluation(batch=1))
    assert phases(recipe)["evaluation"].peak.weights > phases(recipe)["step"].resident.weights


# -- generation --------------------------------------------------------------------------------------------------------

LAYERS, KEY_HEADS, HEAD_DIM = 3, 3, 64
"""Of the shortened model."""


def generated(**values: int) -> Generated:
    recipe = OF_HUGGING_FACE.with_changes(evaluation=Evaluation(batch=2, **values))
    found = estimator().evaluated(recipe, num_ranks=2, capability=CAPABILITY, is_on_cpu=False)
    assert found is not None
    assert found.generated is not None
    return found.generated


def test_keys_and_values_of_every_layer_and_token_are_kept():
    found = generated(new_tokens=11)
    one_token = 2 * LAYERS * KEY_HEADS * HEAD_DIM * 2  # keys and values in 16 bit
    assert found.prompt.cache_bytes == 2 * TOKENS * one_token
    assert found.cache_bytes == 2 * (TOKENS + 11 - 1) * one_token
    assert found.prompt.layer_bytes * LAYERS == found.prompt.cache_bytes


def test_logits_are_made_of_one_position():
    assert generated(new_tokens=11).prompt.logits == 2 * VOCABULARY


def test_every_beam_has_a_row_of_its_own():
    one, four = generated(new_tokens=5), generated(new_tokens=5, beams=4)
    assert (four.cache_bytes, four.prompt.logits) == (4 * one.cache_bytes, 4 * one.prompt.logits)


@pytest.mark.parametrize("stage", [None, 2, 3])
def test_generation_is_a_phase_and_may_be_all_that_is_evaluated(stage):
    evaluation = Evaluation(batch=2, new_tokens=5000, computes_loss=False)
    recipe = OF_HUGGING_FACE.with_changes(zero_stage=stage, evaluation=evaluation)
    found = phases(recipe)
    assert "evaluation" not in found
    both = phases(recipe.with_changes(evaluation=replace(evaluation, computes_loss=True)))
    assert list(both)[-3:] == ["evaluation", "generation", "save"]
    assert both["generation"].peak == found["generation"].peak
    grown = found["generation"].peak.total - found["step"].resident.total
    assert grown > 2 * (TOKENS + 5000 - 1) * 2 * LAYERS * KEY_HEADS * HEAD_DIM * 2


REHEARSED = {
    ("llama-3.2-1b", "--use-dora", "--lora-dropout", "0.05"): {"evaluation": 2_166_648_320, "save": 756_325_888},
    ("smolvlm-256m", "--seq-len", "1536"): {"evaluation": 1_360_463_360, "save": 248_513_024},
}
"""Peaks of ``vlmplan rehearse --gpu h100-sxm:4 --zero-stage 3 --method lora --eval-batch 2 --seq-len 512
--activation-checkpointing`` with these options; the model that sees has 4 layers in each tower."""


@pytest.mark.parametrize("case", REHEARSED)
def test_an_evaluation_under_zero_3_and_the_checkpoint_after_it_take_what_is_rehearsed(case):
    """In evaluation DoRA's dropout is left out, so that DeepSpeed loses the order of modules and gathers nothing ahead;
    a checkpoint waits for what is gathered ahead before it lets it go."""
    alias, *options = case
    words = ("--gpu", "h100-sxm:4", "--zero-stage", "3", "--method", "lora", "--eval-batch", "2", "--seq-len", "512")
    request = request_of_words(command, "--model", alias, *words, "--activation-checkpointing", *options)
    model = of_few_layers(alias, 4) if alias.startswith("smolvlm") else model_files(alias)
    found, _ = requested_estimate(replace(request, given_model=model), ())
    planned = {phase.name: phase.peak.total for phase in found.timeline.phases}
    for name, num_bytes in REHEARSED[case].items():
        assert planned[name] == pytest.approx(num_bytes, rel=0.001), name


@pytest.mark.sweep
@pytest.mark.parametrize("evaluation", [Evaluation(batch=2), Evaluation(batch=2, computes_loss=False, new_tokens=4)])
@pytest.mark.parametrize("expands", [False, True])
def test_zero_3_finds_modules_that_evaluation_alone_calls(evaluation, expands):
    """Gemma 3n reads and clamps a Linear's weight while it trains, and calls the Linear where it does not."""
    recipe = Recipe(
        method=Method.LORA, zero_stage=3, evaluation=evaluation, loss=LossKind.MODEL, expandable_segments=expands
    )
    found = estimate(Workload(model=model_files("gemma-3n-e2b"), seq_len=64), recipe, cluster(num_gpus=2))
    peaks = {phase.name: phase.peak for phase in found.timeline.phases}
    evaluated = peaks["generation" if evaluation.new_tokens else "evaluation"]
    assert found.device.allocated_bytes > evaluated.weights > peaks["step"].weights


def test_a_loss_that_is_fused_in_training_alone_makes_all_logits_in_evaluation():
    """Liger's class does where it does not train and is not told ``skip_logits``: what is made is the model's loss."""
    fused, whole = (
        OF_HUGGING_FACE.with_changes(loss=LossKind.LIGER, evaluation=Evaluation(batch=3, fuses_loss=fuses))
        for fuses in (True, False)
    )
    of_model = fused.with_changes(loss=LossKind.MODEL)
    assert beyond_states(fused) < 3 * TOKENS * VOCABULARY * 2 < beyond_states(of_model) == beyond_states(whole)
