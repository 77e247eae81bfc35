"""The rank that is planned is the one with the highest peak, of all that there are.

Models are shortened to few layers: with a tied and an untied head, with experts larger than most reduce buckets, and
with a vision tower that sees no images, so that its weights get no gradients.
"""

from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import strategies as st

from laws import law
from planned import memory_timeline, shortened, workload
from small_models import table_of
from vlmplan.engines import engine_of
from vlmplan.engines.engine import OwnBytes
from vlmplan.engines.events import Marked
from vlmplan.engines.zero12 import Zero12
from vlmplan.estimation import Estimator
from vlmplan.memory.timeline import StartedRun, Timeline
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import BatchesOnGpu, LossKind, Method, Offload, OptimizerKind
from vlmplan.recipe.zero import ZeroSettings

SHORT = {
    "smollm2-135m": {"num_hidden_layers": 4},
    "tinyllama-1.1b": {"num_hidden_layers": 3},
    "mixtral-8x7b": {"num_hidden_layers": 2},
    "qwen2-vl-2b": {"num_hidden_layers": 2},
}
CAPABILITY = (8, 0)
BF16 = 2


@cache
def estimator(alias: str, method: Method, num_images: int) -> Estimator:
    files = shortened(alias, **SHORT[alias])
    return Estimator(workload(files, seq_len=300, images_per_sample=num_images), Recipe(method=method, zero_stage=1))


@st.composite
def partitioned_recipes(draw: st.DrawFn) -> Recipe:
    optimizer = draw(st.sampled_from([OptimizerKind.ADAMW, OptimizerKind.ADAMW, OptimizerKind.SGD, OptimizerKind.MUON]))
    uses_muon = optimizer is OptimizerKind.MUON
    method = Method.FULL if uses_muon else draw(st.sampled_from([Method.FULL, Method.FULL, Method.LORA]))
    return Recipe(
        method=method,
        loraplus_lr_ratio=draw(st.sampled_from([None, 16.0])) if method is Method.LORA else None,
        zero_stage=draw(st.integers(1, 3 if uses_muon else 2)),
        optimizer=optimizer,
        offload_optimizer=Offload.NONE if uses_muon else draw(st.sampled_from([Offload.NONE, Offload.CPU])),
        micro_batch=draw(st.integers(1, 4)),
        grad_accum=draw(st.integers(1, 2)),
        activation_checkpointing=draw(st.booleans()),
        loss=draw(st.sampled_from(LossKind)),
        zero=ZeroSettings(
            reduce_bucket_size=draw(st.sampled_from([10**5, 10**6, 10**7, 5 * 10**7, 5 * 10**8])),
            overlap_comm=draw(st.booleans()),
            contiguous_gradients=draw(st.booleans()),
        ),
    )


def timelines(one: Estimator, recipe: Recipe, num_ranks: int) -> tuple[Timeline, list[Timeline]]:
    """As planned, and of each rank."""
    trace = one.trace(recipe, CAPABILITY)
    of_ranks = [memory_timeline(one.table, trace, recipe, num_ranks=num_ranks, rank=rank) for rank in range(num_ranks)]
    return memory_timeline(one.table, trace, recipe, num_ranks=num_ranks), of_ranks


@law(
    alias=st.sampled_from(list(SHORT)),
    recipe=partitioned_recipes(),
    num_ranks=st.integers(2, 9),
    num_images=st.integers(0, 1),
    quick=50,
    thorough=400,
)
def test_no_rank_has_a_higher_peak_than_the_planned_one(alias: str, recipe: Recipe, num_ranks: int, num_images: int):
    one = estimator(alias, recipe.method, num_images if alias == "qwen2-vl-2b" else 0)
    planned, of_ranks = timelines(one, recipe, num_ranks)
    assert planned == of_ranks[planned.rank]
    assert planned.peak.total == max(timeline.peak.total for timeline in of_ranks)


def test_micro_batches_that_wait_count_in_which_rank_is_the_highest():
    one = estimator("smollm2-135m", Method.FULL, 0)
    recipe = Recipe(
        method=Method.FULL,
        zero_stage=2,
        grad_accum=2,
        batches_on_gpu=BatchesOnGpu.STEP,
        zero=ZeroSettings(reduce_bucket_size=10**6),
    )
    run, trace = StartedRun(one.table, recipe, num_ranks=2), one.trace(recipe, CAPABILITY)
    alone, waiting = (run.timeline(trace, recipe, batch_bytes=num_bytes) for num_bytes in (0, 2**40))
    # What a step has trained on is there in its end too, beside the rank whose update takes most.
    assert (alone.peak_phase.name, alone.rank) == ("backward", 1)
    assert waiting.rank == engine_of(one.table, recipe, num_ranks=2).rank == 0


def test_at_most_two_ranks_are_walked_however_many_there_are(monkeypatch: pytest.MonkeyPatch):
    one, walked = estimator("smollm2-135m", Method.FULL, 0), []
    begin = Zero12.begin_micro_batch
    monkeypatch.setattr(
        Zero12, "begin_micro_batch", lambda *args, **kwargs: walked.append(args) or begin(*args, **kwargs)
    )
    for num_ranks in (2, 8, 64):
        for stage in (1, 2):
            recipe = Recipe(method=Method.FULL, zero_stage=stage, zero=ZeroSettings(reduce_bucket_size=10**6))
            memory_timeline(one.table, one.trace(recipe, CAPABILITY), recipe, num_ranks=num_ranks)
            assert len(walked) <= 2
            walked.clear()


def test_ranks_that_get_less_and_later_than_another_are_left_out(monkeypatch: pytest.MonkeyPatch):
    one, asked, own_bytes = estimator("smollm2-135m", Method.FULL, 0), set[int](), Zero12.own_bytes

    def counted(engine: Zero12, marks: list[Marked], *, accumulates: bool) -> Iterator[OwnBytes]:
        asked.add(engine.rank)
        return own_bytes(engine, marks, accumulates=accumulates)

    monkeypatch.setattr(Zero12, "own_bytes", counted)
    recipe = Recipe(method=Method.FULL, zero_stage=2, zero=ZeroSettings(reduce_bucket_size=10**6))
    memory_timeline(one.table, one.trace(recipe, CAPABILITY), recipe, num_ranks=64)
    assert 1 <= len(asked) <= 64 // 3


@pytest.mark.parametrize(("zero_stage", "num_ranks"), [(None, 1), (None, 4), (0, 4), (1, 1), (2, 1), (3, 4)])
def test_ranks_that_are_alike_are_not_compared(zero_stage: int | None, num_ranks: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("vlmplan.memory.timeline.highest_rank")
    one, recipe = estimator("smollm2-135m", Method.FULL, 0), Recipe(method=Method.FULL, zero_stage=zero_stage)
    assert memory_timeline(one.table, one.trace(recipe, CAPABILITY), recipe, num_ranks=num_ranks).rank == 0


# 200 elements over 2 ranks: the first weight is the first rank's, the others the second's. A bucket has 40 elements.
NUMELS = [100, 30, 70]
MARKS: list[Marked] = [None, (2,), None, (1,), None, (0,), None, ()]
"""The last gradient is reduced where it is, then the second out of the bucket, then the first where it is."""


@pytest.mark.parametrize(
    ("zero_stage", "rank", "expected"),
    [
        # Under stage 1 the last one stays, as the rank has no share of it; then it makes room for its own 100.
        (1, 0, [(0, 0), (0, 0), *[(70, 70)] * 3, (70, 170), (170, 170), (170, 170)]),
        (2, 0, [*[(0, 0)] * 5, (0, 100), (100, 100), (100, 100)]),
        # Its 30 + 70 at once; the first one stays.
        (1, 1, [(0, 0), (0, 100), *[(100, 100)] * 4, (200, 200), (200, 200)]),
        (2, 1, [(0, 0), (0, 100), *[(100, 100)] * 6]),
    ],
)
def test_a_rank_has_its_share_from_its_first_gradient_on(zero_stage: int, rank: int, expected: list[tuple[int, int]]):
    recipe = Recipe(method=Method.FULL, zero_stage=zero_stage, zero=ZeroSettings(reduce_bucket_size=40))
    engine = Zero12(table_of(NUMELS), recipe, num_ranks=2, rank=rank)
    found = list(engine.own_bytes(MARKS, accumulates=False))
    assert found == [OwnBytes(BF16 * start, BF16 * most) for start, most in expected]


def test_earlier_micro_batches_leave_stage_2_a_share_of_their_own():
    recipe = Recipe(method=Method.FULL, zero_stage=2, zero=ZeroSettings(reduce_bucket_size=40))
    engine = Zero12(table_of(NUMELS), recipe, num_ranks=2, rank=1)
    found = list(engine.own_bytes(MARKS, accumulates=True))
    assert (found[0].at_start, found[-1].most) == (BF16 * 100, BF16 * (100 + 100))


def test_with_the_optimizer_on_the_host_a_share_passes():
    recipe = Recipe(
        method=Method.FULL,
        zero_stage=2,
        offload_optimizer=Offload.CPU,
        zero=ZeroSettings(reduce_bucket_size=40),
    )
    engine = Zero12(table_of(NUMELS), recipe, num_ranks=2, rank=1)
    norm_of_70, norm_of_30 = 8 * 70, 8 * 30  # in float64
    expected = [0, norm_of_70, 0, norm_of_30, 0, 0, 0, 0]
    assert [one.most for one in engine.own_bytes(MARKS, accumulates=False)] == expected
