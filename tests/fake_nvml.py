"""A driver of NVIDIA's GPUs that answers what a test wants, for the real pynvml."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from vlmplan.units import MIB

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND


@dataclass(kw_only=True)
class FakeCard:
    """A handle that is its own device. An answer that is an int error code is raised as that NVMLError."""

    name: str = "NVIDIA A100-SXM4-80GB"
    total_mib: int | None = 81920
    used_mib: int = 0
    device_id: str = "20B2"
    bus_id: str = "00000000:07:00.0"
    capability: tuple[int, int] = (8, 0)
    mig_slices: dict[int, "FakeCard"] | None = None
    far_ends: list[object] = field(default_factory=list)  # of each link: "switch", a bus id, or None for down
    is_lost: bool = False


def error(code: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(code)


def fake_driver(monkeypatch: pytest.MonkeyPatch, cards: list[FakeCard], init_error: int | None = None) -> None:
    def handle(index: int) -> FakeCard:
        if cards[index].is_lost:
            raise error(pynvml.NVML_ERROR_GPU_IS_LOST)
        return cards[index]

    def init() -> None:
        if init_error is not None:
            raise error(init_error)

    def memory(card: FakeCard) -> object:
        if card.total_mib is None:
            raise error(NOT_SUPPORTED)
        total, used = card.total_mib * MIB, card.used_mib * MIB
        return SimpleNamespace(total=total, used=used, free=total - used)

    def mig_mode(card: FakeCard) -> list[int]:
        if card.mig_slices is None:
            raise error(NOT_SUPPORTED)
        return [1, 1]

    def mig_slice(card: FakeCard, index: int) -> FakeCard:
        if index not in (card.mig_slices or {}):
            raise error(NOT_FOUND)
        return (card.mig_slices or {})[index]

    def link(card: FakeCard, number: int) -> object:
        if number >= len(card.far_ends):
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return card.far_ends[number]

    def p2p(one: FakeCard, other: FakeCard, index: int) -> int:
        assert index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        linked = "switch" in one.far_ends and "switch" in other.far_ends
        return pynvml.NVML_P2P_STATUS_OK if linked else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED

    switch, gpu = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    answers: dict[str, Callable[..., Any]] = {
        "nvmlInit": init,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.95.05",
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
        "nvmlDeviceGetCount": lambda: len(cards),
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetName": lambda card: card.name,
        "nvmlDeviceGetUUID": lambda card: f"GPU-{card.bus_id}",
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetPciInfo": lambda card: SimpleNamespace(
            busId=card.bus_id.encode(), pciDeviceId=int(card.device_id + "10DE", 16)
        ),
        "nvmlDeviceGetMigMode": mig_mode,
        "nvmlDeviceGetMaxMigDeviceCount": lambda card: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": mig_slice,
        "nvmlDeviceGetCudaComputeCapability": lambda card: card.capability,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda card: 4,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda card: 16,
        "nvmlDeviceGetNvLinkState": lambda card, number: int(link(card, number) is not None),
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda card, n: switch if link(card, n) == "switch" else gpu,
        "nvmlDeviceGetNvLinkRemotePciInfo": lambda card, n: SimpleNamespace(busId=str(link(card, n)).encode()),
        "nvmlDeviceGetP2PStatus": p2p,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
