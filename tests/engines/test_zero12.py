"""Stages 1 and 2: gradients that are larger than the reduce bucket."""

import pytest
from arriving_gradients import Gradients

from cli_calls import call
from small_models import table_of
from vlmplan.engines.choice import engine_of
from vlmplan.engines.zero12 import Zero12
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.zero import ZeroSettings

BF16 = 2
BUCKET = 40


def peak_of_reduction(numels: list[int], stage: int, *, num_ranks: int, rank: int) -> int:
    """Bytes of gradients, buckets and copies at most while all gradients arrive and are reduced."""
    settings = ZeroSettings(reduce_bucket_size=BUCKET, overlap_comm=False)
    recipe = Recipe(method=Method.FULL, zero_stage=stage, zero=settings)
    tracker = Gradients()
    engine = Zero12(table_of(numels), recipe, num_ranks=num_ranks, rank=rank, sink=tracker)
    tracker.arrive(engine)
    assert tracker.now().total == engine.owned_bytes
    return tracker.peak.total


def test_a_large_gradient_of_other_ranks_stays_to_the_end_of_backward_under_stage_1():
    # 200 elements over 2 ranks: the first weight is the first rank's, the others the second's.
    numels = [100, 30, 70]
    # When the second is reduced, out of the bucket, its rank makes the buffer for its 30 + 70 elements; the first,
    # larger than the bucket, is not dropped (``reduce_ipg_grads``), and the third has not been reduced.
    assert peak_of_reduction(numels, 1, num_ranks=2, rank=1) == BF16 * (100 + 70 + BUCKET + (30 + 70))


def test_stage_2_drops_it_at_once():
    # They arrive from the last on: the third is reduced when the second comes, into a buffer of 30 + 70 elements. The
    # second is in the bucket when the first comes, and when that is reduced, nothing else is left.
    numels = [100, 30, 70]
    assert peak_of_reduction(numels, 2, num_ranks=2, rank=1) == BF16 * (100 + BUCKET + (30 + 70))


@pytest.mark.parametrize(
    ("first", "num_ranks", "copied"),
    [
        (50, 3, 0),  # pieces of 50 each exceed the bucket and are sent where they lie
        (40, 7, 3 * 20),  # of pieces of 20 three exceed it, and are sent from a flat copy
        (40, 14, 5 * 10),
    ],
)
def test_a_large_gradient_is_sent_once_its_pieces_exceed_the_bucket(first, num_ranks, copied):
    # A rank updates (first + 100) / num_ranks elements, the first rank none of the large weight. That waits beside the
    # bucket until the gradient of the other is there.
    assert (first + 100) % num_ranks == 0
    peak = peak_of_reduction([first, 100], 2, num_ranks=num_ranks, rank=0)
    assert peak == BF16 * (100 + first + BUCKET + copied)


def built(numels: list[int], room_bytes: int | None) -> tuple[int, int]:
    """The highest moment on the GPU while the engine is built for 20 ranks, and what the host has of it meanwhile."""
    tracker = Gradients()
    recipe = Recipe(method=Method.FULL, zero_stage=2)
    engine = engine_of(table_of(numels), recipe, num_ranks=20, sink=tracker, room_bytes=room_bytes)
    engine.load(is_on_cpu=False)
    engine.build()
    return tracker.peak.total, engine.flattened_on_host_bytes


def test_weights_are_flattened_on_the_host_where_the_gpu_has_no_room_for_them_twice():
    weights = 400 * BF16
    assert built([100, 300], None) == built([100, 300], 2 * weights) == (2 * weights, 0)
    # Of a rank's 20 elements: a master copy of four bytes each, and a gradient of that size for a moment.
    assert built([100, 300], 2 * weights - 1) == (weights + 20 * (4 + 4), 2 * weights)


def test_a_card_that_the_weights_fill_once_trains_them_with_many_ranks():
    command = "estimate --model llama-3.2-3b --gpu rtx-4070:1 --num-nodes 32 --method full --zero-stage 2 --seq-len 512"
    answer = call(*command.split(), "--json").document
    init = next(phase for phase in answer["phases"] if phase["name"] == "init")
    weights = 3_212_749_824 * BF16
    assert answer["verdict"] == "fits"
    assert weights < init["peak_bytes"] < 1.15 * weights
    assert answer["host_load_bytes_per_node"] > 2 * weights
