"""Setups that are tried: what fits, what is refused, each held to exact estimates of everything."""

import itertools
import operator
from functools import cache
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planned import of_few_layers
from search_cases import all_estimates, bounded_setups, card, cluster, space
from vlmplan.estimation import Estimate
from vlmplan.memory.device import Verdict, budget_bytes, device_memory
from vlmplan.memory.overhead import ProcessGroup, process_group, workspace_bytes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    SEARCHED_LOSSES,
    SEARCHED_METHODS,
    AttentionImplementation,
    FlatParameters,
    LossKind,
    Method,
    Offload,
    OptimizerKind,
    Precision,
    ShardUnits,
)
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.rules import model_facts, problems
from vlmplan.rules.base import Severity
from vlmplan.search.micro_batches import TracedBatches
from vlmplan.search.refusals import refusal
from vlmplan.search.setup_records import BoundedSetup
from vlmplan.search.setups import SetupSpace
from vlmplan.units import GIB, MIB

SMALL = space(seq_len=256)
EVALUATED = space(seq_len=256, fixed={"evaluation": Evaluation(batch=8, samples=3000, every=0.1)})
WITH_IMAGES = space("qwen2-vl-2b", global_batch=8)
TURNS_BETWEEN_BATCHES = space(of_few_layers("llava-1.5-7b"), global_batch=8)
"""With so few layers another tensor is the highest at one sample than at eight."""
WITH_IMAGES_FEW_LAYERS = space(of_few_layers("qwen2-vl-2b"), global_batch=8)
WITH_EXPERTS = space(of_few_layers("qwen3-30b-a3b"), seq_len=256, global_batch=16)
"""Until each of 128 experts has a few hundred tokens it is their weights that take long to read."""
CHUNK_FILLS_LATE = space("llava-1.5-7b", seq_len=700)  # 32,064 words: a chunk of logits is 2,048 tokens
FEW = 13
"""One estimate in so many is computed where the sweep computes all; a prime, so that it meets every size and engine."""


FULL = Method.FULL


def offloads(recipe: Recipe) -> tuple[str, str]:
    return recipe.offload_optimizer.value, recipe.offload_params.value


# Scores against exact estimates


@cache
def exact(where: SetupSpace, num_gpus: int, method: Method, every: int) -> list[Estimate]:
    """Recipes of the space with every micro batch, on RTX 4090, computed exactly once for all tests."""
    return list(all_estimates(where, cluster(card("rtx-4090"), num_gpus), (method,), every=every))


def setup_of(estimate: Estimate) -> BoundedSetup:
    return BoundedSetup(recipe=estimate.recipe, most_bytes=0, least_bytes=0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("where", "num_gpus", "every"),
    [
        (SMALL, 1, FEW),
        (SMALL, 4, FEW),
        (WITH_IMAGES_FEW_LAYERS, 2, FEW),
        (TURNS_BETWEEN_BATCHES, 2, FEW),
        (WITH_IMAGES, 2, 5 * FEW),
        (CHUNK_FILLS_LATE, 2, 9 * FEW),
        pytest.param(SMALL, 1, 1, marks=pytest.mark.sweep),
        pytest.param(SMALL, 4, 1, marks=pytest.mark.sweep),
        pytest.param(WITH_IMAGES_FEW_LAYERS, 2, 1, marks=pytest.mark.sweep),
        pytest.param(WITH_IMAGES, 2, 1, marks=pytest.mark.sweep),
        pytest.param(CHUNK_FILLS_LATE, 2, 1, marks=pytest.mark.sweep),
    ],
)
def test_exact_peak_is_between_the_floor_and_the_bound(where: SetupSpace, num_gpus: int, every: int):
    on = cluster(card("rtx-4090"), num_gpus)
    workspaces = workspace_bytes(on.node.gpu)
    found = [*exact(where, num_gpus, Method.FULL, every), *exact(where, num_gpus, Method.LORA, every)]
    assert found
    for estimate in found:
        recipe = estimate.recipe
        bounds = where.models.bounds(recipe, on)
        for bounded in (bounds.at, bounds.close_at):
            least, most = bounded((recipe.micro_batch, recipe.grad_accum))
            assert least + workspaces <= estimate.peak_allocated_bytes <= most + workspaces


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("where", "num_gpus", "every"),
    [
        (SMALL, 1, FEW),
        (WITH_IMAGES_FEW_LAYERS, 2, FEW),
        (WITH_EXPERTS, 1, FEW),
        (EVALUATED, 2, 3 * FEW),
        pytest.param(SMALL, 1, 1, marks=pytest.mark.sweep),
        pytest.param(WITH_IMAGES, 2, 1, marks=pytest.mark.sweep),
    ],
)
def test_seconds_between_two_micro_batches_are_those_of_the_exact_estimate_or_a_little_more(
    where: SetupSpace, num_gpus: int, every: int
):
    on = cluster(card("rtx-4090"), num_gpus)
    for estimate in exact(where, num_gpus, Method.LORA, every):
        seconds = where.run_seconds(setup_of(estimate), on)
        assert seconds == pytest.approx(estimate.run_seconds, rel=0.002)
        if estimate.recipe.micro_batch in (1, where.batch_sizes(1)[-1][0]):
            assert seconds == pytest.approx(estimate.run_seconds)


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_no_setup_is_faster_than_the_floor_of_its_recipe(num_gpus: int):
    on = cluster(card("rtx-4090", memory_bytes=3 * GIB), num_gpus)
    for method in SEARCHED_METHODS:
        for way in SMALL.ways(on, method):
            for setup in SMALL.fastest([way], on, lambda _: inf):
                seconds = SMALL.run_seconds(setup, on)
                assert seconds is not None
                assert seconds >= way.least_seconds * (1 - 1e-9)


@pytest.mark.parametrize("unknown", ["", "memory_bandwidth_bytes_per_second", "pcie_gen"])
@pytest.mark.parametrize("num_gpus", [1, 2])
def test_seconds_that_are_sure_to_be_known_are(num_gpus: int, unknown: str):
    on = cluster(card("rtx-4090", **({unknown: None} if unknown else {})), num_gpus)
    engines = [engine for method in SEARCHED_METHODS for engine in SMALL.choices.engines(on, method)]
    size = SMALL.batch_sizes(num_gpus)[0]
    sure = [SMALL.models.knows_seconds(engine[0], on, size) for engine in engines]
    known = [SMALL.models.seconds(engine[0], on, size) is not None for engine in engines]
    assert all(itertools.starmap(operator.le, zip(sure, known, strict=True)))
    assert any(sure) is not (unknown.startswith("memory") or (unknown.startswith("pcie") and num_gpus > 1))


@pytest.mark.parametrize("gpu_id", ["rtx-4090", "v100-sxm2-16gb"])
@pytest.mark.parametrize("num_gpus", [1, 2])
def test_no_way_is_faster_than_what_is_said_of_its_method_before_the_ways_are_known(num_gpus: int, gpu_id: str):
    on = cluster(card(gpu_id), num_gpus)
    for where in (SMALL, WITH_IMAGES):
        for method in SEARCHED_METHODS:
            least = where.least_seconds(on, method)
            assert least is not None
            assert least > 0
            assert all(least <= way.least_seconds for way in where.ways(on, method))


def test_no_run_of_a_method_writes_less_of_any_kind_than_the_least():
    # plain PyTorch and ZeRO-3 write no 16-bit weights beside those that they update; the former exports float32
    on = cluster(card("rtx-4090"))
    least = SMALL.least_disk(on, FULL)
    spaces = [SMALL.models.disk(recipe) for recipe in SMALL.recipes(on, FULL)]
    assert least.checkpoint_bytes == min(space.checkpoint_bytes for space in spaces)
    assert least.export_bytes == min(space.export_bytes for space in spaces)
    assert len({(space.checkpoint_bytes, space.export_bytes) for space in spaces}) > 2


@pytest.mark.parametrize("every", [FEW, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("num_gpus", [1, 2])
def test_host_memory_that_is_asked_for_is_that_of_the_estimate(num_gpus: int, every: int):
    on = cluster(card("rtx-4090"), num_gpus)
    for estimate in exact(SMALL, num_gpus, Method.FULL, every):
        assert SMALL.models.host_bytes(estimate.recipe, on) == estimate.host.peak_bytes


def test_a_chunk_of_logits_is_looked_at_before_and_after_it_is_full():
    recipe = Recipe(method=Method.LORA)
    estimator, _ = CHUNK_FILLS_LATE.models.estimator(recipe)
    switches = CHUNK_FILLS_LATE.choices.switches
    ends = switches[0], switches[-1]
    # 2^26 logits of 32,064 words: 2,048 tokens, of which 700 fit twice and not three times
    assert TracedBatches(estimator, recipe, (8, 0), 16, ends).sizes == [1, 2, 3, 16]
    assert TracedBatches(estimator, recipe, (8, 0), 1, ends).sizes == [1]


# What fits


BUDGETS_GIB = [1.5, 2.5, 4.5, 9.0]


@pytest.mark.parametrize("memory_gib", BUDGETS_GIB)
@pytest.mark.parametrize("num_gpus", [1, 2])
def test_solved_micro_batch_is_the_largest_that_a_scan_finds(memory_gib: float, num_gpus: int):
    on = cluster(card(memory_bytes=int(memory_gib * GIB)), num_gpus)
    sizes = SMALL.batch_sizes(num_gpus)
    for method in SEARCHED_METHODS:
        for recipe in SMALL.recipes(on, method):
            budget = budget_bytes(on, process_group(recipe, num_gpus))
            fitting = [at for at, size in enumerate(sizes) if SMALL.models.bounds(recipe, on).at(size).most <= budget]
            assert SMALL._largest_fitting(recipe, on, sizes) == max(fitting, default=-1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("memory_gib", [2.0, 4.5])
@pytest.mark.parametrize("num_gpus", [1, 4])
def test_every_setup_that_is_said_to_fit_fits_when_computed_exactly(memory_gib: float, num_gpus: int):
    on = cluster(card(memory_bytes=int(memory_gib * GIB)), num_gpus)
    fitting = [setup for setup in bounded_setups(SMALL, on) if setup.fits]
    assert fitting
    for setup in fitting:
        assert SMALL.estimate(setup, on) is not None


@pytest.mark.parametrize("group", ProcessGroup)
@pytest.mark.parametrize("num_gpus", [1, 4])
@pytest.mark.parametrize("gpu_id", ["rtx-4090", "a100-sxm4-80gb", "t4", "h200-sxm"])
def test_tensors_that_fill_the_budget_fit_and_one_segment_more_does_not(
    gpu_id: str, num_gpus: int, group: ProcessGroup
):
    on = cluster(card(gpu_id), num_gpus)
    tensors = budget_bytes(on, group) + workspace_bytes(on.node.gpu)
    whole_segments = tensors // (2 * MIB) * 2 * MIB
    assert device_memory(whole_segments, on, group).verdict is Verdict.FITS
    assert device_memory(whole_segments + 2 * MIB, on, group).verdict is Verdict.TIGHT


def test_fastest_way_computes_nothing_twice_where_there_is_room():
    on = cluster(card("h100-sxm"))
    for method in SEARCHED_METHODS:
        fastest, *_ = SMALL.ways(on, method)
        assert not fastest.recipe.activation_checkpointing


def test_every_engine_is_tried():
    where = space(seq_len=256, fixed={"method": Method.FULL})
    several = {(way.recipe.zero_stage, offloads(way.recipe)) for way in where.ways(cluster(card("h100-sxm"), 4), FULL)}
    alone = {(way.recipe.zero_stage, offloads(way.recipe)) for way in where.ways(cluster(card("h100-sxm")), FULL)}
    stages = {(stage, ("none", "none")) for stage in (None, 0, 1, 2, 3)}
    on_host = {(stage, ("cpu", "none")) for stage in (1, 2, 3)} | {(3, ("none", "cpu")), (3, ("cpu", "cpu"))}
    assert several == alone == stages | on_host


def test_every_way_to_checkpoint_and_to_compute_the_loss_is_tried():
    on = cluster(card("h100-sxm"))
    ways = {
        (way.recipe.activation_checkpointing, way.recipe.vision_activation_checkpointing, way.recipe.loss)
        for way in WITH_IMAGES.ways(on, Method.LORA)
    }
    assert ways == set(itertools.product((False, True), (False, True), SEARCHED_LOSSES))
    assert len({(one, loss) for one, _, loss in ways}) == len(SMALL.choices.switches) == 4


def test_low_memory_sizes_are_tried_only_beyond_what_the_others_let_fit():
    where = space(seq_len=256, fixed={"method": Method.FULL, "zero_stage": 2})
    ample, scarce = (cluster(card(memory_bytes=int(gib * GIB)), 2) for gib in (24, 2.15))
    sizes = [
        {setup.recipe.zero.overlap_comm for setup in bounded_setups(where, on) if setup.fits} for on in (ample, scarce)
    ]
    assert sizes[0] == {True}
    assert False in sizes[1]


@pytest.mark.sweep
@pytest.mark.parametrize("num_gpus", [1, pytest.param(4, marks=pytest.mark.sweep)])
def test_lightest_setups_have_the_least_memory_of_everything(num_gpus: int):
    on = cluster(card("h100-sxm"), num_gpus)
    where = space(seq_len=256, fixed={"method": Method.FULL})
    least = min(estimate.peak_allocated_bytes for estimate in all_estimates(where, on))
    lightest = min(where.needed_bytes(setup, on) for setup in where.lightest(on, FULL))
    assert lightest + workspace_bytes(on.node.gpu) == least


# What may be proposed


@cache
def open_space(alias: str) -> SetupSpace:
    """One space for many cards, as a search has it."""
    return space(alias)


CARDS = ("t4", "v100-sxm2-16gb", "gtx-1080-ti", "mi300x", "rtx-3060-12gb", "h100-sxm")
ONCE = {("gemma-2-2b", "t4", 2), ("gemma-2-2b", "mi300x", 1), ("blip2-opt-2.7b", "gtx-1080-ti", 2)}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("alias", "gpu_id", "num_gpus"),
    [
        pytest.param(*case, marks=[] if case[0] == "smollm2-135m" or case in ONCE else pytest.mark.sweep)
        for case in itertools.product(("smollm2-135m", "gemma-2-2b", "blip2-opt-2.7b"), CARDS, (1, 2))
    ],
)
def test_nothing_that_breaks_a_rule_is_proposed(gpu_id: str, alias: str, num_gpus: int):
    where, on = open_space(alias), cluster(card(gpu_id), num_gpus)
    facts = model_facts(where.workload.model)
    setups = bounded_setups(where, on)
    for setup in setups:
        product = setup.recipe.micro_batch * setup.recipe.grad_accum * num_gpus
        found = problems(setup.recipe, cluster=on, model=facts, global_batch=product)
        assert not [problem for problem in found if problem.severity is Severity.ERROR]
    assert setups or refusal(where, on).sentence


def test_flat_parameters_on_the_host_get_gradients_once_a_step():
    flat = {"method": Method.FULL, "fsdp": True, "flat_parameters": FlatParameters.ON_DEMAND}
    fixed = flat | {"shard_units": ShardUnits.LAYERS, "offload_params": Offload.CPU, "micro_batch": 1}
    where, on = space(seq_len=256, fixed=fixed), cluster(card(), 2)
    facts = model_facts(where.workload.model)
    recipes = [setup.recipe for setup in bounded_setups(where, on)]
    assert recipes
    for recipe in recipes:
        assert recipe.grad_accum > 1
        product = recipe.micro_batch * recipe.grad_accum * 2
        found = problems(recipe, cluster=on, model=facts, global_batch=product)
        assert not [problem for problem in found if problem.severity is Severity.ERROR]
    every = fixed | {"sync_each_batch": True}
    one = space(seq_len=256, fixed={name: value for name, value in every.items() if name != "micro_batch"})
    assert {setup.recipe.grad_accum for setup in bounded_setups(one, on)} == {1}
    several = space(seq_len=256, fixed=every)
    assert not bounded_setups(several, on)
    assert "FSDP1 (--flat-parameters) cannot add" in refusal(several, on).sentence


FIXED = [
    {"method": Method.LORA, "lora_rank": 64, "lora_targets": "attention"},
    {"precision": Precision.BF16_PURE},
    {"optimizer": OptimizerKind.ADAMW_8BIT},
    {"zero_stage": 2, "offload_optimizer": Offload.CPU},
    {"zero_stage": 3, "offload_optimizer": Offload.CPU, "offload_params": Offload.CPU},
    {"activation_checkpointing": True, "vision_activation_checkpointing": False},
    {"micro_batch": 2},
    {"grad_accum": 2},
    {"attention": AttentionImplementation.EAGER},
    {"zero_stage": 3, "zero": ZeroSettings(reduce_bucket_size=2 * 3 * 5 * 7)},
]


@pytest.mark.parametrize("fixed", FIXED, ids=lambda fixed: "-".join(fixed))
def test_what_the_user_decided_stays_so_in_every_setup(fixed: dict):
    found = bounded_setups(space(seq_len=256, fixed=fixed), cluster(card("h100-sxm"), 2))
    assert found
    assert all(getattr(setup.recipe, name) == value for setup in found for name, value in fixed.items())


# Refusals


REFUSED = [
    ("smollm2-135m", 0.9, 1, {}),
    ("smollm2-135m", 1.2, 1, {"method": Method.FULL}),
    ("smollm2-135m", 1.1, 4, {"activation_checkpointing": False, "method": Method.FULL}),
    ("qwen2-vl-2b", 2.0, 1, {"method": Method.QLORA}),
    ("qwen2-vl-2b", 2.5, 8, {"method": Method.FULL, "zero_stage": 2}),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("alias", "memory_gib", "num_gpus", "fixed"), REFUSED)
def test_what_is_refused_really_does_not_fit(alias: str, memory_gib: float, num_gpus: int, fixed: dict):
    where, on = space(alias, fixed=fixed), cluster(card(memory_bytes=int(memory_gib * GIB)), num_gpus)
    methods = (fixed["method"],) if "method" in fixed else SEARCHED_METHODS
    assert not any(where.fitting_lightest(on, method) for method in methods)
    exact = list(all_estimates(where, on, only_smallest=True))
    assert all(estimate.verdict is not Verdict.FITS for estimate in exact)
    reason = refusal(where, on).sentence
    least = min(estimate.peak_allocated_bytes for estimate in exact) - workspace_bytes(on.node.gpu)
    assert float(reason.split("needs ")[1].split(" GiB")[0]) <= least / GIB + 0.005


@pytest.mark.parametrize(
    ("alias", "gpu_id"), [("llama-3.2-3b", "rtx-4060"), ("qwen2.5-vl-3b", "rtx-4060"), ("qwen3-vl-4b", "rtx-3080-10gb")]
)
def test_offload_that_fits_is_found_though_its_bound_does_not(alias: str, gpu_id: str):
    where, on = space(alias, fixed={"method": Method.FULL}), cluster(card(gpu_id))
    setup = where.fitting_lightest(on, FULL)
    assert setup is not None
    assert where.estimate(setup, on) is not None


@pytest.mark.parametrize("memory_gib", [1.3, 1.6, 2.2])
def test_method_that_a_refusal_proposes_fits(memory_gib: float):
    fixed = {"method": Method.FULL, "zero_stage": None}
    on = cluster(card(memory_bytes=int(memory_gib * GIB)))
    change = refusal(space(fixed=fixed), on).change
    others = {method: space(fixed=fixed | {"method": method}) for method in (Method.LORA, Method.QLORA)}
    fitting = [method for method, where in others.items() if where.fitting_lightest(on, method)]
    if fitting:
        assert change == f"--method {fitting[0].value}"
    else:
        assert "--method" not in change


@pytest.mark.parametrize(("num_gpus", "engine"), [(1, "plain PyTorch"), (2, "DDP")])
def test_old_card_is_refused_for_its_memory_and_not_for_engines_that_it_does_without(num_gpus: int, engine: str):
    where = space("qwen2-vl-2b", fixed={"method": Method.FULL})
    reason = refusal(where, cluster(card("gtx-1080-ti"), num_gpus)).sentence
    assert "needs" in reason
    assert engine in reason


def test_refusal_of_adapter_options_speaks_of_adapters():
    fixed = {"lora_targets": "lm_head", "loss": LossKind.CHUNKED}
    reason = refusal(space(fixed=fixed), cluster(card("t4"))).sentence
    assert "lm_head" in reason
    assert "--method is full" not in reason


@settings(max_examples=12)
@given(st.integers(1, 40), st.integers(1, 40))
def test_more_memory_never_takes_a_setup_away(one: int, other: int):
    less, more = (cluster(card(memory_bytes=size * GIB // 4)) for size in sorted((one, other)))
    methods = [{setup.recipe.method for setup in bounded_setups(SMALL, on)} for on in (less, more)]
    assert methods[0] <= methods[1]
