"""Recipes that are tried: the sizes of their micro batches, and hpZ on several machines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planned import decided
from search_cases import card, cluster, space
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload
from vlmplan.recipe.evaluation import Evaluation, Kept
from vlmplan.search.recipe_space import RecipeSpace

SMALL = space(seq_len=256)


def offloads_nothing(recipe: Recipe) -> bool:
    return recipe.offload_optimizer is Offload.NONE and recipe.offload_params is Offload.NONE


# Batch sizes


@given(global_batch=st.integers(1, 5000), num_gpus=st.integers(1, 512))
def test_micro_batch_times_gpus_times_accumulation_holds_the_global_batch(global_batch: int, num_gpus: int):
    sizes = space(global_batch=global_batch).batch_sizes(num_gpus)
    products = {micro_batch * grad_accum * num_gpus for micro_batch, grad_accum in sizes}
    assert len(products) == 1
    (product,) = products
    assert global_batch <= product < global_batch + num_gpus
    assert product == global_batch or global_batch % num_gpus


@pytest.mark.sweep
@given(global_batch=st.integers(1, 5000), num_gpus=st.integers(1, 512))
def test_micro_batches_go_from_one_sample_to_everything_at_once(global_batch: int, num_gpus: int):
    sizes = space(global_batch=global_batch).batch_sizes(num_gpus)
    assert sizes[0][0] == sizes[-1][1] == 1
    assert sizes == sorted(sizes)


@given(st.integers(1, 3000))
def test_every_micro_batch_that_divides_is_tried(global_batch: int):
    sizes = [size for size in range(1, global_batch + 1) if global_batch % size == 0]
    assert space(global_batch=global_batch).batch_sizes(1) == [(size, global_batch // size) for size in sizes]


def test_huge_global_batch_is_divided_at_once():
    assert len(space(global_batch=10**9).batch_sizes(1)) == (9 + 1) * (9 + 1)  # 10^9 = 2^9 x 5^9


@given(
    global_batch=st.integers(1, 5000),
    num_gpus=st.integers(1, 512),
    fixed=st.fixed_dictionaries({}, optional={"micro_batch": st.integers(1, 64), "grad_accum": st.integers(1, 64)}),
)
def test_no_number_of_gpus_asks_for_a_larger_micro_batch_than_one_gpu(global_batch: int, num_gpus: int, fixed: dict):
    one = space(global_batch=global_batch, fixed=fixed)
    assert one.batch_sizes(num_gpus)[-1][0] <= one.batch_sizes(1)[-1][0]


@given(global_batch=st.integers(1, 500), num_gpus=st.integers(1, 64), micro_batch=st.integers(1, 64))
def test_fixed_micro_batch_is_held_and_accumulated_as_often_as_needed(global_batch, num_gpus, micro_batch):
    fixed = {"micro_batch": micro_batch}
    ((size, steps),) = space(global_batch=global_batch, fixed=fixed).batch_sizes(num_gpus)
    assert size == micro_batch
    assert (steps - 1) * micro_batch * num_gpus < global_batch <= steps * micro_batch * num_gpus


@given(global_batch=st.integers(1, 500), num_gpus=st.integers(1, 64), grad_accum=st.integers(1, 64))
def test_fixed_accumulation_is_held_with_the_least_micro_batch_that_does(global_batch, num_gpus, grad_accum):
    ((size, steps),) = space(global_batch=global_batch, fixed={"grad_accum": grad_accum}).batch_sizes(num_gpus)
    assert steps == grad_accum
    assert (size - 1) * grad_accum * num_gpus < global_batch <= size * grad_accum * num_gpus


def test_both_fixed_are_both_held():
    fixed = {"micro_batch": 3, "grad_accum": 5}
    assert space(fixed=fixed).batch_sizes(7) == [(3, 5)]


# Sizes


def test_a_cluster_gets_its_own_sizes_where_another_lay_in_memory():
    own = space(fixed={"method": Method.FULL})

    def overlaps(num_gpus: int) -> set[bool]:
        """Of a cluster that nothing refers to afterwards."""
        gone = cluster(card(), num_gpus)
        return {recipe.zero.overlap_comm for recipe in own.recipes(gone, Method.FULL) if recipe.zero is not None}

    for _ in range(20):
        assert overlaps(1) == {False}
        assert overlaps(2) == {False, True}


# Several machines


def test_weights_are_tried_with_copies_within_a_machine_where_they_would_come_from_others():
    def tried(num_gpus: int, num_nodes: int) -> set[tuple[int | None, int]]:
        recipes = SMALL.recipes(cluster(card(), num_gpus, num_nodes), Method.FULL)
        return {(recipe.zero_stage, recipe.hpz) for recipe in recipes if offloads_nothing(recipe)}

    without = {(stage, 1) for stage in (None, 0, 1, 2, 3)}
    assert tried(8, 1) == tried(1, 4) == without
    assert tried(4, 2) == without | {(3, 4)}


def test_copies_are_never_tried_with_weights_on_the_host():
    recipes = list(SMALL.recipes(cluster(card(), 4, 2), Method.FULL))
    assert any(recipe.offload_params is not Offload.NONE for recipe in recipes)
    assert all(recipe.hpz == 1 for recipe in recipes if recipe.offload_params is not Offload.NONE)


def test_copies_that_the_user_wants_are_the_only_ones_tried():
    own = RecipeSpace(SMALL.workload, decided(hpz=2), SMALL.global_batch)
    recipes = list(own.recipes(cluster(card(), 4, 2), Method.FULL))
    assert {(recipe.zero_stage, recipe.hpz) for recipe in recipes} == {(3, 2)}


def test_an_evaluation_bounds_what_takes_least_under_zero_3_too():
    sharded = {"zero_stage": 3, "method": Method.LORA}
    evaluation, on = Evaluation(batch=32, samples=64, kept=Kept.PREDICTIONS), cluster(card(), 2)
    where, plain = (space(seq_len=256, fixed=sharded | one) for one in ({"evaluation": evaluation}, {}))
    one, without = (each.lightest(on, Method.LORA)[0] for each in (where, plain))
    assert without.least_bytes * 2 < one.least_bytes <= where.needed_bytes(one, on)
