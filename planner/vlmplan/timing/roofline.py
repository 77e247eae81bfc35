"""What one micro batch takes on one GPU: a roofline over the operations that the tape recorded.

In forward the GPU is busy for the sum over its operations; the host needs time to ask for each; the longer of the two
is what forward takes, as work is queued ahead. Recomputation and backward take turns, layer by layer, so it is the
longer of the two for both together.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from vlmplan.architecture.trace import Trace, Work
from vlmplan.hardware import Gpu
from vlmplan.recipe import Recipe
from vlmplan.timing.hooks import hooked_calls
from vlmplan.timing.rates import Rates, Scenario, gpu_rates

CAUSAL_FRACTION = 0.5
"""Part of causal attention that a fused kernel really computes."""


Product = tuple[int, int]
"""Floating point operations of a matrix product, and bytes that are read and written."""
PhaseSeconds = tuple[float, float, float]
"""Of forward, recomputation and backward."""
PhaseDemands = tuple[float, float, float, float, float, float]
"""Seconds that forward, recomputation and backward keep the GPU busy, then those that asking for each takes the host.
Those of stretches of one micro batch add."""


class BusySeconds(NamedTuple):
    """Seconds of one phase by kind of work. They add. ``memory``: kernels that move bytes, with what each takes to
    start."""

    matmuls: float = 0.0
    attention: float = 0.0
    memory: float = 0.0

    @property
    def total(self) -> float:
        return self.matmuls + self.attention + self.memory

    def __add__(self, other: "BusySeconds") -> "BusySeconds":  # pyright: ignore[reportIncompatibleMethodOverride]
        return BusySeconds(
            matmuls=self.matmuls + other.matmuls,
            attention=self.attention + other.attention,
            memory=self.memory + other.memory,
        )


def busy_seconds(work: Work, speed: Rates) -> BusySeconds:
    """A product takes its operations or its bytes, whichever is longer, and its ramp; attention its operations; every
    other kernel its bytes and its ramp."""
    matmuls, attention, memory = _busy_parts(work, speed)
    return BusySeconds(matmuls=matmuls, attention=attention, memory=memory)


def product_seconds(flops: float, hbm_bytes: float, speed: Rates, flops_per_second: float) -> float:
    """One matrix product: its operations or its bytes, whichever takes longer, and its ramp."""
    computing, moving = flops / flops_per_second, hbm_bytes / speed.bytes_per_second
    return (computing if computing > moving else moving) + speed.ramp_seconds


def _busy_parts(work: Work, speed: Rates) -> tuple[float, float, float]:
    """(matmuls, attention, memory): the seconds of ``BusySeconds``."""
    matmuls, num_others = 0.0, work.num_kernels
    for products, flops_per_second in _products(work, speed):
        for (flops, hbm_bytes), count in products.items():
            num_others -= count
            matmuls += count * product_seconds(flops, hbm_bytes, speed, flops_per_second)
    moved = work.elementwise_bytes / speed.bytes_per_second + num_others * speed.kernel_ramp_seconds
    if work.host_copies:
        assert speed.host_copy_bytes_per_second is not None
        moved += work.host_copy_bytes / speed.host_copy_bytes_per_second
    return matmuls, _attention_seconds(work, speed), moved


def _products(work: Work, speed: Rates) -> tuple[tuple[Mapping[Product, int], float], ...]:
    """The products of each type that there are, with the rate at which they are computed."""
    in_16_bit = work.matmuls, speed.matmul_flops_per_second
    if not work.float32_matmuls:
        return (in_16_bit,)
    return in_16_bit, (work.float32_matmuls, speed.float32_matmul_flops_per_second)


def _attention_seconds(work: Work, speed: Rates) -> float:
    """Fused attention, of which a causal kernel leaves out half, by the types that it computes in."""
    attended = work.attention_flops - CAUSAL_FRACTION * work.causal_attention_flops
    in_float32 = work.float32_attention_flops - CAUSAL_FRACTION * work.float32_causal_attention_flops
    return (
        attended - in_float32
    ) / speed.attention_flops_per_second + in_float32 / speed.float32_attention_flops_per_second


class MicroBatchSeconds(NamedTuple):
    """One micro batch: what the GPU has to do, and what asking for it takes, by phase."""

    busy: tuple[BusySeconds, BusySeconds, BusySeconds]
    launches: PhaseSeconds

    @property
    def phases(self) -> PhaseSeconds:
        """What each phase takes."""
        return phases_of(self.demands)

    @property
    def waiting(self) -> float:
        """Seconds in which the GPU has nothing to do but wait for the host."""
        return sum(self.phases) - sum(busy.total for busy in self.busy)

    @property
    def demands(self) -> PhaseDemands:
        """The totals of both."""
        forward, recompute, backward = self.busy
        return (forward.total, recompute.total, backward.total, *self.launches)


def added_demands(parts: Iterable[PhaseDemands]) -> PhaseDemands:
    """The demands of all parts, one after the other."""
    forward = recompute = backward = first = again = back = 0.0
    for part in parts:
        forward, recompute, backward = forward + part[0], recompute + part[1], backward + part[2]
        first, again, back = first + part[3], again + part[4], back + part[5]
    return forward, recompute, backward, first, again, back


def phases_of(demands: PhaseDemands) -> PhaseSeconds:
    """What each phase takes: recomputation has the part that it has of what decides over it and backward together."""
    forward, recompute, backward, first, again, back = demands
    if recompute + backward >= again + back:
        return max(forward, first), recompute, backward
    return max(forward, first), again, back


def phases_between(
    low: PhaseDemands, high: PhaseDemands, fraction: float, saved: PhaseSeconds = (0.0, 0.0, 0.0)
) -> PhaseSeconds:
    """The phases of a micro batch between two others, ``fraction`` of the way: what keeps the GPU busy, less what is
    ``saved`` of it, and what asking takes grow evenly, the longer of the two does not."""
    first, second, third, fourth, fifth, sixth = [a + (b - a) * fraction for a, b in zip(low, high, strict=True)]
    return phases_of((first - saved[0], second - saved[1], third - saved[2], fourth, fifth, sixth))


def saved_between(speed: Rates, low: Trace, high: Trace, fraction: float) -> PhaseSeconds:
    """By phase, what the products of a micro batch between two others, ``fraction`` of the way, take less than that
    part of the way: operations and bytes of each grow evenly, the longer of the two does not.

    Nothing of products that the two have not both, each as often: a loss in chunks has more of them, not larger ones.
    """
    first, again, back = [
        _saved(speed, speed.matmul_flops_per_second, one.matmuls, other.matmuls, fraction)
        + _saved(speed, speed.float32_matmul_flops_per_second, one.float32_matmuls, other.float32_matmuls, fraction)
        for one, other in zip(low.works(), high.works(), strict=True)
    ]
    return first, again, back


def _saved(
    speed: Rates, flops_per_second: float, low: Mapping[Product, int], high: Mapping[Product, int], fraction: float
) -> float:
    saved = 0.0
    if len(low) != len(high):
        return saved
    for ((flops, num_bytes), count), ((more_flops, more_bytes), other) in zip(low.items(), high.items(), strict=True):
        if count != other:
            continue
        least = product_seconds(flops, num_bytes, speed, flops_per_second)
        most = product_seconds(more_flops, more_bytes, speed, flops_per_second)
        grown = flops + (more_flops - flops) * fraction, num_bytes + (more_bytes - num_bytes) * fraction
        saved += count * (least + (most - least) * fraction - product_seconds(*grown, speed, flops_per_second))
    return saved


def micro_batch_seconds(
    trace: Trace, gpu: Gpu, recipe: Recipe, scenario: Scenario = Scenario.EXPECTED
) -> MicroBatchSeconds | None:
    """One micro batch on ``gpu``; None if its speed is not known."""
    speed = gpu_rates(gpu, recipe, scenario)
    return None if speed is None else micro_batch_seconds_at(speed, trace, recipe)


def micro_batch_seconds_at(speed: Rates, trace: Trace, recipe: Recipe) -> MicroBatchSeconds:
    """One micro batch on a GPU of this speed."""
    forward, recompute, backward = [busy_seconds(work, speed) for work in trace.works()]
    return MicroBatchSeconds(busy=(forward, recompute, backward), launches=_launch_seconds(speed, trace, recipe))


def demands_at(speed: Rates, trace: Trace, recipe: Recipe) -> PhaseDemands:
    """The demands of one micro batch on a GPU of this speed, without what they are made of."""
    forward, recompute, backward = [sum(_busy_parts(work, speed)) for work in trace.works()]
    return (forward, recompute, backward, *_launch_seconds(speed, trace, recipe))


def _launch_seconds(speed: Rates, trace: Trace, recipe: Recipe) -> PhaseSeconds:
    """What asking for each phase takes the host, with what checkpoints add; under stage 3 hooks run at every module
    too."""
    works = trace.works()
    num_again = works[1].num_kernels
    first, again, back = [work.num_kernels * speed.kernel_seconds for work in works]
    first, again = first + num_again * speed.checkpoints.forward, again + num_again * speed.checkpoints.backward
    if recipe.zero_stage == 3:
        calls = hooked_calls(trace, recipe.zero.stage3_param_persistence_threshold)
        in_forward, in_recompute, in_backward = (call.seconds(speed.hooks) for call in calls)
        first, again, back = first + in_forward, again + in_recompute, back + in_backward
    return first, again, back


def step_flops(trace: Trace) -> int:
    """Floating point operations of one micro batch, as torch's ``FlopCounterMode`` counts them."""
    return sum(work.flops for work in trace.works())
