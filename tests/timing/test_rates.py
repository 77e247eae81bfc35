"""Efficiencies: in order, within what was published, and no card above what it can do."""

from dataclasses import replace
from statistics import median

import pytest

from calibrations import calibration
from planned import shipped_gpus
from vlmplan.hardware import Gpu, MatmulPeaks, Vendor
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Precision
from vlmplan.timing import gpu_rates, host, overlap, peak_flops_per_second, rates, rollout
from vlmplan.timing.rates import RangedValue, Scenario

GPUS = shipped_gpus()
TABLES = {
    f"{name}[{key}]" if key else name: value
    for module in (rates, host, overlap, rollout)
    for name, constant in vars(module).items()
    for key, value in (constant if isinstance(constant, dict) else {None: constant}).items()
    if isinstance(value, RangedValue)
}
HOOKS = tuple(f"HOOK_SECONDS[{name}]" for name in rates.HOOK_SECONDS)
OF_ROLLOUTS = ("TOKEN_OPERATIONS", "VLLM_STEP_SECONDS")
OF_KERNELS = ("RAMP_SECONDS", "KERNEL_RAMP_SECONDS", "KERNEL_SECONDS")
SECONDS = (*OF_KERNELS, "STEP_SECONDS", "IMAGE_SECONDS_PER_MEGAPIXEL", *OF_ROLLOUTS, *HOOKS)
"""Where more is slower."""
DATA_CENTRE = {(7, 0), (8, 0), (9, 0), (10, 0)}
"""Their data sheets state a clock that is not exceeded."""


def recipe_of(gpu: Gpu) -> Recipe:
    return Recipe(precision=Precision.BF16 if gpu.supports_bf16 else Precision.FP16)


def test_constants_of_all_modules_are_found():
    assert {"BANDWIDTH_FRACTION", "HOST_ADAM_BYTES_PER_SECOND", "OVERLAP", *SECONDS} < set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_slow_end_is_no_faster_than_expected_and_expected_no_faster_than_the_fast_end(name: str):
    graded = TABLES[name]
    low, high = (graded.fast, graded.slow) if name in SECONDS else (graded.slow, graded.fast)
    assert 0 < low <= graded.expected <= high
    assert low < high


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_every_card_is_slow_expected_or_fast_in_that_order(gpu: Gpu):
    found = [gpu_rates(gpu, recipe_of(gpu), scenario) for scenario in (Scenario.SLOW, Scenario.EXPECTED, Scenario.FAST)]
    if None in found:
        assert found == [None] * 3
        return
    for name in ("matmul_flops_per_second", "attention_flops_per_second", "bytes_per_second"):
        slow, expected, fast = (getattr(one, name) for one in found)
        assert 0 < slow <= expected <= fast
    for name in ("forward", "forward_empty", "backward", "backward_empty", "gather", "gradient"):
        slow, expected, fast = (getattr(one.hooks, name) for one in found)
        assert slow >= expected >= fast > 0
    for name in ("forward", "backward"):
        slow, expected, fast = (getattr(one.checkpoints, name) for one in found)
        assert slow >= expected >= fast > 0
    for name in ("ramp_seconds", "kernel_ramp_seconds", "kernel_seconds"):
        slow, expected, fast = (getattr(one, name) for one in found)
        assert slow >= expected >= fast > 0


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_no_card_is_expected_above_its_peak_and_of_data_centres_none_at_best_either(gpu: Gpu):
    peak = peak_flops_per_second(gpu, recipe_of(gpu))
    expected, fast = (gpu_rates(gpu, recipe_of(gpu), scenario) for scenario in (Scenario.EXPECTED, Scenario.FAST))
    if expected is None or fast is None or peak is None:
        return
    assert max(expected.matmul_flops_per_second, expected.attention_flops_per_second) < peak
    assert expected.bytes_per_second < gpu.memory_bandwidth_bytes_per_second
    exceeds_its_sheet = gpu.vendor is Vendor.NVIDIA and gpu.compute_capability not in DATA_CENTRE | {(10, 3)}
    assert fast.matmul_flops_per_second <= peak * (1.15 if exceeds_its_sheet else 1)
    assert fast.attention_flops_per_second < peak


MI355X = replace(GPUS["mi300x"], id="mi355x", peak_flops_per_second=MatmulPeaks(bf16=2300e12, fp16=2300e12))
"""Its rate is published, and it is in no price list: a catalog of one's own may have it."""
PUBLISHED_TFLOPS = {
    "a100-sxm4-80gb": (271.2, 271.2),
    "h100-sxm": (794.5, 794.5),
    "gh200-96gb": (828.6, 828.6),
    "b200": (1745, 1745),
    "b300": (1769, 1769),
    "gb200": (1822, 1822),
    "mi300x": (620, 781.9),
    "mi325x": (784.9, 784.9),
    "mi355x": (1565, 1565),
}
"""The least and the most that was published of the best product of a card (sources: ``rates``)."""


@pytest.mark.parametrize("name", PUBLISHED_TFLOPS)
def test_best_published_product_of_a_card_is_within_the_range_of_its_kind(name: str):
    gpu = MI355X if name == MI355X.id else GPUS[name]
    least, most = (tflops * 1e12 for tflops in PUBLISHED_TFLOPS[name])
    fraction, peak = rates.products_fraction(gpu), peak_flops_per_second(gpu, Recipe())
    assert peak is not None
    assert fraction.slow - 0.005 <= least / peak
    assert most / peak <= fraction.fast + 0.002


@pytest.mark.parametrize(
    ("gpu", "tflops"), [("a100-sxm4-80gb", 271.2), ("a100-pcie-80gb", 252.9), ("h100-sxm", 794.5), ("b200", 1745)]
)
def test_best_product_of_a_card_is_expected_as_published(gpu: str, tflops: float):
    found = rates.sustained_flops_per_second(GPUS[gpu], Recipe(), Scenario.EXPECTED)
    assert found == pytest.approx(tflops * 1e12, rel=0.005)


SEEN_TFLOPS = {
    "a10g": 69.7,
    "rtx-3090": 78.0,
    "rtx-3090-ti": 86.0,
    "rtx-a5000": 93.9,
    "rtx-a6000": 131.2,
    "rtx-4000-ada": 82.7,
    "l4": 91.4,
    "l40": 170.3,
    "rtx-4090": 178.8,
    "l40s": 252.0,
    "rtx-6000-ada": 278.5,
    "a100-pcie-80gb": 256.4,
    "a100-sxm4-80gb": 267.9,
    "h100-nvl": 488.5,
    "h100-pcie": 499.5,
    "h100-sxm": 821.2,
    "gh200-96gb": 852.5,
    "gh200-144gb": 853.8,
    "mi300x": 788.2,
}
"""Best products in bf16 that users of one script found, of github.com/mag-/gpu_benchmark 93322b7 (README.md, October
2024). The V100s there are left out: their type is not said, and they have no bf16."""
FASTER = {"l4", "gh200-96gb", "gh200-144gb", "mi300x"}
"""Those above the fast end. A product alone on an L4 is over before the card throttles: steps on one take longer than
planned (tests/timing/README.md)."""


def test_best_products_of_other_cards_are_near_what_is_assumed_of_their_kind():
    errors: list[float] = []
    outside: set[str] = set()
    for name, tflops in SEEN_TFLOPS.items():
        slow, planned, fast = (
            rates.sustained_flops_per_second(GPUS[name], Recipe(), scenario) / 1e12 for scenario in Scenario
        )
        errors.append(abs(planned / tflops - 1))
        assert slow <= tflops, name
        outside |= {name} if tflops > fast else set()
    assert outside == FASTER
    assert median(errors) < 0.08


def is_bound_by_power(gpu: Gpu) -> bool:
    """Whether more power would make its products faster."""
    assert gpu.tdp_watts is not None
    more = replace(gpu, tdp_watts=2 * gpu.tdp_watts)
    now, then = (rates.sustained_flops_per_second(one, recipe_of(one), Scenario.EXPECTED) for one in (gpu, more))
    assert then >= now
    return then > now


@pytest.mark.parametrize("name", ["l4", "l40s", "t4", "a10", "a100-pcie-80gb", "h100-pcie"])
def test_cards_of_little_power_throttle(name: str):
    assert is_bound_by_power(GPUS[name])


@pytest.mark.parametrize("name", ["rtx-4090", "rtx-3090", "a100-sxm4-80gb", "h100-sxm", "b200"])
def test_cards_of_much_power_do_not(name: str):
    assert not is_bound_by_power(GPUS[name])


def test_card_of_unknown_power_goes_by_its_clock():
    unknown = replace(GPUS["l4"], tdp_watts=None)
    peak = unknown.peak_flops_per_second.bf16
    fraction = rates.PRODUCTS_FRACTION[8, 9].expected
    assert rates.sustained_flops_per_second(unknown, Recipe(), Scenario.EXPECTED) == pytest.approx(peak * fraction)


def test_wider_types_take_as_many_joules_more_as_their_peak_is_lower():
    gpu = replace(GPUS["l4"], peak_flops_per_second=MatmulPeaks(bf16=120e12, fp16=120e12, tf32=40e12))
    bf16, fp32 = (
        rates.sustained_flops_per_second(gpu, Recipe(precision=precision), Scenario.EXPECTED)
        for precision in (Precision.BF16, Precision.FP32)
    )
    assert fp32 == pytest.approx(bf16 * 40 / 120)


def test_float32_beside_16_bit_has_no_tensor_cores():
    gpu = replace(GPUS["a100-sxm4-80gb"], tdp_watts=None)
    peaks = gpu.peak_flops_per_second
    in_bf16, in_fp32 = (gpu_rates(gpu, Recipe(precision=precision)) for precision in (Precision.BF16, Precision.FP32))
    assert in_bf16.float32_matmul_flops_per_second / in_bf16.matmul_flops_per_second == pytest.approx(
        peaks.fp32 / peaks.bf16
    )
    assert in_fp32.float32_matmul_flops_per_second == in_fp32.matmul_flops_per_second
    assert in_fp32.matmul_flops_per_second / in_bf16.matmul_flops_per_second == pytest.approx(peaks.tf32 / peaks.bf16)


@pytest.mark.parametrize(("gpu_id", "is_of_tf32"), [("a100-sxm4-80gb", True), ("t4", False)])
def test_a_calibration_of_float32_counts_beside_16_bit_where_it_was_not_of_tf32(gpu_id: str, is_of_tf32: bool):
    recipe = Recipe(precision=Precision.FP16)
    before = gpu_rates(GPUS[gpu_id], recipe)
    after = gpu_rates(replace(GPUS[gpu_id], calibration=calibration(gpu_id, matmul_fp32=3e12)), recipe)
    unchanged = after.float32_matmul_flops_per_second == before.float32_matmul_flops_per_second
    assert unchanged == is_of_tf32
    assert after.matmul_flops_per_second == before.matmul_flops_per_second


def test_newer_cards_of_a_family_count_as_the_last_that_is_known():
    b300 = GPUS["b300"]
    assert b300.compute_capability == (10, 3)
    as_b200 = replace(b300, compute_capability=(10, 0))
    assert gpu_rates(b300, Recipe()) == gpu_rates(as_b200, Recipe())


UNKNOWN = ("peak_flops_per_second", "memory_bandwidth_bytes_per_second")


@pytest.mark.parametrize("what", UNKNOWN)
def test_rates_of_a_card_without_figures_are_not_known(what: str):
    blank = MatmulPeaks() if what == "peak_flops_per_second" else None
    assert gpu_rates(replace(GPUS["l4"], **{what: blank}), Recipe()) is None


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_seconds_on_amds_cards_and_no_others_come_with_a_caution(gpu: Gpu):
    assert (rates.speed_note(gpu) is not None) == (gpu.vendor is Vendor.AMD)
