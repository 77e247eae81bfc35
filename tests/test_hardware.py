from dataclasses import replace
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.errors import InputError
from vlmplan.hardware import (
    PRICE_CURRENT_DAYS,
    Cluster,
    Gpu,
    MatmulPeaks,
    Node,
    Offer,
    Pricing,
    Vendor,
    cheapest,
)
from vlmplan.units import GIB, MIB

TODAY = date(2026, 11, 21)


def gpu(**changes: object) -> Gpu:
    card = Gpu(id="card", name="Card", vendor=Vendor.NVIDIA, memory_bytes=24 * GIB, supports_bf16=True)
    return replace(card, **changes)


def offer(**changes: object) -> Offer:
    one = Offer(
        gpu_id="card",
        num_gpus=1,
        provider="p",
        usd_per_hour=1.0,
        pricing=Pricing.ON_DEMAND,
        as_of=TODAY - timedelta(days=7),
    )
    return replace(one, **changes)


def test_usable_bytes_are_what_torch_sees_where_that_is_known():
    card = gpu(memory_bytes=24564 * MIB, cuda_visible_bytes=24081 * MIB)
    assert card.usable_bytes == 24081 * MIB


def test_usable_bytes_else_leave_the_driver_450_mib_and_half_a_percent():
    assert gpu(memory_bytes=81559 * MIB).usable_bytes == 81559 * MIB - 450 * MIB - 81559 * MIB * 5 // 1000


def test_cpu_has_no_driver_reserve():
    assert gpu(vendor=Vendor.CPU, memory_bytes=7 * GIB).usable_bytes == 7 * GIB


def test_unknown_memory_is_an_error_that_names_the_card_and_not_a_guess():
    card = gpu(memory_bytes=None)
    assert not card.has_known_memory
    with pytest.raises(InputError, match="card"):
        _ = card.usable_bytes


@given(st.integers(min_value=1, max_value=2**42), st.integers(min_value=1, max_value=2**42))
def test_more_memory_is_never_less_usable_memory(one: int, other: int):
    less, more = sorted((one, other))
    assert gpu(memory_bytes=less).usable_bytes <= gpu(memory_bytes=more).usable_bytes <= more


def test_pcie_rate_is_transfers_times_coding_times_lanes_in_bytes():
    assert gpu(pcie_gen=3, pcie_lanes=16).pcie_bytes_per_second == pytest.approx(8e9 * 128 / 130 / 8 * 16)
    assert gpu(pcie_gen=4, pcie_lanes=8).pcie_bytes_per_second == pytest.approx(15.754e9, rel=1e-4)
    assert gpu(pcie_gen=5, pcie_lanes=16).pcie_bytes_per_second == pytest.approx(63.015e9, rel=1e-4)
    assert gpu(pcie_gen=6, pcie_lanes=16).pcie_bytes_per_second == pytest.approx(121e9, rel=1e-3)


def test_pcie_rate_of_unknown_lanes_is_unknown():
    assert gpu(pcie_gen=4).pcie_bytes_per_second is None


def test_torch_cannot_see_more_than_the_driver_reports():
    with pytest.raises(InputError, match="torch"):
        gpu(memory_bytes=8 * GIB, cuda_visible_bytes=9 * GIB)


@pytest.mark.parametrize(
    "changes",
    [{"memory_bytes": 0}, {"tdp_watts": -1}, {"pcie_gen": 9}, {"max_gpus_per_node": 0}],
)
def test_impossible_cards_are_refused(changes: dict[str, object]):
    with pytest.raises(InputError, match=next(iter(changes)).split("_")[-1].replace("gen", "generation")):
        gpu(**changes)


def test_negative_rates_are_refused():
    with pytest.raises(InputError, match="tf32"):
        MatmulPeaks(tf32=-1.0)


def links(**changes: object) -> Gpu:
    return gpu(
        pcie_gen=4,
        pcie_lanes=16,
        has_nvlink=True,
        nvlink_bytes_per_second=300e9,
        form_factor="SXM4",
        **changes,
    )


def test_cards_on_a_baseboard_talk_over_nvlink():
    assert Node(gpu=links(), num_gpus=8).gpu_link_bytes_per_second == 300e9


def test_plug_in_cards_talk_over_pcie_unless_a_bridge_is_known():
    card = replace(links(), form_factor="PCIe")
    pcie = card.pcie_bytes_per_second
    assert Node(gpu=card, num_gpus=2).gpu_link_bytes_per_second == pcie
    assert Node(gpu=card, num_gpus=2, has_nvlink_between_all=True).gpu_link_bytes_per_second == 300e9
    assert Node(gpu=links(), num_gpus=2, has_nvlink_between_all=False).gpu_link_bytes_per_second == pcie


def test_nvlink_of_unknown_rate_counts_as_pcie():
    card = replace(links(), nvlink_bytes_per_second=None)
    assert Node(gpu=card, num_gpus=2).gpu_link_bytes_per_second == card.pcie_bytes_per_second


def test_cluster_counts_the_gpus_of_all_nodes():
    assert Cluster(node=Node(gpu=gpu(), num_gpus=5), num_nodes=3).num_gpus == 3 * 5


def test_empty_nodes_and_clusters_are_refused():
    with pytest.raises(InputError, match="0 GPUs"):
        Node(gpu=gpu(), num_gpus=0)
    with pytest.raises(InputError, match="0 nodes"):
        Cluster(node=Node(gpu=gpu(), num_gpus=1), num_nodes=0)


def test_price_per_gpu_is_the_instance_price_shared():
    assert offer(num_gpus=8, usd_per_hour=8 * 3.0).usd_per_gpu_hour == 3.0


def test_negative_prices_are_refused():
    with pytest.raises(InputError, match="usd_per_hour"):
        offer(usd_per_hour=-0.01)


def test_age_counts_days_and_is_unknown_without_a_date():
    assert offer(as_of=date(2026, 5, 24)).age_days(TODAY) == 181
    assert offer(as_of=None).age_days(TODAY) is None


def test_price_is_current_for_a_year_and_no_longer():
    at_limit = offer(as_of=TODAY - timedelta(days=PRICE_CURRENT_DAYS))
    assert at_limit.is_current(TODAY)
    assert not at_limit.is_current(TODAY + timedelta(days=1))


def test_undated_price_is_current_only_on_the_users_own_word():
    assert not offer(as_of=None).is_current(TODAY)
    assert offer(as_of=None, stated_in="my.yaml").is_current(TODAY)
    assert offer(as_of=None, pricing=Pricing.OWN).is_current(TODAY)


def test_old_or_undated_price_does_not_win_cheapest_over_a_current_one():
    current, old, undated = (
        offer(usd_per_hour=3.0),
        offer(usd_per_hour=1.0, as_of=date(2020, 1, 1)),
        offer(usd_per_hour=0.5, as_of=None),
    )
    assert cheapest([old, undated, current], TODAY) is current
    assert cheapest([old, undated], TODAY) is undated
    assert cheapest([], TODAY) is None


def test_cheapest_is_per_gpu_and_not_per_instance():
    single, eight = offer(usd_per_hour=2.0), offer(num_gpus=8, usd_per_hour=8 * 1.5)
    assert cheapest([single, eight], TODAY) is eight


def test_offered_node_has_the_offers_host():
    node = offer(num_gpus=4, num_vcpus=48, host_ram_bytes=192 * GIB).node(gpu())
    assert (node.num_gpus, node.num_vcpus, node.host_ram_bytes) == (4, 48, 192 * GIB)
