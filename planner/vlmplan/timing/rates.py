"""How fast a GPU really is: every efficiency of the time model, with its range, its grade and its source.

A ``RangedValue`` has three values: ``expected``, and the ends of the range that a card of that kind was seen or is
taken to reach. A step is timed three times, with all of the one, all of the other and what is expected (``Scenario``).

Where a GPU has a calibration, what it measured stands in place of these, its quartiles in place of the ranges.

Matrix products are bound by the data sheet's dense peak times what the best shapes reach (``SHAPES_FRACTION``) times
what a model's shapes reach of those; and by power, which small cards run out of first (``FLOPS_PER_JOULE``).
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from vlmplan.hardware import Gpu, Vendor
from vlmplan.notes import Caveat
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, Precision
from vlmplan.units import Choice


class Scenario(Choice):
    """The end of every range that counts."""

    SLOW = "slow"
    EXPECTED = "expected"
    FAST = "fast"


class RangedValue(NamedTuple):
    """A constant of hardware or software with its range. ``slow`` is the end that makes a step longer."""

    slow: float
    expected: float
    fast: float

    def at(self, scenario: Scenario) -> float:
        if scenario is Scenario.EXPECTED:
            return self.expected
        return self.slow if scenario is Scenario.SLOW else self.fast


PRODUCTS_FRACTION = {
    (7, 0): RangedValue(0.6, 0.75, 0.85),
    (7, 5): RangedValue(0.6, 0.75, 0.9),
    (8, 0): RangedValue(0.811, 0.869, 0.869),
    (8, 6): RangedValue(0.85, 1.05, 1.15),
    (8, 9): RangedValue(0.85, 1.05, 1.15),
    (9, 0): RangedValue(0.75, 0.803, 0.838),
    (10, 0): RangedValue(0.73, 0.776, 0.786),
    (12, 0): RangedValue(0.8, 0.95, 1.1),
}
"""Part of the dense bf16 or fp16 peak that the best shape of a matrix product reaches, by compute capability.

Cited for 8.0, 9.0 and 10.0: 271.2 of 312 TFLOP/s on an A100 SXM and 252.9 on a PCIe one, 794.5 of 989 on an H100 SXM
and 828.6 on a GH200, 1745 of 2250 on a B200, 1769 on a B300, 1822 of 2500 on a GB200 (github.com/stas00/ml-engineering
744d01e, compute/accelerator, "Maximum Achievable Matmul FLOPS"). Assumed for the others: data sheets of GeForce and
workstation cards state a boost clock that cards exceed where power allows, so a fraction may be above 1; Volta and
Turing as their libraries of then."""
AMD_PRODUCTS_FRACTION = {
    "mi300x": RangedValue(0.47, 0.511, 0.6),
    "mi325x": RangedValue(0.55, 0.6, 0.65),
    "mi355x": RangedValue(0.6, 0.68, 0.7),
}
"""The same of AMD's cards, by id; the MI355X is not in the shipped catalog, and may be in one's own.

Cited: 668.4 of 1307 TFLOP/s on an MI300X, 784.9 on an MI325X, 1565 of 2300 on an MI355X (the same table); on the MI300X
its first edition had 781.9, and SemiAnalysis ("MI300X vs H100 vs H200 Benchmark Part 1: Training", 22 December 2024)
620. The other ends of the ranges are assumed."""
OTHER_PRODUCTS_FRACTION = RangedValue(0.5, 0.6, 0.7)
"""Of all other cards. Assumed."""
SHAPES_FRACTION = RangedValue(0.75, 0.88, 1.0)
"""Part of that which the shapes of a model reach: tiles and waves are not full. Assumed."""
FLOPS_PER_JOULE = {
    (7, 0): RangedValue(0.3e12, 0.35e12, 0.45e12),
    (7, 5): RangedValue(0.3e12, 0.4e12, 0.6e12),
    (8, 0): RangedValue(0.63e12, 0.843e12, 0.9e12),
    (8, 6): RangedValue(0.35e12, 0.45e12, 0.6e12),
    (8, 9): RangedValue(0.5e12, 0.8e12, 1.0e12),
    (9, 0): RangedValue(1.0e12, 1.14e12, 1.5e12),
    (10, 0): RangedValue(1.5e12, 1.75e12, 2.0e12),
    (12, 0): RangedValue(0.6e12, 0.8e12, 1.2e12),
}
"""Operations of 16-bit products per joule of the board's power limit, by compute capability: cards of little power
throttle long before their peak. From the cited rates: 252.9 TFLOP/s of an A100 PCIe at 300 W, 794.5 of an H100 at 700,
1745 of a B200 at 1000. Assumed for the others. Best products that others measured of 19 cards, eleven of which these
two tables only assume, are in the range of 15 (tests/timing/test_rates.py); the others reach more."""
ATTENTION_FRACTION = {
    (7, 0): RangedValue(0.1, 0.2, 0.35),
    (7, 5): RangedValue(0.1, 0.2, 0.4),
    (8, 0): RangedValue(0.4, 0.5, 0.6),
    (8, 6): RangedValue(0.5, 0.7, 0.85),
    (8, 9): RangedValue(0.5, 0.7, 0.85),
    (9, 0): RangedValue(0.3, 0.4, 0.55),
    (10, 0): RangedValue(0.2, 0.3, 0.5),
    (12, 0): RangedValue(0.5, 0.65, 0.8),
}
"""Part of the dense peak that fused attention reaches, forward and backward together. Cited for 8.0: FlashAttention-2,
arXiv 2307.08691, figures 4 and 5: 50 to 73% forward, 40 to 63% backward. Cited for 9.0: its kernels reach 35% of an
H100 (FlashAttention-3, arXiv 2407.08608, section 1); cuDNN's, which torch may choose, more. Assumed for the others."""
OTHER_ATTENTION_FRACTION = RangedValue(0.15, 0.3, 0.45)
"""The same of all other cards, AMD's among them. Assumed: below the oldest for which a figure is cited."""
BANDWIDTH_FRACTION = RangedValue(0.7, 0.8, 0.9)
"""Part of the memory bandwidth that elementwise kernels reach. Assumed."""
RAMP_SECONDS = RangedValue(10e-6, 6e-6, 3e-6)
"""What each product takes beside its rate: the first tiles fill the pipelines, the last wave is not full. Assumed."""
KERNEL_RAMP_SECONDS = RangedValue(5e-6, 3e-6, 1.5e-6)
"""What any other kernel takes beside what it moves: it starts when the one before has ended. Measured as what forward
and backward of the runs in tests/gpu took longer than their products and bytes where the GPU was busy all along, on an
H200 with torch 2.11, by the runs that are not held back; the ends of the range are assumed."""
KERNEL_SECONDS = RangedValue(38e-6, 11e-6, 6e-6)
"""Time that eager PyTorch needs per operation that moves memory, views and checks between them included; a GPU that
finishes earlier waits. Assumed for hosts of 2020 on (rehearsals dispatch about 1.5 operations for each one counted);
five published runs that wait for the host, LoRA of Qwen on an A100 and of Llama on an RTX 5090, are within 16% with it
and up to 83% too long with 18 us (tests/timing).
The slow end is measured: 24.3 and 34.4 us on virtual machines with an H200, 38.2 us on one with an H100, 2026
(tests/gpu/config)."""
CHECKPOINT_OPERATIONS = {"forward": 1.0, "backward": 2.2}
"""More time of the host for each operation that is computed again, in operations (``KERNEL_SECONDS``): checkpoints
(``use_reentrant=False``) run Python for each tensor that an operation saves, in forward, as it is made again and as
backward takes it.

Measured with torch 2.13 on a CPU: 0.9 to 1.1 and 2.1 to 2.3 times an operation of the same model without checkpoints,
in full training and with adapters alike (``vlmplan_trainer.calibrate.host``)."""
REENTRANT_OPERATIONS = {"forward": 0.1, "backward": 1.0}
"""The same of reentrant checkpoints, which run nothing for saved tensors. Measured alike, in turns with the others on
one core: 0.06 to 0.14 and 0.8 to 1.1."""
HOOK_SECONDS = {
    "forward": RangedValue(440e-6, 220e-6, 110e-6),
    "forward_empty": RangedValue(260e-6, 130e-6, 65e-6),
    "backward": RangedValue(200e-6, 100e-6, 50e-6),
    "backward_empty": RangedValue(120e-6, 60e-6, 30e-6),
    "gather": RangedValue(260e-6, 130e-6, 65e-6),
    "gradient": RangedValue(220e-6, 110e-6, 55e-6),
}
"""Time that the host needs for ZeRO-3's hooks: around one call of a module with weights that are whole, and of one
without weights ("empty"), in forward and in backward; more for each weight that is gathered, and for each gradient that
backward hands over.

Measured with deepspeed 0.19.8 and torch 2.13 on a busy core of a small cloud server of 2.4 GHz, 2026, as CPU time
(``vlmplan_trainer.calibrate.hooks``): 282 to 375, 154 to 278, 126 to 161 and 66 to 122 us; 100 to 370 for a gather (of
one rank and of two); 126 to 190 for a gradient. Expected are two thirds of what is common among these, as cores of
machines with GPUs are faster; that and the ends of the ranges, twice and half of it, are assumed."""
STEP_SECONDS = RangedValue(30e-3, 10e-3, 5e-3)
"""Data loading, logging and Python around a step. Assumed."""


def speed_note(gpu: Gpu) -> str | None:
    """What should be known of the seconds on this card, where it is more than their range says."""
    if gpu.vendor is not Vendor.AMD:
        return None
    return Caveat(
        "seconds on AMD cards are little tested: the one published run of the same kind took more than twice as long"
    )


class HookSeconds(NamedTuple):
    """``HOOK_SECONDS`` at one end of their ranges, or as expected."""

    forward: float
    forward_empty: float
    backward: float
    backward_empty: float
    gather: float
    gradient: float


class CheckpointSeconds(NamedTuple):
    """What each operation that is computed again adds in forward and in recomputation and backward."""

    forward: float
    backward: float


PCIE_COPY_FRACTION = RangedValue(0.6, 0.8, 0.9)
"""Part of PCIe's rate that pinned copies reach. Assumed."""


class Rates(NamedTuple):
    """What one GPU does in a second of each kind of work, and what the host takes to ask for it. ``float32_...``: where
    the type is float32 in a recipe of 16 bit."""

    matmul_flops_per_second: float
    attention_flops_per_second: float
    float32_matmul_flops_per_second: float
    float32_attention_flops_per_second: float
    bytes_per_second: float
    ramp_seconds: float
    kernel_ramp_seconds: float
    kernel_seconds: float
    checkpoints: CheckpointSeconds
    hooks: HookSeconds
    host_copy_bytes_per_second: float | None = None
    """Of pinned copies over the bus, which those of activations take."""


def peak_flops_per_second(gpu: Gpu, recipe: Recipe) -> float | None:
    """Dense peak of matrix products in the recipe's type; None if it is not known."""
    peaks = gpu.peak_flops_per_second
    by_precision = {Precision.FP16: peaks.fp16, Precision.FP32: peaks.tf32 or peaks.fp32}
    return by_precision.get(recipe.precision, peaks.bf16)


def measured_or(gpu: Gpu, name: str, assumed: RangedValue) -> RangedValue:
    """What a calibration of the GPU says of this quantity; ``assumed`` where it says nothing."""
    return measured(gpu, name) or assumed


def measured(gpu: Gpu, name: str) -> RangedValue | None:
    """What a calibration of the GPU says of this quantity; None where it says nothing."""
    ends = None if gpu.calibration is None else gpu.calibration.ends(name)
    return None if ends is None else RangedValue(*ends)


def memory_bytes_per_second(gpu: Gpu, scenario: Scenario = Scenario.EXPECTED) -> float | None:
    """What elementwise kernels read and write; None where the bandwidth is not known."""
    found = measured(gpu, "memory_bandwidth")
    if found is not None:
        return found.at(scenario)
    bandwidth = gpu.memory_bandwidth_bytes_per_second
    return None if bandwidth is None else bandwidth * BANDWIDTH_FRACTION.at(scenario)


def host_copy_bytes_per_second(gpu: Gpu, scenario: Scenario) -> float | None:
    """Bytes per second of pinned copies over the bus; None where that is neither known nor measured.

    Two measured directions count as one rate: what goes down comes back, so a byte each way takes 1/d + 1/u seconds,
    which is 2 bytes at 2 / (1/d + 1/u).
    """
    down, up = measured(gpu, "copy_to_host"), measured(gpu, "copy_to_device")
    if down is not None and up is not None:
        return 2 / (1 / down.at(scenario) + 1 / up.at(scenario))
    pcie = gpu.pcie_bytes_per_second
    return None if pcie is None else pcie * PCIE_COPY_FRACTION.at(scenario)


def gpu_rates(gpu: Gpu, recipe: Recipe, scenario: Scenario = Scenario.EXPECTED) -> Rates | None:
    """What ``gpu`` is taken to reach; None where its peak or its bandwidth is neither known nor measured."""
    is_reentrant = recipe.checkpoints_reentrantly
    return _rates(gpu, recipe.precision, recipe.attention, recipe.offload_activations, is_reentrant, scenario)


@lru_cache(maxsize=4096)
def _rates(
    gpu: Gpu,
    precision: Precision,
    attention_kernel: AttentionImplementation,
    offload_activations: bool,
    is_reentrant: bool,
    scenario: Scenario,
) -> Rates | None:
    """``gpu_rates`` of all recipes with these settings, for which a search asks thousands of times."""
    recipe = Recipe(precision=precision, attention=attention_kernel, offload_activations=offload_activations)
    matmul = _matmul_flops_per_second(gpu, recipe, scenario)
    attention = _attention_flops_per_second(gpu, recipe, scenario)
    bytes_per_second = memory_bytes_per_second(gpu, scenario)
    copied = host_copy_bytes_per_second(gpu, scenario) if recipe.offload_activations else None
    kernel_seconds = measured_or(gpu, "operation_seconds", KERNEL_SECONDS).at(scenario)
    if matmul is None or attention is None or bytes_per_second is None:
        return None
    if recipe.offload_activations and copied is None:
        return None
    wide_gpu, wide = (gpu, recipe) if recipe.precision is Precision.FP32 else (without_tf32(gpu), _FLOAT32)
    return Rates(
        matmul_flops_per_second=matmul,
        attention_flops_per_second=attention,
        float32_matmul_flops_per_second=_matmul_flops_per_second(wide_gpu, wide, scenario) or matmul,
        float32_attention_flops_per_second=_attention_flops_per_second(wide_gpu, wide, scenario) or attention,
        bytes_per_second=bytes_per_second,
        ramp_seconds=measured_or(gpu, "matmul_ramp", RAMP_SECONDS).at(scenario),
        kernel_ramp_seconds=KERNEL_RAMP_SECONDS.at(scenario),
        kernel_seconds=kernel_seconds,
        checkpoints=_checkpoint_seconds(gpu, scenario, kernel_seconds, is_reentrant=is_reentrant),
        hooks=HookSeconds(
            **{name: measured_or(gpu, f"hook_{name}", seconds).at(scenario) for name, seconds in HOOK_SECONDS.items()}
        ),
        host_copy_bytes_per_second=copied,
    )


def _checkpoint_seconds(
    gpu: Gpu, scenario: Scenario, kernel_seconds: float, *, is_reentrant: bool
) -> CheckpointSeconds:
    """What was measured of checkpoints on the GPU's host is of those that are not reentrant."""
    if is_reentrant:
        return CheckpointSeconds(**{name: count * kernel_seconds for name, count in REENTRANT_OPERATIONS.items()})
    return CheckpointSeconds(
        **{
            name: found.at(scenario) if (found := measured(gpu, f"checkpoint_{name}")) else count * kernel_seconds
            for name, count in CHECKPOINT_OPERATIONS.items()
        }
    )


_FLOAT32 = Recipe(precision=Precision.FP32)


def without_tf32(gpu: Gpu) -> Gpu:
    """The GPU for float32 as torch has it unless TF32 is asked for: without tensor cores.

    A calibration measured float32 as plans in float32 have it, with TF32 where the card knows that, so it says nothing
    here.
    """
    if gpu.peak_flops_per_second.tf32 is None:
        return gpu
    peaks = replace(gpu.peak_flops_per_second, tf32=None)
    return replace(gpu, peak_flops_per_second=peaks, calibration=None)


def _matmul_flops_per_second(gpu: Gpu, recipe: Recipe, scenario: Scenario) -> float | None:
    """What products of a model's shapes reach; None where the peak is neither known nor measured."""
    found = measured(gpu, f"matmul_{_type_name(recipe)}")
    if found is not None:
        return found.at(scenario)
    if peak_flops_per_second(gpu, recipe) is None:
        return None
    return sustained_flops_per_second(gpu, recipe, scenario) * SHAPES_FRACTION.at(scenario)


def _attention_flops_per_second(gpu: Gpu, recipe: Recipe, scenario: Scenario) -> float | None:
    """What the recipe's attention kernel reaches, forward and backward together; eager attention is made of matrix
    products."""
    kernel = AttentionImplementation.SDPA
    if recipe.attention is AttentionImplementation.FLASH_ATTENTION_2:
        kernel = recipe.attention
    found = measured(gpu, f"attention_{kernel.value}_{_type_name(recipe)}")
    if found is not None:
        return found.at(scenario)
    peak = peak_flops_per_second(gpu, recipe)
    if peak is None:
        return None
    capability = _family(gpu)
    attention = ATTENTION_FRACTION.get(capability, OTHER_ATTENTION_FRACTION) if capability else OTHER_ATTENTION_FRACTION
    return min(peak * attention.at(scenario), sustained_flops_per_second(gpu, recipe, scenario))


def _type_name(recipe: Recipe) -> str:
    """What products compute in, as calibrations call it."""
    return {Precision.FP16: "fp16", Precision.FP32: "fp32"}.get(recipe.precision, "bf16")


def sustained_flops_per_second(gpu: Gpu, recipe: Recipe, scenario: Scenario) -> float:
    """What the best shapes of a product reach, by clock or by power, whichever ends first. The GPU's peak has to be
    known.

    Types other than 16 bit take as many joules more per operation as their peak is lower.
    """
    peak = peak_flops_per_second(gpu, recipe)
    assert peak is not None
    capability = _family(gpu)
    by_clock = peak * products_fraction(gpu).at(scenario)
    half = gpu.peak_flops_per_second.bf16 or gpu.peak_flops_per_second.fp16
    if capability is None or gpu.tdp_watts is None or half is None:
        return by_clock
    by_power = gpu.tdp_watts * FLOPS_PER_JOULE[capability].at(scenario) * peak / half
    return min(by_clock, by_power)


def products_fraction(gpu: Gpu) -> RangedValue:
    """Part of the GPU's dense peak that its best product reaches where power allows."""
    capability = _family(gpu)
    if capability is None:
        return AMD_PRODUCTS_FRACTION.get(gpu.id, OTHER_PRODUCTS_FRACTION)
    return PRODUCTS_FRACTION[capability]


def _family(gpu: Gpu) -> tuple[int, int] | None:
    """The compute capability whose measured fractions apply to the GPU; None where none does."""
    capability = gpu.compute_capability
    if gpu.vendor is not Vendor.NVIDIA or capability is None or capability < min(PRODUCTS_FRACTION):
        return None
    return max(known for known in PRODUCTS_FRACTION if known <= capability)
