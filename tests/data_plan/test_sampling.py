"""Micro batches of a sampler: every sample in its place, padded as the trainer pads."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.data_plan.lengths import MostShown, SampleShapes, Shape, Trained, percentile, trained
from vlmplan.data_plan.sampling import Ranks, made_of, micro_steps, order_of, packed_rows, rows_of
from vlmplan.data_rules import DataRules, Order
from vlmplan.errors import InputError
from vlmplan.sampler import Shares, epoch_order

COUNTS = (st.integers(20, 400), st.integers(0, 99), st.integers(0, 3), st.integers(0, 19))
SOUNDS = (st.integers(0, 19), st.integers(0, 3), st.integers(0, 30))
SHAPES = st.lists(st.builds(Shape, *COUNTS, *SOUNDS), min_size=1)
RANKS = st.builds(Ranks, st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
RULES = st.builds(DataRules, order=st.sampled_from(Order), pads_to=st.sampled_from([1, 8]), trainer=st.just("another"))


def samples(shapes: list[Shape], limit: int = 1000) -> Trained:
    whole = SampleShapes(shapes=tuple(shapes), sizes=(), num_refused=0, sentences=())
    return Trained(samples=whole, limit=limit)


@given(SHAPES, RANKS, RULES)
def test_micro_batches_are_those_of_the_order_one_rank_after_another(
    shapes: list[Shape], ranks: Ranks, rules: DataRules
):
    kept = samples(shapes)
    order = order_of([shape.tokens for shape in shapes], rules, ranks, epoch=0, seed=0)
    assert sorted(order) == list(range(len(shapes)))
    steps = list(micro_steps(rows_of(kept, rules), kept, rules, ranks))
    whole = len(shapes) // ranks.samples_per_step * ranks.grad_accum
    if not whole:
        assert [len(step) for step in steps] == [1]
        return
    assert len(steps) == whole
    expected = [
        [made_of([shapes[index] for index in rank], kept, rules) for rank in of_ranks]
        for of_ranks in zip(
            *(
                Shares(
                    micro_batch=ranks.micro_batch, num_ranks=ranks.num_ranks, rank=rank, grad_accum=ranks.grad_accum
                ).micro_batches(order)
                for rank in range(ranks.num_ranks)
            ),
            strict=True,
        )
    ]
    assert steps == expected


def test_a_micro_batch_has_the_sounds_of_all_its_rows_and_the_seconds_of_the_longest():
    rows = [Shape(tokens=30, num_sounds=2, seconds=4.0), Shape(tokens=20), Shape(tokens=10, num_sounds=1, seconds=9.0)]
    found = made_of(rows, samples(rows), DataRules())
    assert (found.num_sounds, found.seconds) == (3, 9.0)


def test_the_bundled_trainer_s_order_is_its_own():
    lengths = [index * 7 % 31 for index in range(100)]
    ranks = Ranks(2, 1, 1)
    assert order_of(lengths, DataRules(), ranks, epoch=3, seed=5) == epoch_order(100, seed=5, epoch=3)
    grouped = DataRules(order=Order.BY_LENGTH)
    assert order_of(lengths, grouped, ranks, epoch=0, seed=0) == epoch_order(100, seed=0, epoch=0, lengths=lengths)


@pytest.mark.sweep  # loads torch
@pytest.mark.parametrize(("num_samples", "batch", "sorted_together"), [(1000, 4, 50 * 4), (40, 8, 8), (7, 2, 2)])
def test_samples_are_grouped_by_length_as_the_trainer_groups_them(num_samples: int, batch: int, sorted_together: int):
    from transformers.trainer_pt_utils import get_length_grouped_indices

    lengths = [index * 37 % 211 for index in range(num_samples)]
    rules = DataRules(order=Order.BY_LENGTH, trainer="another")
    mine = order_of(lengths, rules, Ranks(batch, 1, 1), epoch=0, seed=0)
    for order in (mine, get_length_grouped_indices(lengths, batch)):
        found = [lengths[index] for index in order]
        assert (sorted(order), found[0]) == (list(range(num_samples)), max(lengths))
        for start in range(0, num_samples, sorted_together):
            part = found[start + 1 : start + sorted_together]  # the longest of all may have been taken from its front
            assert part == sorted(part, reverse=True)


@given(SHAPES, st.integers(400, 900))
def test_packed_rows_hold_every_sample_once_and_no_more_than_the_limit(shapes: list[Shape], limit: int):
    rows = packed_rows(samples(shapes, limit))
    for name in Shape._fields:
        found, expected = ([getattr(one, name) for one in listed] for listed in (rows, shapes))
        total = max if name == "seconds" else sum
        assert total(found) == total(expected), name
    assert all(row.tokens <= limit for row in rows)
    half_empty = [row for row in rows if row.tokens * 2 <= limit]
    assert len(half_empty) <= 1  # two of them would be one


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.sampled_from([1, 8]))
def test_a_micro_batch_is_padded_to_its_longest_and_never_over_the_limit(tokens: list[int], pads_to: int):
    made = made_of([Shape(one) for one in tokens], samples([], limit=50), DataRules(pads_to=pads_to))
    assert max(tokens) <= made.num_tokens <= min(50, max(tokens) + pads_to - 1)
    assert made.real_tokens == sum(tokens)


def test_what_is_over_the_limit_is_cut_left_out_or_has_no_room():
    shapes = [Shape(10), Shape(30), Shape(30, 4, 1, 19), Shape(30, 9, 2, 25), Shape(10, 9, 3, 9)]
    found = samples(shapes).samples
    kept = trained(found, DataRules(), limit=20, most=MostShown(images=2))
    assert [shape.tokens for shape in kept.samples.shapes] == [10, 20, 20]
    assert (kept.num_cut, kept.num_no_room, kept.num_many_images, kept.num_over) == (2, 1, 1, 3)
    kept = trained(found, DataRules(drops_long=True), limit=20)
    assert (len(kept.samples.shapes), kept.num_long, kept.num_over) == (2, 3, 3)
    with pytest.raises(InputError, match="no sample fits into 5 tokens"):
        trained(found, DataRules(drops_long=True), limit=5)


def test_samples_with_more_or_longer_sounds_than_are_allowed_are_left_out():
    shapes = [Shape(30), Shape(30, 0, 0, 0, 9, 1, 4.5), Shape(30, 0, 0, 0, 9, 2, 1.5), Shape(30, 0, 0, 0, 20, 3, 1.0)]
    found = samples(shapes).samples
    kept = trained(found, DataRules(), limit=20, most=MostShown(sounds=2, seconds=4))
    assert (kept.num_many_sounds, kept.num_no_room, kept.num_cut) == (2, 0, 2)
    assert trained(found, DataRules(), limit=20).num_no_room == 1
    with pytest.raises(InputError, match=r"no sample fits into 20 tokens with --audio-seconds 0\.5; give more"):
        trained(samples(shapes[1:]).samples, DataRules(), limit=20, most=MostShown(seconds=0.5))


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[int], percent: int):
    in_order = sorted(values)
    found = percentile(in_order, percent)
    counts = Counter(in_order)
    assert sum(count for value, count in counts.items() if value <= found) * 100 >= percent * len(values)
    assert sum(count for value, count in counts.items() if value < found) * 100 < percent * len(values)
