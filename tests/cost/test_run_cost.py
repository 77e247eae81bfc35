"""What a run costs, part by part, on every kind of offer."""

import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.cost import CostAssumptions, RunBytes, RunCost, run_cost
from vlmplan.cost.interruptions import SAVE_BYTES_PER_SECOND, SAVE_FIXED_SECONDS, billed_hours, save_hours
from vlmplan.cost.run import DAYS_PER_MONTH, START_UP_SECONDS, STORED_DAYS, USD_PER_GIB_MONTH
from vlmplan.errors import InputError
from vlmplan.hardware import Offer, Pricing
from vlmplan.units import GIB

SIZE = RunBytes(download_bytes=15 * 10**9, checkpoint_bytes=3 * 10**9, export_bytes=5 * 10**9)
ASSUMED = CostAssumptions()


def offer(pricing: Pricing = Pricing.ON_DEMAND, usd_per_hour: float = 7.0) -> Offer:
    return Offer(gpu_id="rtx-4090", num_gpus=2, provider="somebody", usd_per_hour=usd_per_hour, pricing=pricing)


def cost(
    hours: float = 11.0,
    *,
    on: Offer | None = None,
    num_nodes: int = 1,
    size: RunBytes = SIZE,
    assumed: CostAssumptions = ASSUMED,
) -> RunCost:
    return run_cost(training_hours=hours, offer=on or offer(), num_nodes=num_nodes, size=size, assumed=assumed)


def test_every_part_of_a_run_is_billed_by_the_hour_but_the_disk():
    found = cost(11.0, num_nodes=3, assumed=CostAssumptions(download_gbit_per_second=5.0))
    usd_per_second = 3 * 7.0 / 3600
    assert found.training_usd == 11.0 * 3 * 7.0
    assert found.start_up_usd == pytest.approx(START_UP_SECONDS * usd_per_second)
    assert found.download_usd == pytest.approx(15e9 * 8 / 5e9 * usd_per_second)
    saving = SAVE_FIXED_SECONDS + 3e9 / 3 / SAVE_BYTES_PER_SECOND
    assert found.checkpoints_usd == pytest.approx(saving * usd_per_second)
    gib_days = ((15e9 + 3e9 + 5e9) * found.billed_hours / 24 + 5e9 * STORED_DAYS) / GIB
    assert found.storage_usd == pytest.approx(gib_days / DAYS_PER_MONTH * USD_PER_GIB_MONTH)
    assert (found.interruptions_usd, found.num_interruptions, found.num_checkpoints) == (0.0, 0.0, 1)
    assert found.billed_hours == pytest.approx((found.usd - found.storage_usd) / (3 * 7.0))


@pytest.mark.parametrize("pricing", [pricing for pricing in Pricing if pricing is not Pricing.INTERRUPTIBLE])
def test_only_interruptible_machines_are_interrupted(pricing: Pricing):
    assert cost(on=offer(pricing)).interruptions_usd == 0.0
    assert cost(on=offer(Pricing.INTERRUPTIBLE)).interruptions_usd > 0.0


def test_interruptible_machine_is_billed_for_what_is_done_again():
    found = cost(100.0, on=offer(Pricing.INTERRUPTIBLE), assumed=CostAssumptions(interruptions_per_day=6.0))
    hours = billed_hours(
        training_hours=100.0,
        starting_hours=(START_UP_SECONDS + 15e9 * 8 / 2e9) / 3600,
        saving_hours=save_hours(3 * 10**9),
        checkpoints=found.num_checkpoints,
        interruptions_per_hour=6.0 / 24,
    )
    assert found.billed_hours == hours > 100.0
    assert found.num_interruptions == pytest.approx(hours * 6.0 / 24)
    assert found.usd - found.storage_usd == pytest.approx(hours * 7.0)


def test_interruptible_machine_that_never_is_costs_what_another_does():
    assumed = CostAssumptions(interruptions_per_day=0.0)
    assert cost(on=offer(Pricing.INTERRUPTIBLE), assumed=assumed) == cost(on=offer(), assumed=assumed)


def test_nodes_are_interrupted_together_and_write_together():
    a_third = SIZE._replace(checkpoint_bytes=10**9)
    one = cost(on=offer(Pricing.INTERRUPTIBLE), size=a_third, assumed=CostAssumptions(interruptions_per_day=6.0))
    three = cost(on=offer(Pricing.INTERRUPTIBLE), num_nodes=3, assumed=CostAssumptions(interruptions_per_day=2.0))
    assert three.billed_hours == one.billed_hours


def test_own_machine_is_up_already_and_has_its_disk():
    found = cost(on=offer(Pricing.OWN))
    assert (found.start_up_usd, found.storage_usd) == (0.0, 0.0)
    assert found.download_usd > 0.0


def test_free_machine_costs_its_disk():
    found = cost(on=offer(usd_per_hour=0.0))
    assert found.usd == found.storage_usd > 0.0


def test_discount_is_in_the_price_already():
    half = replace(offer(usd_per_hour=3.5), discount_fraction=0.5)
    assert cost(on=half).training_usd == 11.0 * 3.5


@given(st.floats(0.01, 1000), st.floats(1.01, 3), st.sampled_from(list(Pricing)))
def test_longer_runs_cost_more(hours: float, longer: float, pricing: Pricing):
    assert cost(hours, on=offer(pricing)).usd < cost(hours * longer, on=offer(pricing)).usd


@given(st.floats(0.0, 10), st.floats(0.01, 10), st.sampled_from(list(Pricing)))
def test_price_per_hour_raises_all_but_the_disk_in_step(usd: float, factor: float, pricing: Pricing):
    low, high = cost(on=offer(pricing, usd)), cost(on=offer(pricing, usd * factor))
    assert high.usd - high.storage_usd == pytest.approx((low.usd - low.storage_usd) * factor)
    assert high.storage_usd == low.storage_usd


def test_parts_are_in_the_document_and_sum_up():
    document = asdict(cost())
    parts = [value for name, value in document.items() if name.endswith("_usd")]
    assert len(parts) == 6
    assert math.fsum(parts) == pytest.approx(cost().usd)


@pytest.mark.parametrize("rate", [-1.0, 145.0, math.inf, math.nan])
def test_impossible_rate_of_interruptions_is_refused(rate: float):
    with pytest.raises(InputError, match="--spot-interruptions-per-day"):
        CostAssumptions(interruptions_per_day=rate)


@pytest.mark.parametrize("gbit", [0.0, -1.0, math.inf, math.nan])
def test_impossible_download_is_refused(gbit: float):
    with pytest.raises(InputError, match="--download-gbit"):
        CostAssumptions(download_gbit_per_second=gbit)
