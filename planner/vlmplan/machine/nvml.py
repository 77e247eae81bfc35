"""What the NVIDIA driver reports about this machine, read through NVML (package nvidia-ml-py).

Impure and without judgement: ``read_machine`` returns what the driver said and ``None`` for what it would not
say; ``local_gpus`` matches it with the catalog. Names and meanings: https://docs.nvidia.com/deploy/nvml-api/
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

from vlmplan.errors import MissingPackageError, UnavailableError

_T = TypeVar("_T")

_SWITCH = "switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSlice:
    """A part of a card that the driver presents as a device of its own."""

    name: str
    uuid: str | None
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlCard:
    """One card as the driver sees it. ``pcie_gen`` and ``pcie_lanes`` are the most that card and slot allow.

    Memory is ``None`` on devices that share the host's (Jetson, DGX Spark). With ``mig_is_enabled`` only
    ``mig_slices`` can be computed on, the card as a whole cannot.
    """

    index: int
    name: str
    uuid: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    pci_bus_id: str | None = None
    pci_device_id: str | None = None
    compute_capability: tuple[int, int] | None = None
    pcie_gen: int | None = None
    pcie_lanes: int | None = None
    num_active_nvlinks: int = 0
    mig_is_enabled: bool = False
    mig_slices: tuple[MigSlice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkPair:
    """Two cards, by index, that NVLink connects. ``num_links``: active ones between the two, or from each to
    the switch; ``None``: the driver says that they are connected and not by how many."""

    first_index: int
    second_index: int
    num_links: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlMachine:
    """All cards of this machine. ``problems``: a sentence for each card that the driver cannot speak for."""

    driver_version: str
    cuda_driver_version: tuple[int, int] | None
    cards: tuple[NvmlCard, ...]
    nvlink_pairs: tuple[NvlinkPair, ...] = ()
    problems: tuple[str, ...] = ()


def read_machine() -> NvmlMachine:
    """Ask the driver. Raises UnavailableError, in one sentence, where there is no driver or no card."""
    with _nvml_session() as nvml:
        handles: dict[int, Any] = {}
        cards: list[NvmlCard] = []
        problems: list[str] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                cards.append(_card(nvml, index, handle))
                handles[index] = handle
            except nvml.NVMLError as error:
                problems.append(f"GPU {index} cannot be used: {_sentence(nvml, error)}")
        if not cards:
            raise UnavailableError(
                "; ".join(problems)
                or "the NVIDIA driver is loaded but shows no GPU; in a container, pass the GPUs to it "
                "(docker run --gpus all)"
            )
        return NvmlMachine(
            driver_version=_text(nvml.nvmlSystemGetDriverVersion()),
            cuda_driver_version=_cuda_version(_or_none(nvml, nvml.nvmlSystemGetCudaDriverVersion)),
            cards=tuple(cards),
            nvlink_pairs=_nvlink_pairs(nvml, handles),
            problems=tuple(problems),
        )


@contextmanager
def _nvml_session() -> Generator[Any]:
    """The pynvml module between nvmlInit and nvmlShutdown, every NVMLError turned into UnavailableError."""
    try:
        import pynvml  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise MissingPackageError("reading this machine's GPUs needs: pip install nvidia-ml-py") from None
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise UnavailableError(_sentence(nvml, error)) from None
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise UnavailableError(_sentence(nvml, error)) from None
    finally:
        _or_none(nvml, nvml.nvmlShutdown)


def _sentence(nvml: Any, error: Any) -> str:
    """What an NVML error means for the user: where the cause is clear the cure, else NVML's words."""
    elsewhere = "; name a card of the catalog with --gpu to plan for another machine"
    sentences: dict[int, str] = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "this machine has no NVIDIA driver" + elsewhere,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded" + elsewhere,
        nvml.NVML_ERROR_NO_PERMISSION: "this user may not talk to the NVIDIA driver; "
        "check the permissions of /dev/nvidia* or of the container",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated while it was running; "
        "reboot this machine, then its library and its kernel module agree again",
        nvml.NVML_ERROR_GPU_IS_LOST: "it has fallen off the bus; reboot this machine",
        nvml.NVML_ERROR_RESET_REQUIRED: "it needs a reset (nvidia-smi --gpu-reset) or a reboot",
    }
    return sentences.get(error.value) or f"the NVIDIA driver answers {str(error).rstrip('.')!r}"


def _card(nvml: Any, index: int, handle: Any) -> NvmlCard:
    memory = _or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = _or_none(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    mig_mode = _or_none(nvml, nvml.nvmlDeviceGetMigMode, handle)
    mig_is_enabled = mig_mode is not None and mig_mode[0] == nvml.NVML_DEVICE_MIG_ENABLE
    capability = _or_none(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    uuid = _or_none(nvml, nvml.nvmlDeviceGetUUID, handle)
    return NvmlCard(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=None if uuid is None else _text(uuid),
        total_bytes=memory and int(memory.total),
        free_bytes=memory and int(memory.free),
        pci_bus_id=pci and _text(pci.busId),
        # The vendor's id (10DE) is in the lower half.
        pci_device_id=pci and f"{pci.pciDeviceId >> 16:04X}",
        compute_capability=capability and (capability[0], capability[1]),
        pcie_gen=_or_none(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_lanes=_or_none(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        num_active_nvlinks=sum(1 for _ in _active_links(nvml, handle)),
        mig_is_enabled=mig_is_enabled,
        mig_slices=tuple(_mig_slices(nvml, handle)) if mig_is_enabled else (),
    )


def _mig_slices(nvml: Any, handle: Any) -> Iterator[MigSlice]:
    """Slices sit at any index below the maximum; the free places answer "not found"."""
    num_places = _or_none(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    for index in range(num_places):
        slice_handle = _or_none(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if slice_handle is None:
            continue
        memory = _or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, slice_handle)
        if memory is None:
            continue
        uuid = _or_none(nvml, nvml.nvmlDeviceGetUUID, slice_handle)
        yield MigSlice(
            name=_text(nvml.nvmlDeviceGetName(slice_handle)),
            uuid=None if uuid is None else _text(uuid),
            total_bytes=int(memory.total),
            free_bytes=int(memory.free),
        )


def _active_links(nvml: Any, handle: Any) -> Iterator[int]:
    """Numbers of the card's links that are up; for a link that the card does not have it answers an error."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if _or_none(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link) == nvml.NVML_FEATURE_ENABLED:
            yield link


def _nvlink_pairs(nvml: Any, handles: dict[int, Any]) -> tuple[NvlinkPair, ...]:
    """The linked pairs: card to card by the links' far ends, through a switch by the driver's word."""
    if len(handles) < 2:
        return ()
    bus_ids = {index: _bus_id(nvml, handle) for index, handle in handles.items()}
    far_ends = {
        index: [_far_end(nvml, handle, link) for link in _active_links(nvml, handle)]
        for index, handle in handles.items()
    }
    pairs: list[NvlinkPair] = []
    for first, second in combinations(sorted(handles), 2):
        direct = far_ends[first].count(bus_ids[second]) if bus_ids[second] else 0
        switched = min(far_ends[first].count(_SWITCH), far_ends[second].count(_SWITCH))
        peers = (handles[first], handles[second], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        status = _or_none(nvml, nvml.nvmlDeviceGetP2PStatus, *peers)
        if direct or status == nvml.NVML_P2P_STATUS_OK:
            num_links = direct or switched or None
            pairs.append(NvlinkPair(first_index=first, second_index=second, num_links=num_links))
    return tuple(pairs)


def _far_end(nvml: Any, handle: Any, link: int) -> str | None:
    """``_SWITCH``, or the PCI bus id of the card at the other end."""
    kind = _or_none(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return _SWITCH
    pci = _or_none(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
    return None if pci is None else _text(pci.busId)


def _bus_id(nvml: Any, handle: Any) -> str | None:
    pci = _or_none(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    return None if pci is None else _text(pci.busId)


def _or_none(nvml: Any, function: Callable[..., _T], *args: object) -> _T | None:
    """The answer, or ``None`` where driver or card does not know the question."""
    try:
        return function(*args)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cuda_version(version: int | None) -> tuple[int, int] | None:
    """12040 is CUDA 12.4."""
    return None if version is None else (version // 1000, version % 1000 // 10)
