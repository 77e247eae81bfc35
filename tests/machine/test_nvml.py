"""There is no GPU where these tests run: the driver's answers are made up, the module that asks for them
is the real pynvml, so that a function or constant it does not have fails here."""

import sys
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_nvml import FakeCard, fake_driver
from vlmplan.catalog import Catalog, shipped_catalog
from vlmplan.errors import InputError, MissingPackageError, UnavailableError
from vlmplan.gpu_choice import chosen_node, parse_gpu_choice
from vlmplan.hardware import Vendor
from vlmplan.machine.gpus import (
    LocalGpu,
    MatchBasis,
    detected,
    local_gpus,
    local_node,
    matched_gpu,
    visible_gpus,
)
from vlmplan.machine.nvml import MigSlice, NvlinkPair, NvmlCard, NvmlMachine, read_machine
from vlmplan.units import GIB, MIB


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog(shipped_catalog())


def card(**changes: object) -> NvmlCard:
    a100 = NvmlCard(
        index=0,
        name="NVIDIA A100-SXM4-80GB",
        uuid="GPU-abc",
        total_bytes=81920 * MIB,
        free_bytes=81920 * MIB,
        pci_device_id="20B2",
        compute_capability=(8, 0),
        pcie_gen=4,
        pcie_lanes=16,
    )
    return replace(a100, **changes)


def machine(*cards: NvmlCard, pairs: tuple[NvlinkPair, ...] = ()) -> NvmlMachine:
    numbered = tuple(replace(one, index=i) for i, one in enumerate(cards))
    return NvmlMachine(driver_version="580", cuda_driver_version=(13, 0), cards=numbered, nvlink_pairs=pairs)


# Reading


def test_card_is_read_with_memory_pci_id_and_versions(monkeypatch: pytest.MonkeyPatch):
    fake_driver(monkeypatch, [FakeCard(used_mib=512)])
    found = read_machine()
    assert (found.driver_version, found.cuda_driver_version) == ("580.95.05", (13, 0))
    (only,) = found.cards
    assert (only.name, only.pci_device_id, only.compute_capability) == (
        "NVIDIA A100-SXM4-80GB",
        "20B2",
        (8, 0),
    )
    assert (only.total_bytes, only.free_bytes) == (81920 * MIB, (81920 - 512) * MIB)
    assert (only.pcie_gen, only.pcie_lanes) == (4, 16)
    assert not only.mig_is_enabled


def test_cards_behind_a_switch_are_linked_pair_by_pair(monkeypatch: pytest.MonkeyPatch):
    fake_driver(monkeypatch, [FakeCard(bus_id=str(i), far_ends=["switch"] * 12) for i in range(3)])
    found = read_machine()
    assert {(p.first_index, p.second_index, p.num_links) for p in found.nvlink_pairs} == {
        (0, 1, 12),
        (0, 2, 12),
        (1, 2, 12),
    }
    assert found.cards[0].num_active_nvlinks == 12


def test_bridge_links_only_the_two_cards_it_joins(monkeypatch: pytest.MonkeyPatch):
    fake_driver(
        monkeypatch,
        [
            FakeCard(bus_id="a", far_ends=["b", "b", None, "b"]),
            FakeCard(bus_id="b", far_ends=["a", "a", None, "a"]),
            FakeCard(bus_id="c"),
        ],
    )
    (pair,) = read_machine().nvlink_pairs
    assert (pair.first_index, pair.second_index, pair.num_links) == (0, 1, 3)


def test_mig_slices_are_found_at_any_place(monkeypatch: pytest.MonkeyPatch):
    slices = {
        2: FakeCard(name="NVIDIA A100-SXM4-80GB MIG 3g.40gb", total_mib=40192),
        5: FakeCard(total_mib=9728),
    }
    fake_driver(monkeypatch, [FakeCard(mig_slices=slices)])
    (only,) = read_machine().cards
    assert only.mig_is_enabled
    assert [one.total_bytes for one in only.mig_slices] == [40192 * MIB, 9728 * MIB]


def test_lost_card_is_a_problem_and_the_others_remain(monkeypatch: pytest.MonkeyPatch):
    fake_driver(monkeypatch, [FakeCard(), FakeCard(is_lost=True)])
    found = read_machine()
    assert len(found.cards) == 1
    assert len(found.problems) == 1
    assert "GPU 1" in found.problems[0]
    assert "reboot" in found.problems[0]


def test_no_card_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    fake_driver(monkeypatch, [])
    with pytest.raises(UnavailableError, match="no GPU"):
        read_machine()


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "permissions"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "reboot"),
        (pynvml.NVML_ERROR_TIMEOUT, "Timeout"),
        (pynvml.NVML_ERROR_UNKNOWN, "Unknown Error"),
    ],
)
def test_every_driver_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch, code: int, word: str):
    fake_driver(monkeypatch, [FakeCard()], init_error=code)
    with pytest.raises(UnavailableError, match=word) as caught:
        read_machine()
    assert "\n" not in str(caught.value)


def test_error_after_the_start_is_a_sentence_too_and_closes_the_session(monkeypatch: pytest.MonkeyPatch):
    fake_driver(monkeypatch, [FakeCard()])
    closed: list[bool] = []

    def fails() -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", fails)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: closed.append(True))
    with pytest.raises(UnavailableError, match="Unknown Error"):
        read_machine()
    assert closed == [True]


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingPackageError, match="nvidia-ml-py"):
        read_machine()


# Matching


def test_every_shipped_nvidia_card_is_recognized_by_what_its_driver_says(catalog: Catalog):
    for gpu in catalog.gpus:
        if gpu.vendor is not Vendor.NVIDIA or gpu.memory_bytes is None:
            continue
        for name in gpu.aliases:
            seen = card(name=name, total_bytes=gpu.memory_bytes, pci_device_id=(gpu.pci_device_ids or ("0000",))[0])
            found, basis = matched_gpu(seen, catalog.gpus)
            assert (found.id, basis) == (gpu.id, MatchBasis.NAME_AND_MEMORY)


@pytest.mark.parametrize(
    ("name", "total_mib", "gpu_id"),
    [
        ("NVIDIA GeForce RTX 3080", 10240, "rtx-3080-10gb"),
        ("NVIDIA GeForce RTX 3080", 12288, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 8188, "rtx-4060-ti-8gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 5060 Ti", 16311, "rtx-5060-ti-16gb"),
        ("NVIDIA RTX A6000", 46068, "rtx-a6000"),
        ("Tesla T4", 15109, "t4"),
        ("NVIDIA L40", 49140, "l40"),
    ],
)
def test_name_that_is_not_unique_is_told_apart_by_memory(catalog: Catalog, name: str, total_mib: int, gpu_id: str):
    found, _ = matched_gpu(card(name=name, total_bytes=total_mib * MIB, pci_device_id="FFFF"), catalog.gpus)
    assert found.id == gpu_id


def test_modified_card_is_not_taken_for_its_namesake(catalog: Catalog):
    seen = card(name="NVIDIA GeForce RTX 4090", total_bytes=49140 * MIB, pci_device_id="2684")
    found, basis = matched_gpu(seen, catalog.gpus)
    assert basis is MatchBasis.NOT_IN_CATALOG
    assert found.memory_bytes == 49140 * MIB
    assert found.peak_flops_per_second.bf16 is None


def test_pci_id_decides_between_cards_of_one_name_and_memory(catalog: Catalog):
    one = replace(catalog.gpu("a10"), id="one", aliases=("Twin",), pci_device_ids=("0001",))
    other = replace(one, id="other", pci_device_ids=("0002",))
    seen = card(name="Twin", total_bytes=one.memory_bytes, pci_device_id="0002")
    assert matched_gpu(seen, [one, other])[0].id == "other"


def test_unknown_name_is_recognized_by_pci_id_and_memory_if_only_one_card_has_both(catalog: Catalog):
    found, basis = matched_gpu(card(name="A100-SXM-80GB"), catalog.gpus)
    assert (found.id, basis) == ("a100-sxm4-80gb", MatchBasis.PCI_ID_AND_MEMORY)
    # A2 and A16 share id and memory.
    seen = card(name="NVIDIA A-something", total_bytes=15356 * MIB, pci_device_id="25B6")
    assert matched_gpu(seen, catalog.gpus)[1] is MatchBasis.NOT_IN_CATALOG


@given(st.integers(min_value=1, max_value=400_000))
def test_match_is_always_within_seven_percent_of_memory(catalog: Catalog, total_mib: int):
    seen = card(name="NVIDIA GeForce RTX 4060 Ti", total_bytes=total_mib * MIB, pci_device_id=None)
    found, basis = matched_gpu(seen, catalog.gpus)
    known = {"rtx-4060-ti-8gb": 8188, "rtx-4060-ti-16gb": 16380}
    near = [gpu_id for gpu_id, mib in known.items() if abs(total_mib - mib) <= 0.07 * mib]
    assert (basis is MatchBasis.NAME_AND_MEMORY) == bool(near)
    assert found.id == (near[0] if near else "nvidia-geforce-rtx-4060-ti")


def test_installed_card_has_its_own_memory_and_slot(catalog: Catalog):
    found, _ = matched_gpu(card(name="NVIDIA L40S", total_bytes=49140 * MIB, pcie_gen=3, pcie_lanes=8), catalog.gpus)
    assert found.memory_bytes == 49140 * MIB
    assert found.cuda_visible_bytes is None, "torch's total of the catalog is for 46068 MiB"
    assert (found.pcie_gen, found.pcie_lanes) == (3, 8)
    assert matched_gpu(card(), catalog.gpus)[0].usable_bytes == 81038 * MIB


def test_unknown_card_has_the_drivers_memory_and_no_speed(catalog: Catalog):
    seen = card(name="NVIDIA X900", total_bytes=64 * GIB, pci_device_id="FFFF", compute_capability=(7, 5))
    node = local_node(machine(seen), catalog)
    gpu = node.node.gpu
    assert (gpu.id, gpu.memory_bytes, gpu.compute_capability) == ("nvidia-x900", 64 * GIB, (7, 5))
    assert not gpu.supports_bf16
    assert gpu.memory_bandwidth_bytes_per_second is None
    assert any("not in the catalog" in note and "NVIDIA X900" in note for note in node.notes)


# This machine as a node


def test_local_takes_all_equal_cards_or_as_many_as_asked(catalog: Catalog):
    four = machine(card(), card(), card(), card())
    assert local_node(four, catalog).node.num_gpus == 4
    assert local_node(four, catalog, num_gpus=3).node.num_gpus == 3
    with pytest.raises(InputError, match=r"local:5.*4 x A100"):
        local_node(four, catalog, num_gpus=5)


def test_mixed_cards_are_grouped_and_the_rest_is_named(catalog: Catalog):
    small = card(name="Tesla T4", total_bytes=15360 * MIB, pci_device_id="1EB8")
    node = local_node(machine(small, card(), small), catalog)
    assert (node.node.gpu.id, node.node.num_gpus) == ("a100-sxm4-80gb", 1)
    assert any("2 x Tesla T4" in note for note in node.notes)


def test_of_different_cards_with_as_much_memory_the_fastest_is_planned_for(catalog: Catalog):
    ada = card(name="NVIDIA GeForce RTX 4090", total_bytes=24564 * MIB, pci_device_id="2684")
    ampere = card(name="NVIDIA GeForce RTX 3090", total_bytes=24576 * MIB, pci_device_id="2204")
    for cards in ((ada, ampere), (ampere, ada)):
        node = local_node(machine(*cards), catalog)
        assert node.node.gpu.id == "rtx-4090"
        [note] = node.notes
        assert "planned for is 1 x GeForce RTX 4090, left out 1 x GeForce RTX 3090; CUDA_VISIBLE_DEVICES" in note


def test_as_many_cards_as_asked_are_taken_of_the_first_kind_that_has_them(catalog: Catalog):
    small = card(name="Tesla T4", total_bytes=15360 * MIB, pci_device_id="1EB8")
    mixed = machine(small, card(), small)
    found = [local_node(mixed, catalog, num_gpus=count) for count in (1, 2)]
    assert [(one.node.gpu.id, one.node.num_gpus) for one in found] == [("a100-sxm4-80gb", 1), ("t4", 2)]
    assert "planned for is 2 x Tesla T4, left out 1 x A100 SXM4 80GB" in found[1].notes[0]
    with pytest.raises(InputError, match=r"local:3.*1 x A100.* and 2 x Tesla T4"):
        local_node(mixed, catalog, num_gpus=3)


def test_plan_must_hold_on_the_least_of_equal_cards(catalog: Catalog):
    ecc_off, ecc_on = (card(name="NVIDIA RTX A6000", total_bytes=mib * MIB) for mib in (49140, 46068))
    node = local_node(machine(ecc_off, ecc_on), catalog).node
    assert (node.num_gpus, node.gpu.memory_bytes) == (2, 46068 * MIB)


def test_nvlink_counts_only_if_every_pair_has_it(catalog: Catalog):
    def pair(first: int, second: int) -> NvlinkPair:
        return NvlinkPair(first_index=first, second_index=second, num_links=4)

    cards = (card(), card(), card())
    partly = local_node(machine(*cards, pairs=(pair(0, 1),)), catalog)
    fully = local_node(machine(*cards, pairs=(pair(0, 1), pair(0, 2), pair(1, 2))), catalog)
    assert partly.node.gpu_link_bytes_per_second == partly.node.gpu.pcie_bytes_per_second
    assert fully.node.gpu_link_bytes_per_second == pytest.approx(600e9 / 2)


def test_memory_that_others_hold_is_said(catalog: Catalog):
    busy = card(free_bytes=50 * GIB)
    assert any("other processes hold" in note for note in local_node(machine(busy), catalog).notes)
    assert local_node(machine(card()), catalog).notes == ()


def test_mig_slice_stands_alone_with_its_own_memory(catalog: Catalog):
    part = MigSlice(name="NVIDIA A100 MIG 3g.40gb", uuid="MIG-1", total_bytes=39 * GIB, free_bytes=39 * GIB)
    split = machine(card(mig_is_enabled=True, mig_slices=(part, replace(part, uuid="MIG-2"))))
    node = local_node(split, catalog)
    assert (node.node.num_gpus, node.node.gpu.memory_bytes) == (1, 39 * GIB)
    assert node.node.gpu.peak_flops_per_second.bf16 is None
    assert any("MIG mode" in note for note in node.notes)
    with pytest.raises(InputError, match="one by one"):
        local_node(split, catalog, num_gpus=2)


def test_mig_mode_without_a_slice_says_so(catalog: Catalog):
    with pytest.raises(UnavailableError, match="MIG mode and has no slice"):
        local_node(machine(card(mig_is_enabled=True)), catalog)


def test_card_that_shares_the_hosts_memory_says_so(catalog: Catalog):
    shared = card(name="NVIDIA GB10", total_bytes=None, free_bytes=None)
    with pytest.raises(UnavailableError, match="shares the host's memory"):
        local_node(machine(shared), catalog)


def devices(count: int) -> tuple[LocalGpu, ...]:
    cards = (card(uuid=f"GPU-{i}f") for i in range(count))
    return local_gpus(machine(*cards), Catalog(shipped_catalog()))


@pytest.mark.parametrize(
    ("value", "positions"),
    [
        ("0,2", [0, 2]),
        ("3", [3]),
        ("GPU-1", [1]),
        (" 2 , 1", [2, 1]),
        ("1,9,2", [1]),
        ("", []),
        ("-1", []),
        ("GPU-", []),
    ],
)
def test_cuda_visible_devices_mean_here_what_they_mean_to_cuda(value: str, positions: list[int]):
    four = devices(4)
    assert visible_gpus(four, value) == tuple(four[i] for i in positions)


def test_local_sees_what_cuda_sees(monkeypatch: pytest.MonkeyPatch, catalog: Catalog):
    fake_driver(monkeypatch, [FakeCard(), FakeCard(), FakeCard()])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    chosen = chosen_node(parse_gpu_choice("local"), catalog)
    assert chosen.node.num_gpus == 2
    assert any("CUDA_VISIBLE_DEVICES=0,1 leaves 2 of 3" in note for note in chosen.notes)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UnavailableError, match="CUDA_VISIBLE_DEVICES"):
        chosen_node(parse_gpu_choice("local"), catalog)


def test_detection_lists_every_device_with_its_match(monkeypatch: pytest.MonkeyPatch, catalog: Catalog):
    fake_driver(monkeypatch, [FakeCard(), FakeCard(name="NVIDIA X900", device_id="FFFF")])
    found = detected(catalog)
    assert [device.basis for device in found.devices] == [
        MatchBasis.NAME_AND_MEMORY,
        MatchBasis.NOT_IN_CATALOG,
    ]


def test_nothing_of_the_driver_is_loaded_by_importing():
    source = Path(sys.modules["vlmplan.machine.nvml"].__file__ or "").read_text(encoding="utf-8")
    assert "\nimport pynvml" not in source
