"""``DistributedDataParallel``: its buckets are torch's own, its bytes in unreduced arithmetic."""

from collections.abc import Hashable

import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st

from laws import law
from small_models import table_of
from vlmplan.engines import engine_of
from vlmplan.engines.collectives import CollectiveKind
from vlmplan.engines.ddp import BUCKET_BYTES, FIRST_BUCKET_BYTES, DataParallel, Filling, filled
from vlmplan.engines.events import Component, Sink, Stream
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Precision
from vlmplan.units import MIB, DType

PHI = 40_000_000  # elements, in forty equal weights
COUNT = 40
FP32 = Recipe(zero_stage=None, precision=Precision.FP32)
TYPES = st.sampled_from([DType.FLOAT32, DType.BFLOAT16, DType.UINT8])


def engine(dtype: DType = DType.FLOAT32, recipe: Recipe = FP32, num_ranks: int = 2) -> DataParallel:
    found = engine_of(table_of([PHI // COUNT] * COUNT, dtype), recipe, num_ranks=num_ranks)
    assert isinstance(found, DataParallel)
    return found


@law(
    gradients=st.lists(
        st.builds(Filling, TYPES, st.integers(1, 60).map(lambda quarter: quarter * MIB // 4)), min_size=1, max_size=30
    ),
    quick=40,
    thorough=200,
)
def test_buckets_are_filled_as_torch_does(gradients: list[Filling]):
    real = [
        torch.empty(one.num_bytes // one.dtype.num_bytes, dtype=getattr(torch, one.dtype.torch_name), device="meta")
        for one in gradients
    ]
    limits, sparse = [FIRST_BUCKET_BYTES, BUCKET_BYTES], [False] * len(real)
    buckets, _ = dist._compute_bucket_assignment_by_size(real, limits, sparse)
    assert [[gradients[index] for index in bucket] for bucket in buckets] == filled(gradients, *limits)


def test_those_are_the_sizes_that_torch_has():
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == FIRST_BUCKET_BYTES
    buckets, last = divmod(COUNT - 1, 7)  # of 1,000,000 x 4 bytes one is more than 1 MiB, seven are more than 25
    assert engine().buckets == [4 * PHI // COUNT, *[7 * 4 * PHI // COUNT] * buckets, last * 4 * PHI // COUNT]


@pytest.mark.parametrize("num_ranks", [2, 16])
def test_every_rank_takes_the_16_bytes_a_weight_of_plain_float32_and_a_number_for_each_weight(num_ranks: int):
    states = engine(num_ranks=num_ranks).states()
    norms = 4 * COUNT * 16  # of 1,000,000 elements: 16 pieces of at most 65,536
    assert states.step_peak.total == (4 + 4 + 4 + 4) * PHI + 4 * COUNT + norms
    assert states.resident.total == (4 + 4 + 4 + 4) * PHI + 4 * COUNT  # gradients stay in their buckets
    assert states.at_start.total == (4 + 4) * PHI + 4 * COUNT


def test_a_step_sends_every_gradient_once_however_much_it_accumulates():
    for grad_accum in (1, 4):
        [sent] = engine(recipe=FP32.with_changes(grad_accum=grad_accum)).collectives(None)
        assert sent.kind is CollectiveKind.ALL_REDUCE
        assert sent.num_bytes == 4 * PHI + 4 * COUNT
        assert sent.count == len(engine().buckets) + 1


BESIDE = FP32.with_changes(gradient_as_bucket_view=False)


def test_torchs_own_way_takes_gradients_beside_the_buckets_from_backward_to_the_update():
    states = engine(recipe=BESIDE).states()
    assert states.at_start.total == (4 + 4) * PHI + 4 * COUNT  # weights and buckets
    assert states.resident.total == (4 + 4 + 8) * PHI + 4 * COUNT
    assert states.step_peak.total == (4 + 4 + 8 + 4) * PHI + 4 * COUNT + 4 * COUNT * 16


def test_torchs_own_way_sends_all_weights_in_flat_copies_of_250_mib_of_which_two_are_on_their_way():
    # of 1,000,000 x 4 bytes 66 are more than 250 MiB: 200 go as 66, 66, 66 and 2
    found = engine_of(table_of([PHI // COUNT] * 200, DType.FLOAT32), BESIDE, num_ranks=2)
    assert isinstance(found, DataParallel)
    full, rest = 66 * 4 * PHI // COUNT, 2 * 4 * PHI // COUNT
    assert found._flat_copies == [(full, full), (full, full), (full, rest), (rest, 0)]


def test_a_weight_that_fills_a_copy_by_itself_is_sent_as_it_is():
    huge, small = 70_000_000, 1_000_000
    found = engine_of(table_of([huge, huge, small, small], DType.FLOAT32), BESIDE, num_ranks=2)
    assert isinstance(found, DataParallel)
    assert found._flat_copies == [(0, 0), (0, 2 * 4 * small), (2 * 4 * small, 0)]


class Told(Sink):
    """Bytes of what is made and freed."""

    def __init__(self) -> None:
        self.sizes: dict[object, int] = {}
        self.told: list[int] = []

    def allocate(self, owner: Hashable, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        self.sizes[owner] = num_bytes
        self.told.append(num_bytes)

    def keep(self, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        self.told.append(num_bytes)

    def free(self, owner: Hashable) -> None:
        if owner in self.sizes:
            self.told.append(-self.sizes.pop(owner))


def test_buckets_are_made_anew_of_gradients_as_they_came_where_nothing_goes_unused():
    """``_rebuild_buckets`` in ``reducer.cpp``: of what the last micro batch of the first step sends."""
    one, told = 4 * PHI // COUNT, Told()
    recipe = BESIDE.with_changes(activation_checkpointing=True)
    found = engine_of(table_of([PHI // COUNT] * COUNT, DType.FLOAT32), recipe, num_ranks=2, sink=told)
    found.load(is_on_cpu=True)
    found.build()
    whole = COUNT * one
    assert whole in told.told
    for number in range(2):
        found.begin_micro_batch(accumulates=number > 0, is_last=number > 0)
        for ordinal in reversed(range(COUNT)):
            found.take_gradient(ordinal)
    told.told.clear()
    found.begin_micro_batch(accumulates=False, is_last=False)
    buckets, last = divmod(COUNT - 1, 7)
    assert told.told == [-whole, one, *[7 * one] * buckets, last * one]
    told.told.clear()
    found.begin_micro_batch(accumulates=False, is_last=True)
    assert not told.told
