"""Samples of a step: what a search takes where the global batch does not divide."""

from math import lcm

from hypothesis import given
from hypothesis import strategies as st

from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind
from vlmplan.search.step_samples import samples_of_step, step_sizes

small = st.integers(1, 24)


@given(st.one_of(st.none(), small), st.one_of(st.none(), small), st.integers(1, 300), st.integers(1, 8))
def test_every_size_of_a_micro_batch_holds_the_same_samples(
    micro_batch: int | None, grad_accum: int | None, global_batch: int, num_gpus: int
):
    fixed = DecidedRecipe(micro_batch=micro_batch, grad_accum=grad_accum)
    samples = samples_of_step(fixed, global_batch, num_gpus)
    assert {size * steps * num_gpus for size, steps in step_sizes(fixed, global_batch, num_gpus)} == {samples}


@given(
    st.one_of(st.none(), small),
    st.one_of(st.none(), small),
    st.integers(1, 300),
    st.integers(1, 8),
    st.integers(2, 24),
    st.integers(1, 4),
)
def test_a_step_holds_whole_groups_of_answers_however_often_they_are_trained_on(
    micro_batch: int | None, grad_accum: int | None, global_batch: int, num_gpus: int, group: int, iterations: int
):
    task = TrainingTask(kind=TaskKind.GRPO, num_generations=group, num_iterations=iterations)
    fixed = DecidedRecipe(micro_batch=micro_batch, grad_accum=grad_accum, task=task)
    sizes = step_sizes(fixed, global_batch, num_gpus)
    (samples,) = {size * steps * num_gpus for size, steps in sizes}
    if None in (micro_batch, grad_accum):
        assert samples >= global_batch
        assert samples % group == 0
        unit = lcm(group, (micro_batch or 1) * (grad_accum or 1) * num_gpus)
        assert samples - global_batch < unit


def test_a_global_batch_that_does_not_divide_becomes_the_next_that_does():
    assert samples_of_step(DecidedRecipe(), 16, 3) == 18
    assert samples_of_step(DecidedRecipe(micro_batch=3), 16, 1) == 18
    assert samples_of_step(DecidedRecipe(micro_batch=16), 16, 2) == 32
    assert samples_of_step(DecidedRecipe(sequence_parallel=2), 16, 4) == 16
