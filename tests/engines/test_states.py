"""Model states of each engine, in unreduced arithmetic and against the ZeRO paper."""

import pytest

from small_models import FlatModel, table_of
from vlmplan.engines import ModelStates, engine_of
from vlmplan.engines.events import Sink, Stream
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AdapterDtype, Method, Offload, OptimizerKind, Precision
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.units import DType

PHI = 1_000_000  # elements, in forty equal weights: five for each rank
NUM_RANKS = 8
NORMS = 40 * 4
"""Of plain PyTorch's gradients: a number in float32 for each, of which none has more than 65,536 elements."""


def states_of(num_ranks: int = NUM_RANKS, dtype: DType = DType.BFLOAT16, **changes) -> ModelStates:
    recipe = Recipe(**changes)
    return engine_of(table_of([PHI // 40] * 40, dtype), recipe, num_ranks=num_ranks, rank=0).states()


# Rajbhandari et al., ZeRO, arXiv 1910.02054, figure 1: Ψ = 7.5 B, N = 64, K = 12.
PSI, N = 7_500_000_000, 64


@pytest.mark.parametrize(
    ("stage", "figure_gb"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)], ids=["baseline", "os", "os+g", "os+g+p"]
)
def test_figure_1_of_the_zero_paper(stage, figure_gb):
    table = table_of([PSI // 640] * 640)
    states = engine_of(table, Recipe(zero_stage=stage), num_ranks=N, rank=0).states()
    weights_and_states = states.resident.weights + states.resident.optimizer_states
    gradients = {
        0: table.trained_bytes,
        1: table.trained_bytes,
        2: table.trained_bytes // N,
        3: states.resident.gradients,
    }[stage]
    assert (weights_and_states + gradients) / 1e9 == pytest.approx(figure_gb, abs=0.05)


def test_plain_float32_training_takes_16_bytes_a_weight():
    states = states_of(num_ranks=1, dtype=DType.FLOAT32, zero_stage=None, precision=Precision.FP32)
    assert states.step_peak.total == (4 + 4 + 4 + 4) * PHI + NORMS


def test_plain_pure_bf16_training_takes_8_bytes_a_weight_and_foreach_2_more():
    pure = {"num_ranks": 1, "zero_stage": None, "precision": Precision.BF16_PURE}
    assert states_of(**pure).step_peak.total == (2 + 2 + 2 + 2) * PHI + NORMS
    assert states_of(**pure, gradient_clipping=0.0).step_peak.total == (2 + 2 + 2 + 2) * PHI
    assert states_of(**pure, fuses_optimizer=False).step_peak.total == (2 + 2 + 2 + 2 + 2) * PHI


class TwoTypes(FlatModel):
    """Every other weight is float32, the others bfloat16: adapters beside trained copies in the model's type."""

    def __init__(self, numel: int, count: int) -> None:
        super().__init__([numel] * count)
        for parameter in self._parameters[::2]:
            parameter.dtype = DType.FLOAT32


def test_plain_adamw_keeps_states_in_the_type_of_each_weight_and_foreach_the_roots_of_both():
    table = ParameterTable(TwoTypes(PHI // 40, 40))
    half = PHI // 2
    states = engine_of(table, Recipe(zero_stage=None), num_ranks=1).states()
    assert states.resident.weights == (4 + 2) * half
    assert states.resident.optimizer_states == (2 * 4 + 2 * 2) * half
    assert states.step_peak.gradients == (4 + 2) * half
    foreach = engine_of(table, Recipe(zero_stage=None, fuses_optimizer=False), num_ranks=1).states()
    assert foreach.step_peak.total - states.step_peak.total == (4 + 2) * half - NORMS // 2  # of one type at a time


def test_stage_0_takes_20_bytes_a_weight_in_the_step_and_at_init():
    states = states_of(zero_stage=0)
    assert states.step_peak.total == (2 + 4 + 8 + 2 + 4) * PHI
    assert states.init_peak.total == (2 + 4 + 8 + 2 + 4) * PHI


def test_stages_1_and_2_shard_20_bytes_of_a_weight_in_the_step():
    # 2 whole; of the partition: master 4, moments 8, gradients 2, their flat copy 2, its float32 cast 4
    for stage in (1, 2):
        assert states_of(zero_stage=stage).step_peak.total == 2 * PHI + (4 + 8 + 2 + 2 + 4) * PHI // NUM_RANKS


def test_stage_3_shards_everything():
    zero = ZeroSettings(reduce_bucket_size=1000, stage3_param_persistence_threshold=10)
    states = states_of(zero_stage=3, zero=zero)
    assert states.resident.total == (2 + 4 + 8 + 2) * PHI // NUM_RANKS + 2 * 1000


def test_stage_3_keeps_small_weights_whole_beside_their_shards():
    zero = ZeroSettings(reduce_bucket_size=1000, stage3_param_persistence_threshold=PHI // 40)
    states = states_of(zero_stage=3, zero=zero)
    assert states.resident.total == (2 + 4 + 8 + 2) * PHI // NUM_RANKS + 2 * 1000 + 2 * PHI


def test_stage_3_reduces_and_keeps_gradients_of_float32_adapters_in_16_bits():
    zero = ZeroSettings(reduce_bucket_size=2 * PHI, stage3_param_persistence_threshold=0)
    states = states_of(
        dtype=DType.FLOAT32, method=Method.LORA, adapter_dtype=AdapterDtype.FLOAT32, zero_stage=3, zero=zero
    )
    assert states.resident.communication_buffers == 2 * 2 * PHI
    assert states.resident.gradients == 2 * PHI // NUM_RANKS
    assert states.resident.optimizer_states == (4 + 4 + 4) * PHI // NUM_RANKS
    assert states.step_peak.temporaries == (2 + 4) * PHI // NUM_RANKS


@pytest.mark.parametrize(("precision", "g", "m"), [(Precision.BF16, 2, 4), (Precision.FP32, 4, 4)])
def test_stage_3_flattens_the_gradients_of_several_weights_and_takes_that_of_one_as_it_is(precision, g, m):
    """torch's ``flatten_dense_tensors`` of one tensor is a view of it: the sub-group of an embedding or a head."""
    zero = ZeroSettings(sub_group_size=2_000, stage3_param_persistence_threshold=0)
    table = table_of([4 * 2_003, 4 * 5_003, 4 * 6, 4 * 5_009], DType.BFLOAT16 if g == 2 else DType.FLOAT32)
    flat: list[int] = []

    class Flat(Sink):
        def allocate(self, owner, component, num_bytes, stream=Stream.DEFAULT):
            if owner in ("flat", "cast") and num_bytes:
                flat.append(num_bytes)

    recipe = Recipe(zero_stage=3, precision=precision, zero=zero)
    engine_of(table, recipe, num_ranks=4, sink=Flat()).step(is_first=False)
    both = 6 + 5_009
    assert flat == ([m * 2_003, m * 5_003, g * both, m * both] if g != m else [g * both])


def test_small_weights_are_not_whole_while_stage_3_updates():
    """``stage3.py``: ``_partition_all_parameters`` begins a step, ``_post_step`` gathers them again."""
    whole = {"zero_stage": 3, "zero": ZeroSettings(reduce_bucket_size=PHI, stage3_param_persistence_threshold=PHI)}
    states = states_of(**whole)
    assert states.resident.weights == 2 * PHI // NUM_RANKS + 2 * PHI
    assert states.step_peak == states.resident  # which has 2Φ more than the update, whose gradients take (2 + 4)Φ/N
    shards = states_of(num_ranks=2, **whole)
    assert shards.step_peak.weights == 2 * PHI // 2
    assert shards.step_peak.temporaries == (2 + 4) * PHI // 2


def test_an_offloaded_optimizer_leaves_weights_and_one_gradient_on_the_gpu():
    states = states_of(zero_stage=2, offload_optimizer=Offload.CPU)
    assert states.resident.total == 2 * PHI + 2 * PHI // 40


def test_offloaded_parameters_leave_only_the_bucket_of_stage_3():
    zero = ZeroSettings(reduce_bucket_size=1000, stage3_param_persistence_threshold=10)
    states = states_of(zero_stage=3, zero=zero, offload_optimizer=Offload.CPU, offload_params=Offload.CPU)
    assert states.resident.total == 2 * 1000


def test_8bit_states_save_six_bytes_a_weight_against_adamw():
    adamw, small = (
        states_of(num_ranks=1, zero_stage=2, optimizer=kind).resident.optimizer_states
        for kind in (OptimizerKind.ADAMW, OptimizerKind.ADAMW_8BIT)
    )
    scales = 2 * 4 * -(-PHI // 256)
    assert adamw - small == (8 - 2) * PHI - scales


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_states_appear_with_the_first_step(stage):
    states = states_of(zero_stage=stage)
    assert states.resident.optimizer_states - states.at_start.optimizer_states == 8 * PHI // NUM_RANKS


def test_stage_0_makes_its_states_at_init():
    states = states_of(zero_stage=0)
    assert states.at_start == states.resident
