"""What ``vlmplan gpus`` shows: each report holds the JSON document and the table made of the same numbers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import TYPE_CHECKING

from vlmplan.answers.offers import age_text, offer_json
from vlmplan.catalog import Catalog
from vlmplan.catalog.listing import GpuRow
from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import PRICE_CURRENT_DAYS, Gpu, Offer
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import GIB, counted, usd_text

if TYPE_CHECKING:
    from vlmplan.machine.gpus import Detection, LocalGpu

SCHEMA = "vlmplan.gpus/1"
UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """One answer in both forms; ``notes`` follow the table."""

    document: JsonDict
    table: Table
    notes: tuple[str, ...]


def gpus_report(rows: Sequence[GpuRow], catalog: Catalog, on: date) -> GpuReport:
    """One line per GPU with its cheapest offer."""
    titles = ("GPU", "GiB", "architecture", "bf16 TFLOP/s", "TB/s", "usd/GPU/h", "offer", "pricing", "age")
    numbers = frozenset(("GiB", "bf16 TFLOP/s", "TB/s", "usd/GPU/h", "age"))
    document = {**_head(catalog, on), "gpus": [_row_json(row, on) for row in rows]}
    return GpuReport(
        document=document,
        table=Table(
            titles=titles,
            rows=[_gpu_cells(row, on) for row in rows],
            number_columns=numbers,
            least_first=("architecture", "TB/s", "age", "pricing", "offer"),
            cut_columns=frozenset(("architecture", "offer")),
        ),
        notes=(counted(len(rows), "GPU"), *_price_notes([row.cheapest for row in rows], catalog, on)),
    )


def offers_report(rows: Sequence[GpuRow], catalog: Catalog, on: date) -> GpuReport:
    """One line per offer, the cheapest per GPU first within each GPU."""
    offers = [offer for row in rows for offer in sorted(row.offers, key=lambda offer: offer.usd_per_gpu_hour)]
    titles = (
        *("GPU", "GPUs", "usd/h", "usd/GPU/h", "spot usd/h", "provider", "sku", "region", "pricing"),
        *("vCPUs", "RAM GiB", "age"),
    )
    numbers = frozenset(("GPUs", "usd/h", "usd/GPU/h", "spot usd/h", "vCPUs", "RAM GiB", "age"))
    document = {
        **_head(catalog, on),
        "gpus": [_row_json(row, on) for row in rows],
        "offers": [offer_json(offer, on) for offer in offers],
    }
    return GpuReport(
        document=document,
        table=Table(
            titles=titles,
            rows=[_offer_cells(offer, on) for offer in offers],
            number_columns=numbers,
            least_first=("vCPUs", "RAM GiB", "sku", "age", "spot usd/h", "usd/GPU/h", "region", "pricing"),
            cut_columns=frozenset(("sku", "region", "provider")),
        ),
        notes=(counted(len(offers), "offer"), *_price_notes(offers, catalog, on)),
    )


def detection_report(detection: "Detection") -> GpuReport:
    """One line per device of this machine."""
    machine = detection.machine
    cuda = machine.cuda_driver_version
    titles = ("index", "driver's name", "GiB", "free GiB", "usable GiB", "PCIe", "NVLinks", "catalog", "by")
    numbers = frozenset(("index", "GiB", "free GiB", "usable GiB", "NVLinks"))
    pairs = [
        f"NVLink: GPU {pair.first_index} and GPU {pair.second_index}"
        + ("" if pair.num_links is None else f", {pair.num_links} links")
        for pair in machine.nvlink_pairs
    ]
    cuda_text = "" if cuda is None else f", CUDA {cuda[0]}.{cuda[1]}"
    return GpuReport(
        document={
            "schema": SCHEMA,
            "driver_version": machine.driver_version,
            "cuda_driver_version": None if cuda is None else f"{cuda[0]}.{cuda[1]}",
            "detected": [_device_json(device) for device in detection.devices],
            "nvlink_pairs": [asdict(pair) for pair in machine.nvlink_pairs],
            "notes": list(detection.notes),
        },
        table=Table(
            titles=titles,
            rows=[_device_cells(device) for device in detection.devices],
            number_columns=numbers,
            least_first=("NVLinks", "PCIe", "by", "usable GiB", "free GiB"),
            cut_columns=frozenset(("driver's name",)),
        ),
        notes=(f"driver {machine.driver_version}{cuda_text}", *pairs, *detection.notes),
    )


def print_report(report: GpuReport) -> None:
    """Print the table and the notes to standard output."""
    print_table(report.table)
    say(*report.notes)


def gpu_json(gpu: Gpu) -> JsonDict:
    """A GPU under its field names; ``usable_bytes`` and ``pcie_bytes_per_second`` as derived from them."""
    capability = gpu.compute_capability
    return {
        **asdict(gpu),
        "vendor": gpu.vendor.value,
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        "usable_bytes": gpu.usable_bytes if gpu.has_known_memory else None,
        "pcie_bytes_per_second": gpu.pcie_bytes_per_second,
        "sources": dict(gpu.sources),
    }


def _head(catalog: Catalog, on: date) -> JsonDict:
    return {"schema": SCHEMA, "date": on.isoformat(), "catalog_files": list(catalog.file_names)}


def _row_json(row: GpuRow, on: date) -> JsonDict:
    return {
        **gpu_json(row.gpu),
        "num_offers": len(row.offers),
        "cheapest_offer": None if row.cheapest is None else offer_json(row.cheapest, on),
    }


def _device_json(device: "LocalGpu") -> JsonDict:
    card = device.card
    return {
        "index": card.index,
        "driver_name": card.name,
        "uuid": device.uuid,
        "pci_bus_id": card.pci_bus_id,
        "pci_device_id": card.pci_device_id,
        "num_active_nvlinks": card.num_active_nvlinks,
        "mig_is_enabled": card.mig_is_enabled,
        "free_bytes": device.free_bytes,
        "matched_by": device.basis.value,
        "gpu": gpu_json(device.gpu),
    }


def _gpu_cells(row: GpuRow, on: date) -> tuple[str, ...]:
    gpu, offer = row.gpu, row.cheapest
    bandwidth = gpu.memory_bandwidth_bytes_per_second
    price = (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
    if offer is not None:
        where = f"{offer.num_gpus} x {offer.provider}"
        price = (usd_text(offer.usd_per_gpu_hour), where, offer.pricing.value, age_text(offer, on))
    return (
        gpu.id,
        _number_text(None if gpu.memory_bytes is None else gpu.memory_bytes / GIB, 1),
        gpu.architecture or UNKNOWN,
        _number_text(_tera(gpu.peak_flops_per_second.bf16), 0),
        _number_text(_tera(bandwidth), 2),
        *price,
    )


def _offer_cells(offer: Offer, on: date) -> tuple[str, ...]:
    ram = offer.host_ram_bytes
    return (
        offer.gpu_id,
        str(offer.num_gpus),
        usd_text(offer.usd_per_hour),
        usd_text(offer.usd_per_gpu_hour),
        UNKNOWN if offer.spot_usd_per_hour is None else usd_text(offer.spot_usd_per_hour),
        offer.provider,
        offer.product or UNKNOWN,
        offer.region or UNKNOWN,
        offer.pricing.value,
        _number_text(offer.num_vcpus, 0),
        _number_text(None if ram is None else ram / GIB, 0),
        age_text(offer, on),
    )


def _device_cells(device: "LocalGpu") -> tuple[str, ...]:
    card, gpu = device.card, device.gpu
    assert gpu.memory_bytes is not None
    return (
        str(card.index),
        gpu.name if card.mig_is_enabled else card.name,
        _number_text(gpu.memory_bytes / GIB, 1),
        _number_text(device.free_bytes / GIB, 1),
        _number_text(gpu.usable_bytes / GIB, 1),
        UNKNOWN if gpu.pcie_gen is None else f"gen {gpu.pcie_gen} x{gpu.pcie_lanes}",
        str(card.num_active_nvlinks),
        gpu.id,
        device.basis.value,
    )


def _price_notes(offers: Sequence[Offer | None], catalog: Catalog, on: date) -> list[str]:
    shown = [offer for offer in offers if offer is not None]
    notes: list[str] = []
    if shown:
        notes.append("Prices are what was listed on their day (age), without storage, traffic and tax.")
    if any(not offer.is_current(on) for offer in shown):
        notes.append(f"!: undated, or older than {PRICE_CURRENT_DAYS} days; ask the provider.")
    if any(offer.as_of_is_month for offer in shown):
        notes.append("<=: only the month is known; counted from its first day.")
    if catalog.file_names:
        notes.append("Catalogs on top of the shipped one: " + ", ".join(catalog.file_names))
    return notes


def _number_text(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _tera(value: float | None) -> float | None:
    return None if value is None else value / 1e12
