"""This machine's GPUs as the planner's objects: what the driver reports, matched with the catalog.

A driver name alone is not unique (3080 with 10 or 12 GB, modified 4090s with 48), so a match needs name and
memory; where several are left, the PCI device id decides. A card the catalog does not know still becomes a
``Gpu``: memory from the driver, speed unknown, and said so.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import combinations

from vlmplan.catalog import Catalog
from vlmplan.catalog.objects import AMPERE
from vlmplan.errors import InputError, UnavailableError
from vlmplan.hardware import PCIE_BYTES_PER_SECOND_PER_LANE, Gpu, Node, Vendor
from vlmplan.machine.host import THIS_MACHINE, host_ram_bytes, num_host_cpus
from vlmplan.machine.nvml import MigSlice, NvmlCard, NvmlMachine, read_machine
from vlmplan.notes import Caveat
from vlmplan.units import MIB, gib_text

MEMORY_TOLERANCE_FRACTION = 0.07
"""Drivers and ECC change a card's total by up to 6.3%; cards that share a name differ by 18% and more."""

SAME_TOTAL_BYTES = 64 * MIB
"""Assumed: up to here two totals are the same setting, so that torch's total of the catalog still holds."""


class MatchBasis(Enum):
    """How a card was recognized."""

    NAME_AND_MEMORY = "name and memory"
    PCI_ID_AND_MEMORY = "PCI device id and memory"
    NOT_IN_CATALOG = "not in the catalog"
    MIG_SLICE = "MIG slice"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGpu:
    """One device that torch can use here. ``free_bytes`` is what other processes leave of it now."""

    card: NvmlCard
    gpu: Gpu
    basis: MatchBasis
    free_bytes: int
    uuid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """All that is known of this machine's GPUs; ``notes``: in sentences, what is not usable or not known."""

    machine: NvmlMachine
    devices: tuple[LocalGpu, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """The equal GPUs of this machine to plan for; ``notes``: in sentences, what was left out or not known."""

    node: Node
    members: tuple[LocalGpu, ...]
    notes: tuple[str, ...]


def detected(catalog: Catalog) -> Detection:
    """This machine as the driver reports it. Raises UnavailableError where there is no driver or no card."""
    machine = read_machine()
    devices = local_gpus(machine, catalog)
    notes = (*machine.problems, *_notes_on_cards(machine.cards), *_notes_on_members(devices))
    return Detection(machine=machine, devices=devices, notes=notes)


def local_gpus(machine: NvmlMachine, catalog: Catalog) -> tuple[LocalGpu, ...]:
    """Every usable device: each card, or its MIG slices where MIG is on. Cards without memory of their own
    (Jetson, DGX Spark) are left out: how much of the host's RAM they may take is not known."""
    devices: list[LocalGpu] = []
    for card in machine.cards:
        if card.mig_is_enabled:
            devices.extend(_slice_device(card, mig_slice) for mig_slice in card.mig_slices)
        elif card.total_bytes is not None:
            gpu, basis = matched_gpu(card, catalog.gpus)
            free = card.free_bytes if card.free_bytes is not None else card.total_bytes
            devices.append(LocalGpu(card=card, gpu=gpu, basis=basis, free_bytes=free, uuid=card.uuid))
    return tuple(devices)


def matched_gpu(card: NvmlCard, known: Iterable[Gpu]) -> tuple[Gpu, MatchBasis]:
    """The catalog's GPU that ``card`` is, with the memory and the PCIe link of this very card, and how it was
    recognized; else a GPU made of what the driver says. ``card`` has memory of its own."""
    fits = [gpu for gpu in known if gpu.vendor is Vendor.NVIDIA and _has_memory_of(gpu, card)]
    called_so = [gpu for gpu in fits if card.name.casefold() in _driver_names(gpu)]
    if len(called_so) > 1:
        called_so = [gpu for gpu in called_so if card.pci_device_id in gpu.pci_device_ids]
    if len(called_so) == 1:
        return _as_installed(called_so[0], card), MatchBasis.NAME_AND_MEMORY
    same_chip = [gpu for gpu in fits if card.pci_device_id in gpu.pci_device_ids]
    if len(same_chip) == 1:
        return _as_installed(same_chip[0], card), MatchBasis.PCI_ID_AND_MEMORY
    return _gpu_of_unknown_card(card), MatchBasis.NOT_IN_CATALOG


def local_node(
    machine: NvmlMachine,
    catalog: Catalog,
    *,
    num_gpus: int | None = None,
    cuda_visible_devices: str | None = None,
) -> LocalNode:
    """The node to plan for on this machine: all of its first group of equal GPUs (``grouped``), or ``num_gpus`` of the
    first that has so many.

    ``cuda_visible_devices`` is the environment variable of that name. Raises UnavailableError where nothing
    can be used and InputError where there are fewer than ``num_gpus``.
    """
    devices = local_gpus(machine, catalog)
    notes = [*machine.problems, *_notes_on_cards(machine.cards)]
    if cuda_visible_devices is not None:
        num_devices, devices = len(devices), visible_gpus(devices, cuda_visible_devices)
        notes.append(f"CUDA_VISIBLE_DEVICES={cuda_visible_devices} leaves {len(devices)} of {num_devices} GPUs")
    if not devices:
        raise UnavailableError("no GPU of this machine can be used: " + ("; ".join(notes) or "none is visible"))
    groups = grouped(devices)
    members = _chosen_members(groups, num_gpus)
    if len(groups) > 1:
        others = [group for group in groups if members[0] not in group]
        notes.append(
            f"this machine has different GPUs; planned for is {_inventory([members])}, left out {_inventory(others)}; "
            f"CUDA_VISIBLE_DEVICES with their numbers in nvidia-smi chooses others"
        )
    node = Node(
        gpu=_least_gpu(members),
        num_gpus=len(members),
        host_ram_bytes=host_ram_bytes(),
        host_ram_source=THIS_MACHINE,
        num_vcpus=num_host_cpus(),
        has_nvlink_between_all=_all_are_linked(members, machine),
    )
    return LocalNode(node=node, members=tuple(members), notes=(*notes, *_notes_on_members(members)))


def grouped(devices: Sequence[LocalGpu]) -> list[list[LocalGpu]]:
    """``devices`` by kind of GPU, the group with the most memory first; of those that have as much within
    ``MEMORY_TOLERANCE_FRACTION`` the fastest one."""
    groups: dict[object, list[LocalGpu]] = {}
    for device in devices:
        is_known = device.basis in (MatchBasis.NAME_AND_MEMORY, MatchBasis.PCI_ID_AND_MEMORY)
        kind = (device.gpu.id, None if is_known else device.gpu.memory_bytes)
        groups.setdefault(kind, []).append(device)
    found = sorted(groups.values(), key=lambda group: -_total_bytes(group))
    equal = [
        group for group in found if _total_bytes(group) >= (1 - MEMORY_TOLERANCE_FRACTION) * _total_bytes(found[0])
    ]
    first = max(equal, key=_total_flops, default=None)
    return sorted(found, key=lambda group: group is not first)


def _total_bytes(group: Sequence[LocalGpu]) -> int:
    return sum(device.gpu.usable_bytes for device in group)


def _total_flops(group: Sequence[LocalGpu]) -> float:
    """Of products in 16 bits a second; 0 where none are known."""
    rates = [device.gpu.peak_flops_per_second for device in group]
    return sum(rate.bf16 or rate.fp16 or 0.0 for rate in rates)


def visible_gpus(devices: Sequence[LocalGpu], cuda_visible_devices: str) -> tuple[LocalGpu, ...]:
    """The GPUs that the environment variable lets CUDA see: positions or beginnings of UUIDs, up to the first that
    means nothing, as CUDA has it. Positions count in PCI order, the order of CUDA among equal GPUs."""
    visible: list[LocalGpu] = []
    for entry in cuda_visible_devices.split(","):
        entry = entry.strip()
        if entry.isdecimal():
            found = list(devices[int(entry) : int(entry) + 1])
        else:
            found = [device for device in devices if entry and (device.uuid or "").startswith(entry)]
        if len(found) != 1:
            break
        visible.extend(found)
    return tuple(visible)


def _chosen_members(groups: Sequence[Sequence[LocalGpu]], num_gpus: int | None) -> Sequence[LocalGpu]:
    """The first group, or ``num_gpus`` of the first that has so many; InputError where none has."""
    wanted = num_gpus or 1
    enough = (group for group in groups if len(group) >= wanted and (wanted == 1 or not _is_sliced(group)))
    members = next(enough, groups[0])
    if _is_sliced(members):
        # CUDA shows a process one slice, and NCCL does not join slices.
        if num_gpus is not None and num_gpus > 1:
            raise InputError(f"local:{num_gpus} asks for {num_gpus} GPUs; MIG slices work only one by one")
        return members[:1]
    if num_gpus is not None and num_gpus > len(members):
        raise InputError(f"local:{num_gpus} asks for {num_gpus} equal GPUs; there are {_inventory(groups)}")
    return members[:num_gpus]


def _is_sliced(group: Sequence[LocalGpu]) -> bool:
    return group[0].basis is MatchBasis.MIG_SLICE


def _driver_names(gpu: Gpu) -> set[str]:
    return {alias.casefold() for alias in (*gpu.aliases, gpu.name)}


def _has_memory_of(gpu: Gpu, card: NvmlCard) -> bool:
    assert card.total_bytes is not None
    if gpu.memory_bytes is None:
        return False
    return abs(card.total_bytes - gpu.memory_bytes) <= MEMORY_TOLERANCE_FRACTION * gpu.memory_bytes


def _as_installed(gpu: Gpu, card: NvmlCard) -> Gpu:
    assert card.total_bytes is not None
    assert gpu.memory_bytes is not None
    visible = gpu.cuda_visible_bytes
    if visible is not None and abs(card.total_bytes - gpu.memory_bytes) > SAME_TOTAL_BYTES:
        visible = None
    return replace(
        gpu,
        memory_bytes=card.total_bytes,
        memory_basis="reported",
        cuda_visible_bytes=None if visible is None else min(visible, card.total_bytes),
        pcie_gen=_known_pcie_gen(card) or gpu.pcie_gen,
        pcie_lanes=card.pcie_lanes or gpu.pcie_lanes,
    )


def _gpu_of_unknown_card(card: NvmlCard) -> Gpu:
    return Gpu(
        id=_id_of_unknown(card.name),
        name=card.name,
        vendor=Vendor.NVIDIA,
        memory_bytes=card.total_bytes,
        memory_basis="reported",
        compute_capability=card.compute_capability,
        supports_bf16=_is_ampere_or_later(card),
        supports_flash_attention_2=_is_ampere_or_later(card),
        aliases=(card.name,),
        pci_device_ids=() if card.pci_device_id is None else (card.pci_device_id,),
        has_nvlink=card.num_active_nvlinks > 0,
        pcie_gen=_known_pcie_gen(card),
        pcie_lanes=card.pcie_lanes or None,
    )


def _slice_device(card: NvmlCard, mig_slice: MigSlice) -> LocalGpu:
    gpu = replace(
        _gpu_of_unknown_card(card),
        id=_id_of_unknown(mig_slice.name),
        name=mig_slice.name,
        aliases=(mig_slice.name,),
        memory_bytes=mig_slice.total_bytes,
        has_nvlink=False,
    )
    return LocalGpu(
        card=card, gpu=gpu, basis=MatchBasis.MIG_SLICE, free_bytes=mig_slice.free_bytes, uuid=mig_slice.uuid
    )


def _is_ampere_or_later(card: NvmlCard) -> bool:
    return card.compute_capability is not None and card.compute_capability >= AMPERE


def _known_pcie_gen(card: NvmlCard) -> int | None:
    return card.pcie_gen if card.pcie_gen in PCIE_BYTES_PER_SECOND_PER_LANE else None


def _id_of_unknown(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.casefold()).strip("-")


def _least_gpu(members: Sequence[LocalGpu]) -> Gpu:
    """The least of the members, by usable memory, then PCIe: a plan must hold on each of them."""
    gpus = [device.gpu for device in members]
    return min(gpus, key=lambda gpu: (gpu.usable_bytes, gpu.pcie_bytes_per_second or 0.0))


def _all_are_linked(members: Sequence[LocalGpu], machine: NvmlMachine) -> bool:
    linked = {(pair.first_index, pair.second_index) for pair in machine.nvlink_pairs}
    indices = sorted(device.card.index for device in members)
    return len(members) > 1 and all(pair in linked for pair in combinations(indices, 2))


def _notes_on_cards(cards: Iterable[NvmlCard]) -> list[str]:
    notes: list[str] = []
    for card in cards:
        if card.mig_is_enabled and not card.mig_slices:
            notes.append(f"GPU {card.index} ({card.name}) is in MIG mode and has no slice; create one or turn MIG off")
        elif card.mig_is_enabled:
            notes.append(
                f"GPU {card.index} ({card.name}) is in MIG mode: its {len(card.mig_slices)} slices count "
                "one by one, a process sees one of them, and their speed is not known"
            )
        elif card.total_bytes is None:
            notes.append(f"GPU {card.index} ({card.name}) shares the host's memory; how much it may use is not known")
    return notes


def _notes_on_members(members: Sequence[LocalGpu]) -> list[str]:
    notes: list[str] = []
    for gpu in {device.gpu.id: device.gpu for device in members if device.basis is MatchBasis.NOT_IN_CATALOG}.values():
        assert gpu.memory_bytes is not None
        notes.append(
            f"{gpu.name} with {gib_text(gpu.memory_bytes)} is not in the catalog: its memory is what the "
            f"driver says, its speed is not known; add it as gpus.{gpu.id} to a catalog of your own"
        )
    for device in members:
        assert device.gpu.memory_bytes is not None
        taken = device.gpu.usable_bytes - device.free_bytes
        if taken > SAME_TOTAL_BYTES:
            notes.append(
                Caveat(
                    f"GPU {device.card.index}: other processes hold {gib_text(taken)} of its "
                    f"{gib_text(device.gpu.usable_bytes)}; the plan assumes that they will be gone"
                )
            )
    return notes


def _inventory(groups: Sequence[Sequence[LocalGpu]]) -> str:
    return " and ".join(f"{len(group)} x {group[0].gpu.name}" for group in groups)
