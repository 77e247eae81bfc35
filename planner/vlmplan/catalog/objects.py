"""The fields of a catalog file become objects: MiB become bytes, GB/s bytes/s, both directions one.

The units change here and nowhere else.
"""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, cast

from vlmplan.catalog.rules import OFFER_REQUIRED, Fields
from vlmplan.errors import InputError
from vlmplan.hardware import Gpu, MatmulPeaks, Offer, Pricing, Vendor
from vlmplan.units import GIB, MIB

AMPERE = (8, 0)
"""bf16 arithmetic (NVIDIA's CUDA programming guide) and FlashAttention-2 (its README) start here."""


def gpu_from_fields(gpu_id: str, fields: Fields) -> Gpu:
    """The card that ``fields`` describe. Raises InputError for what is missing or contradicts itself."""
    for key in ("name", "vendor", "memory_mib"):
        if key not in fields:
            raise InputError(f"GPU {gpu_id} has no {key}; a new GPU needs name, vendor and memory_mib")
    pcie: Fields = fields.get("pcie") or {}
    capability = _compute_capability(fields.get("compute_capability"))
    notes = (fields.get(key) for key in ("note", "nvlink_note", "tdp_note"))
    return Gpu(
        id=gpu_id,
        name=fields["name"],
        vendor=Vendor(fields["vendor"]),
        architecture=fields.get("architecture"),
        compute_capability=capability,
        sm_count=fields.get("sm_count"),
        aliases=tuple(fields.get("aliases") or ()),
        provider_names=provider_names(fields),
        pci_device_ids=tuple(pci_id.upper() for pci_id in fields.get("pci_device_ids") or ()),
        memory_bytes=_bytes(fields.get("memory_mib"), MIB),
        memory_basis=fields.get("memory_basis"),
        cuda_visible_bytes=_bytes(fields.get("cuda_visible_mib"), MIB),
        memory_bandwidth_bytes_per_second=_scaled(fields.get("memory_bandwidth_gb_s"), 1e9),
        peak_flops_per_second=_peaks(fields),
        supports_bf16=_supports_bf16(gpu_id, fields, capability),
        supports_flash_attention_2=_supports_flash_attention_2(fields, capability),
        supports_fp8=fields.get("supports_fp8"),
        has_nvlink=fields.get("has_nvlink"),
        nvlink_bytes_per_second=_scaled(fields.get("nvlink_gb_s"), 1e9 / 2),
        pcie_gen=pcie.get("gen"),
        pcie_lanes=pcie.get("lanes"),
        form_factor=fields.get("form_factor"),
        tdp_watts=fields.get("tdp_w"),
        max_gpus_per_node=fields.get("max_gpus_per_node"),
        launch_year=fields.get("launch_year"),
        launch_price_usd=fields.get("launch_price_usd"),
        notes=tuple(note for note in notes if note),
        sources=tuple(source_table(fields.get("sources")).items()),
    )


def offer_from_fields(fields: Fields) -> Offer:
    """The offer that ``fields`` describe, its discount taken off. Raises InputError for what is missing."""
    for key in OFFER_REQUIRED:
        if key not in fields:
            raise InputError(f"an offer has no {key}; it needs {', '.join(OFFER_REQUIRED)}")
    discount: float = fields.get("discount_fraction", 0.0)
    as_of, as_of_is_month = day_and_whether_month(fields.get("as_of"))
    return Offer(
        gpu_id=fields["gpu"],
        num_gpus=fields["num_gpus"],
        provider=fields["provider"],
        usd_per_hour=fields["usd_per_hour"] * (1 - discount),
        pricing=Pricing(fields["pricing"]),
        sku=fields.get("sku"),
        region=fields.get("region"),
        spot_usd_per_hour=_scaled(fields.get("spot_usd_per_hour"), 1 - discount),
        discount_fraction=discount,
        num_vcpus=fields.get("vcpus"),
        host_ram_bytes=_bytes(fields.get("host_ram_gib"), GIB),
        as_of=as_of,
        as_of_is_month=as_of_is_month,
        as_of_basis=fields.get("as_of_basis"),
        source=fields.get("source"),
        note=fields.get("note"),
        license=fields.get("license"),
        stated_in=fields.get("stated_in"),
        seen_at=fields.get("seen_at"),
        currency=fields.get("currency", "USD"),
        exchange_rate=fields.get("exchange_rate", 1.0),
    )


def provider_names(fields: Fields) -> tuple[str, ...]:
    """What other tools call the card, each name once; none of them need be unique to it."""
    by_tool: Mapping[str, list[str]] = fields.get("provider_names") or {}
    return tuple(dict.fromkeys(name for names in by_tool.values() for name in names))


def source_table(sources: object) -> dict[str, str]:
    """``sources`` of a GPU, which is a mapping or, to load fast, lines of ``key: source``."""
    if isinstance(sources, str):
        pairs = (line.partition(": ") for line in sources.splitlines())
        return {key.strip(): text.strip() for key, _, text in pairs if key.strip()}
    return dict(cast(dict[str, str], sources)) if sources else {}


def _peaks(fields: Fields) -> MatmulPeaks:
    tensor: Fields = fields.get("tensor_tflops_dense") or {}
    return MatmulPeaks(
        bf16=_scaled(tensor.get("bf16"), 1e12),
        fp16=_scaled(tensor.get("fp16"), 1e12),
        tf32=_scaled(tensor.get("tf32"), 1e12),
        fp8=_scaled(tensor.get("fp8"), 1e12),
        fp32=_scaled(fields.get("fp32_tflops"), 1e12),
    )


def _supports_bf16(gpu_id: str, fields: Fields, capability: tuple[int, int] | None) -> bool:
    stated: bool | None = fields.get("supports_bf16")
    if stated is not None:
        return stated
    if capability is None:
        raise InputError(f"GPU {gpu_id} has neither compute_capability nor supports_bf16; state one of them")
    return capability >= AMPERE


def _supports_flash_attention_2(fields: Fields, capability: tuple[int, int] | None) -> bool | None:
    if "supports_flash_attention_2" in fields:
        return fields["supports_flash_attention_2"]
    return None if capability is None else capability >= AMPERE


def _compute_capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)


def day_and_whether_month(value: Any) -> tuple[date | None, bool]:
    """A day, and whether only its month was given."""
    if isinstance(value, datetime):
        return value.date(), False
    if value is None or isinstance(value, date):
        return value, False
    is_month = len(value) == len("2026-05")
    return date.fromisoformat(f"{value}-01" if is_month else value), is_month


def _bytes(value: float | None, unit_bytes: int) -> int | None:
    return None if value is None else round(value * unit_bytes)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
