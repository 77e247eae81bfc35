"""What ``torch.cuda`` answers where the named card would be: counts, capability, memory, streams, random numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.cuda import nccl

from vlmplan_trainer.rehearse.ledger import CACHE_EMPTIED, Ledger
from vlmplan_trainer.rehearse.streams import DEFAULT_STREAM, Event, Stream, current

MODULES = ("", "memory", "random", "streams", "graphs")
"""Of ``torch.cuda``: each name is replaced wherever it is."""
CUDA_VERSION, NCCL_VERSION = "12.8", (2, 27, 3)
"""Assumed: of the torch that would run there. They decide no byte."""
KIB = 1024
LIMITS = {
    (7, 0): (2048, 96, 96),
    (7, 5): (1024, 64, 64),
    (8, 0): (2048, 164, 163),
    (8, 6): (1536, 100, 99),
    (8, 9): (1536, 100, 99),
    (9, 0): (2048, 228, 227),
    (10, 0): (2048, 228, 227),
    (12, 0): (1536, 100, 99),
}
"""Threads of a multiprocessor, and KiB of shared memory of one and of a block, by compute capability (CUDA C++
Programming Guide, table of technical specifications)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The card of one rank, and how many of them its node has."""

    name: str
    compute_capability: tuple[int, int]
    total_bytes: int
    count: int
    index: int
    num_multiprocessors: int | None = None


def card_from_json(values: Mapping[str, Any] | None, *, index: int, count: int) -> Card | None:
    """The card of a request, the ``index``-th of ``count`` in its node; None for a CPU."""
    if values is None:
        return None
    return Card(**{**values, "compute_capability": tuple(values["compute_capability"])}, index=index, count=count)


def answer_as(card: Card, ledger: Ledger) -> None:
    """``torch.cuda`` and ``torch.accelerator`` answer as on a machine with ``card``, for as long as the process
    runs."""
    answers = {**_constant_answers(card), **_memory_answers(card, ledger), **_stream_answers(card)}
    for part in MODULES:
        module = getattr(torch.cuda, part) if part else torch.cuda
        for name, answer in answers.items():
            if hasattr(module, name):
                setattr(module, name, answer)
    for module in (torch.accelerator, torch.accelerator.memory):
        for name, answer in (answers | _accelerator_answers(card, answers)).items():
            if hasattr(module, name):
                setattr(module, name, answer)
    torch._C._get_accelerator = _always(torch.device("cuda"))
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = torch.cuda.nvtx.mark = _nothing
    nccl.version = _always(NCCL_VERSION)
    torch.version.cuda = CUDA_VERSION
    # autocast asks this module of its own
    torch.cuda.amp.common.amp_definitely_not_available = _always(False)  # pyright: ignore[reportAttributeAccessIssue]


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


_nothing = _always(None)


def _properties(card: Card) -> SimpleNamespace:
    """What is not known of a card is not there, as in a torch that does not tell it."""
    major, minor = card.compute_capability
    found = SimpleNamespace(
        name=card.name,
        major=major,
        minor=minor,
        total_memory=card.total_bytes,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        warp_size=32,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 * KIB,
    )
    if card.num_multiprocessors is not None:
        found.multi_processor_count = card.num_multiprocessors
    limits = LIMITS.get(card.compute_capability)
    if limits is not None:
        threads, of_multiprocessor, of_block = limits
        found.max_threads_per_multi_processor = threads
        found.shared_memory_per_multiprocessor = of_multiprocessor * KIB
        found.shared_memory_per_block_optin = of_block * KIB
    return found


DONE_ALREADY = tuple(
    """_lazy_init init set_device synchronize ipc_collect set_sync_debug_mode manual_seed manual_seed_all seed seed_all
    set_rng_state set_rng_state_all""".split()
)
"""Functions of ``torch.cuda`` that have nothing to do without a card."""
IDLE = ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "initial_seed")
"""Those that return 0."""


def _constant_answers(card: Card) -> dict[str, Any]:
    major, minor = card.compute_capability
    return {
        **dict.fromkeys(DONE_ALREADY, _nothing),
        **dict.fromkeys(("is_available", "is_initialized", "can_device_access_peer"), _always(True)),
        **dict.fromkeys(IDLE, _always(0)),
        "device_count": _always(card.count),
        "current_device": _always(card.index),
        "get_device_name": _always(card.name),
        "get_device_capability": _always(card.compute_capability),
        "get_device_properties": _always(_properties(card)),
        "get_arch_list": _always([f"sm_{major}{minor}"]),
        "is_bf16_supported": lambda including_emulation=True: including_emulation or card.compute_capability >= (8, 0),
        "is_tf32_supported": _always(card.compute_capability >= (8, 0)),
        "is_current_stream_capturing": _always(False),
        "_lazy_call": lambda call, **kwargs: call(),
        "get_rng_state": lambda device=None: torch.empty(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.empty(16, dtype=torch.uint8)],
    }


def _accelerator_answers(card: Card, answers: dict[str, Any]) -> dict[str, Any]:
    """What ``torch.accelerator`` has under other names."""
    return {
        "current_device_index": answers["current_device"],
        "current_device_idx": answers["current_device"],
        "set_device_index": _nothing,
        "set_device_idx": _nothing,
        "device_index": NoDeviceChange,
        "get_memory_info": answers["mem_get_info"],
        "get_device_capability": _always({"supported_dtypes": set()}),
    }


def _memory_answers(card: Card, ledger: Ledger) -> dict[str, Any]:
    def live(*args: Any, **kwargs: Any) -> int:
        return ledger.device.live_bytes

    def peak(*args: Any, **kwargs: Any) -> int:
        return ledger.device.peak_since_reset_bytes

    def reset_peak(*args: Any, **kwargs: Any) -> None:
        ledger.device.peak_since_reset_bytes = live()

    def stats(*args: Any, **kwargs: Any) -> dict[str, int]:
        """What was counted of a kind; what is not counted, as retries of the allocator, is 0."""
        found = {"current": live(), "peak": peak()}
        kinds = ("allocated_bytes", "reserved_bytes", "active_bytes")
        counted = {f"{kind}.all.{when}": value for kind in kinds for when, value in found.items()}
        return counted | dict.fromkeys(("num_alloc_retries", "num_ooms"), 0)

    def empty_cache() -> None:
        ledger.device.events.append(CACHE_EMPTIED)

    return {
        "memory_allocated": live,
        "memory_reserved": live,
        "memory_cached": live,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "max_memory_cached": peak,
        "memory_stats": stats,
        "memory_summary": _always(""),
        "memory_snapshot": _always([]),
        "mem_get_info": lambda device=None: (card.total_bytes - live(), card.total_bytes),
        "empty_cache": empty_cache,
        # the peaks of the rehearsal's phases are its own
        "reset_peak_memory_stats": reset_peak,
        "reset_max_memory_allocated": reset_peak,
        "reset_max_memory_cached": reset_peak,
        "reset_accumulated_memory_stats": _nothing,
        "set_per_process_memory_fraction": _nothing,
        "_record_memory_history": _nothing,
        "_dump_snapshot": _nothing,
    }


class NoDeviceChange:
    """``with torch.cuda.device(0)``: there is one card."""

    def __init__(self, *args: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: object) -> None:
        pass


def _stream_answers(card: Card) -> dict[str, Any]:
    return {
        "Stream": Stream,
        "Event": Event,
        "ExternalStream": Stream,
        "current_stream": lambda device=None: current(),
        "default_stream": _always(DEFAULT_STREAM),
        "set_stream": _nothing,
        "stream": lambda stream: stream if stream is not None else current(),
        "device": NoDeviceChange,
        "device_of": NoDeviceChange,
    }
