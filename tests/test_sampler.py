"""The order of an epoch: every sample once, whatever the number of ranks, and whenever a run is stopped."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.errors import InputError
from vlmplan.sampler import RUN_SAMPLES, SORTED_SAMPLES, Shares, epoch_order

SIZES = st.integers(1, 5)


def taken(order: list[int], *, num_ranks: int, position: int = 0, **shares: int) -> list[list[int]]:
    """What all ranks together take, a micro step at a time."""
    ranks = [
        list(Shares(num_ranks=num_ranks, rank=rank, **shares).micro_batches(order, position=position))
        for rank in range(num_ranks)
    ]
    return [[index for batch in batches for index in batch] for batches in zip(*ranks, strict=True)]


@given(st.integers(0, 500), st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_an_epoch_has_every_sample_once(num_samples: int, seed: int, epoch: int, groups: bool):
    lengths = [index * 7 % 31 for index in range(num_samples)] if groups else None
    order = epoch_order(num_samples, seed=seed, epoch=epoch, lengths=lengths)
    assert sorted(order) == list(range(num_samples))


def test_the_order_is_by_seed_and_epoch_and_nothing_else():
    orders = {(seed, epoch): tuple(epoch_order(50, seed=seed, epoch=epoch)) for seed in range(4) for epoch in range(4)}
    assert len(set(orders.values())) == 4 * 4
    assert orders == {key: tuple(epoch_order(50, seed=key[0], epoch=key[1])) for key in orders}


@given(st.integers(0, 200), SIZES, SIZES)
def test_ranks_that_take_all_leave_nothing_out_and_have_as_many_micro_batches(n: int, micro_batch: int, num_ranks: int):
    order = epoch_order(n, seed=3, epoch=5)
    steps = taken(order, num_ranks=num_ranks, micro_batch=micro_batch, takes_all=True)
    assert [index for step in steps for index in step] == order
    assert all(len(step) == micro_batch * num_ranks for step in steps[:-1])


@given(st.integers(0, 200), SIZES, SIZES, SIZES)
def test_ranks_share_the_front_of_the_order_without_a_gap_or_a_double(
    num_samples: int, micro_batch: int, num_ranks: int, grad_accum: int
):
    order = epoch_order(num_samples, seed=3, epoch=5)
    steps = taken(order, num_ranks=num_ranks, micro_batch=micro_batch, grad_accum=grad_accum)
    global_batch = micro_batch * num_ranks * grad_accum
    assert [index for step in steps for index in step] == order[: num_samples // global_batch * global_batch]


@given(st.integers(0, 200), SIZES, SIZES, SIZES, SIZES, st.data())
def test_a_run_goes_on_with_another_number_of_ranks_where_it_stopped(
    num_samples: int, micro_batch: int, first_ranks: int, later_ranks: int, later_micro_batch: int, data: st.DataObject
):
    order = epoch_order(num_samples, seed=3, epoch=5)
    before = taken(order, num_ranks=first_ranks, micro_batch=micro_batch)
    num_steps = data.draw(st.integers(0, len(before)))
    had = [index for step in before[:num_steps] for index in step]
    after = taken(order, num_ranks=later_ranks, micro_batch=later_micro_batch, position=len(had))
    together = had + [index for step in after for index in step]
    assert together == order[: len(together)]
    assert num_samples - len(together) < later_ranks * later_micro_batch


@given(st.integers(1, 3 * SORTED_SAMPLES), st.integers(0, 99))
def test_neighbours_are_of_about_equal_length_when_grouped(num_samples: int, seed: int):
    order = epoch_order(num_samples, seed=seed, epoch=0, lengths=range(num_samples))
    falls = sum(later < earlier for earlier, later in pairwise(order))
    num_runs = -(-num_samples // RUN_SAMPLES) + -(-num_samples // SORTED_SAMPLES)
    assert falls < num_runs


def test_grouped_samples_do_not_come_from_short_to_long():
    order = epoch_order(SORTED_SAMPLES, seed=0, epoch=0, lengths=range(SORTED_SAMPLES))
    starts = order[::RUN_SAMPLES]
    assert sorted(starts) == list(range(0, SORTED_SAMPLES, RUN_SAMPLES)) != starts


def test_grouped_samples_still_come_in_another_order_each_epoch():
    lengths = [5] * 1000
    orders = [epoch_order(1000, seed=0, epoch=epoch, lengths=lengths) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert {order.index(7) for order in orders} != {orders[0].index(7)}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rank": 4}, "rank is 4; 0 to 3 is needed"),
        ({"rank": -1}, "rank is -1; 0 to 3 is needed"),
        ({"micro_batch": 0}, "micro_batch is 0; 1 or more"),
        ({"grad_accum": 0}, "grad_accum is 0; 1 or more"),
        ({"num_ranks": 0, "rank": 0}, "num_ranks is 0; 1 or more"),
    ],
)
def test_shares_that_make_no_sense_are_refused(changes: dict, sentence: str):
    with pytest.raises(InputError, match=sentence):
        Shares(**{"micro_batch": 1, "num_ranks": 4, "rank": 0, **changes})
