"""``DistributedDataParallel``: its buckets are torch's own, its bytes in unreduced arithmetic."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st

from laws import law
from small_models import table_of
from vlmplan.engines import engine_of
from vlmplan.engines.collectives import CollectiveKind
from vlmplan.engines.ddp import BUCKET_BYTES, FIRST_BUCKET_BYTES, DataParallel, Gradient, filled
from vlmplan.recipe import Precision, Recipe
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
        st.builds(Gradient, TYPES, st.integers(1, 60).map(lambda quarter: quarter * MIB // 4)), min_size=1, max_size=30
    ),
    quick=40,
    thorough=400,
)
def test_buckets_are_filled_as_torch_does(gradients: list[Gradient]):
    real = [
        torch.empty(one.num_bytes // one.dtype.num_bytes, dtype=getattr(torch, one.dtype.torch_name), device="meta")
        for one in gradients
    ]
    limits, sparse = [FIRST_BUCKET_BYTES, BUCKET_BYTES], [False] * len(real)
    buckets, _ = dist._compute_bucket_assignment_by_size(real, limits, sparse)
    assert [[gradients[index] for index in bucket] for bucket in buckets] == filled(gradients)


def test_those_are_the_sizes_that_torch_has():
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == FIRST_BUCKET_BYTES
    buckets, last = divmod(COUNT - 1, 7)  # of 1,000,000 x 4 bytes one is more than 1 MiB, seven are more than 25
    assert engine().buckets == [4 * PHI // COUNT, *[7 * 4 * PHI // COUNT] * buckets, last * 4 * PHI // COUNT]


@pytest.mark.parametrize("num_ranks", [2, 16])
def test_every_rank_takes_the_16_bytes_a_weight_of_plain_float32_and_a_number_for_each_weight(num_ranks: int):
    states = engine(num_ranks=num_ranks).states()
    assert states.step_peak.total == (4 + 4 + 4 + 4) * PHI + 4 * COUNT
    assert states.resident.total == (4 + 4 + 4 + 4) * PHI + 4 * COUNT  # gradients stay in their buckets
    assert states.at_start.total == (4 + 4) * PHI + 4 * COUNT


def test_a_step_sends_every_gradient_once_however_much_it_accumulates():
    for grad_accum in (1, 4):
        [sent] = engine(recipe=FP32.with_changes(grad_accum=grad_accum)).collectives(None)
        assert sent.kind is CollectiveKind.ALL_REDUCE
        assert sent.num_bytes == 4 * PHI + 4 * COUNT
        assert sent.count == len(engine().buckets) + 1
