"""Bytes of an update against kernels counted one by one, as rehearsals dispatch them.

P, M: bytes of a gradient and of a master weight.
"""

import pytest

from planned import shipped_gpus
from small_models import table_of
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import FlatParameters, OptimizerKind, Precision
from vlmplan.timing.rates import BANDWIDTH_FRACTION
from vlmplan.timing.update import update_bytes_per_weight, update_seconds
from vlmplan.units import DType

GPU = shipped_gpus()["a100-sxm4-80gb"]
P, M = 2, 4
NORM = (P + 8) + 8  # a float64 copy is made and read
FINITE = P + P  # the largest and the smallest
FLAT, CAST, SCALE, BACK = P + P, P + M, M + M, M + P
AROUND = FINITE + NORM + FLAT + CAST + SCALE + BACK


def update_bytes(recipe: Recipe, dtype: DType = DType.BFLOAT16) -> int:
    return update_bytes_per_weight(table_of([10**9], dtype), recipe)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fused_adamw_reads_gradient_weight_and_moments_and_writes_weight_and_moments(stage: int):
    assert update_bytes(Recipe(zero_stage=stage)) == (M + M + 2 * M) + (M + 2 * M) + AROUND


def test_foreach_adamw_goes_over_memory_once_a_kernel():
    lerp, scale, add_square, root, divide, add = 3 * M, 2 * M, 3 * M, 2 * M, 2 * M, 2 * M
    kernels = lerp + scale + add_square + root + divide + add + 4 * M
    assert update_bytes(Recipe(zero_stage=2, fuses_optimizer=False)) == kernels + AROUND


def test_compensated_adamw_in_bfloat16_goes_over_memory_thirteen_times():
    flat = {"fsdp": True, "flat_parameters": FlatParameters.BACKWARD_PRE, "precision": Precision.BF16_PURE}
    decays, moments, root, compensation = 2, (2 + 3) + (2 + 3), 2 + 2 + 2, 4 + 2 + 3 + 3 + 3
    clips = 1 + 2
    recipe = Recipe(optimizer=OptimizerKind.ANY_PRECISION_ADAMW, zero_stage=None, **flat)
    assert update_bytes(recipe) == 2 * (decays + moments + root + compensation + clips)


def test_sgd_scales_its_momentum_adds_the_gradient_and_adds_it_to_the_weight():
    assert update_bytes(Recipe(zero_stage=2, optimizer=OptimizerKind.SGD)) == (2 + 3 + 3) * M + AROUND


@pytest.mark.parametrize("kind", [OptimizerKind.ADAMW_8BIT, OptimizerKind.PAGED_ADAMW_8BIT])
def test_eight_bit_moments_are_a_byte_each(kind: OptimizerKind):
    assert update_bytes(Recipe(zero_stage=2, optimizer=kind)) == 3 * M + 2 * (1 + 1) + AROUND


def test_paged_moments_in_float32_are_read_and_written():
    assert update_bytes(Recipe(zero_stage=2, optimizer=OptimizerKind.PAGED_ADAMW)) == 3 * M + 2 * (4 + 4) + AROUND
    assert update_bytes(Recipe(zero_stage=2, optimizer=OptimizerKind.PAGED_LION)) == 3 * M + (4 + 4) + AROUND


def test_adafactor_has_a_whole_second_moment_where_partitions_are_flat():
    sharded = update_bytes(Recipe(zero_stage=2, optimizer=OptimizerKind.ADAFACTOR)) - AROUND
    around_matrices = FINITE + ((P + 4) + 4) + CAST + SCALE + BACK
    matrices = update_bytes(Recipe(zero_stage=0, optimizer=OptimizerKind.ADAFACTOR)) - around_matrices
    assert matrices == 84  # of float32, as a rehearsal of qwen3-vl-2b counts them
    assert sharded - matrices == (2 + 3 + 2 - 1 - 1 - 1) * 4


def test_stage_0_keeps_gradients_apart_and_takes_their_norm_in_float32():
    around = FINITE + ((P + 4) + 4) + CAST + SCALE + BACK
    assert update_bytes(Recipe(zero_stage=0)) == 7 * M + around


def test_float32_needs_no_cast_and_is_taken_to_be_finite():
    recipe = Recipe(zero_stage=1, precision=Precision.FP32)
    assert update_bytes(recipe, DType.FLOAT32) == 7 * 4 + ((4 + 8) + 8) + 2 * 4 + 2 * 4 + (4 + 4)


def test_pure_bf16_updates_in_two_bytes():
    recipe = Recipe(zero_stage=1, precision=Precision.BF16_PURE)
    assert update_bytes(recipe) == 7 * 2 + (2 + 2) + ((2 + 8) + 8) + 2 * 2 + 2 * 2 + (2 + 2)


def test_without_clipping_nothing_is_scaled():
    plain, deepspeed = Recipe(zero_stage=None), Recipe(zero_stage=2)
    never = {"gradient_clipping": 0.0}
    assert update_bytes(deepspeed) - update_bytes(deepspeed.with_changes(**never)) == SCALE
    clipping = update_bytes(plain, DType.FLOAT32) - update_bytes(plain.with_changes(**never), DType.FLOAT32)
    assert clipping == 4 + (4 + 4)
    assert update_bytes(plain.with_changes(**never), DType.FLOAT32) == 7 * 4


def test_plain_fp16_unscales_its_gradients():
    bf16, fp16 = (
        update_bytes(Recipe(zero_stage=None, precision=precision), DType.FLOAT32)
        for precision in (Precision.BF16, Precision.FP16)
    )
    assert fp16 - bf16 == 4 + 4


@pytest.mark.parametrize("kind", OptimizerKind)
@pytest.mark.parametrize("stage", [None, 0, 1, 2, 3])
def test_every_optimizer_moves_at_least_its_weight_and_gradient(kind: OptimizerKind, stage: int | None):
    assert update_bytes(Recipe(zero_stage=stage, optimizer=kind)) >= 3 * P


def test_update_takes_its_bytes_at_what_bandwidth_gives():
    recipe = Recipe(zero_stage=0)
    seconds = update_seconds(table_of([10**9]), recipe, num_ranks=1, gpu=GPU)
    assert seconds == pytest.approx(1e9 * update_bytes(recipe) / (2039e9 * BANDWIDTH_FRACTION.expected))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sharded_update_takes_a_rank_its_share(stage: int):
    def update(recipe: Recipe, num_ranks: int) -> float:
        return update_seconds(table_of([10**9]), recipe, num_ranks=num_ranks, gpu=GPU)

    sharded, whole = Recipe(zero_stage=stage), Recipe(zero_stage=0)
    assert update(sharded, 8) == pytest.approx(update(sharded, 1) / 8)
    assert update(whole, 8) == update(whole, 1)
