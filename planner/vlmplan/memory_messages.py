"""What is printed when memory runs out, read: by torch's allocators since 2.0, libraries, Ray and the system.

A leaf: the trainer reads its own errors with it, ``vlmplan diagnose`` the logs of others. Who prints what:

    torch 2.0           c10/cuda/CUDACachingAllocator.cpp   (GPU 0; 23.69 GiB total capacity; ... already allocated; ...
    torch 2.1           the same file                       GPU 0 has a total capacty of ... of which ... is free. ...
    later               the same file                       "capacity"; with CUDA graphs "... in private pools"
    cudaMallocAsync     c10/cuda/CUDAMallocAsyncAllocator.cpp
    XPU, MPS            c10/xpu/XPUCachingAllocator.cpp, aten/src/ATen/mps/MPSAllocator.mm
    host                c10/core/impl/alloc_cpu.cpp; numpy's _ArrayMemoryError; Python's MemoryError; errno 12

HIP builds print what CUDA builds do, with HIP in its place; those of other vendors keep the form with a name of theirs.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from vlmplan.plain_text import one_line
from vlmplan.units import GIB

UNITS = {"byte": 1, "bytes": 1, "KiB": 2**10, "KB": 2**10, "MiB": 2**20, "MB": 2**20, "GiB": 2**30, "GB": 2**30}
"""As ``format_size`` of torch's allocators writes them; that of MPS calls 2**30 bytes a GB (MPSAllocator.mm). One byte
is as the bundled trainer has it."""
SIZE = r"([0-9]{1,12}(?:\.[0-9]{1,4})?)\s{1,4}(bytes?|[KMG]i?B)"
MOST_BYTES = 2**53
"""What no memory has. Where the driver cannot tell, torch prints 2**64 - 1 bytes: 17179869184.00 GiB."""
WINDOW_CHARACTERS = 4000
"""Of a message: with twenty other processes on the GPU, torch's has 1,500."""
MAX_MESSAGES = 256
"""Of one form that are looked at, the last ones of a log. A choice."""

MAX_MARKS = 4096
"""Places that are looked at for one form: its mark may be in other words. A choice."""
MAX_LINE_CHARACTERS = 10_000
"""Of a line before a message. A choice: JSON logs have whole tracebacks in one."""
OWN = "vlmplan's trainer"
CUDA_CALL = "CUDA"
"""Of a form: a call of CUDA itself, whose error torch passes on (``C10_CUDA_CHECK``)."""
HANDLE = "cuBLAS's handle"
"""Of a form: cuBLAS could not be initialised, for want of memory most often, but not always."""


class Kind(Enum):
    """The device or library whose memory it was, as far as the message says."""

    DEVICE = "device"
    """The GPU's, asked of torch's allocator or of the driver."""
    CUDA_LIBRARY = "library"
    """The GPU's, asked by cuBLAS, cuDNN, NCCL or bitsandbytes, beside torch's allocator."""
    HOST = "host"
    SHARED_MEMORY = "shared_memory"
    """That through which data loading workers hand over samples, ``shm``."""
    DISK = "disk"
    KILLED = "killed"
    """A process got SIGKILL, which is what the system does when the host's memory is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMessage:
    """One message. ``start`` and ``end`` are where it stands in the text; None is what it does not say.

    ``reserved_bytes`` is all that torch's allocator holds, what is allocated included. ``processes`` are (pid, bytes)
    of those on the GPU that are not known to be this one: in a container, where pids differ, it is among them.
    """

    kind: Kind
    form: str
    text: str
    start: int
    end: int
    backend: str | None = None
    device: int | None = None
    requested_bytes: int | None = None
    requested_rounding_bytes: int = 0
    """Half of the last digit that is printed of it."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    private_pool_bytes: int | None = None
    reserved_bytes: int | None = None
    allowed_bytes: int | None = None
    in_use_bytes: int | None = None
    processes: tuple[tuple[int, int], ...] = ()
    phase: str | None = None
    """Of a plan, by vlmplan's own trainer, which names ``step`` and ``rank`` too."""
    step: int | None = None
    rank: int | None = None

    @property
    def is_sure(self) -> bool:
        """Whether it says that an allocation failed, on a GPU or the host; others may have other reasons."""
        return self.kind in (Kind.DEVICE, Kind.CUDA_LIBRARY, Kind.HOST) and self.form != HANDLE

    @property
    def is_on_host(self) -> bool:
        return self.kind in (Kind.HOST, Kind.KILLED, Kind.SHARED_MEMORY)

    @property
    def unallocated_bytes(self) -> int | None:
        """What the allocator holds and no tensor uses."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.allocated_bytes)

    @property
    def num_details(self) -> int:
        """How many sizes it says: two ranks' messages may be one form with and without."""
        sizes = (self.requested_bytes, self.total_bytes, self.free_bytes, self.allocated_bytes, self.reserved_bytes)
        return sum(size is not None for size in sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """``mark`` is a text that every such message has; ``pattern`` matches from it on, or from ``before`` it at most."""

    name: str
    kind: Kind
    mark: str
    pattern: re.Pattern[str]
    before: int = 0


def _form(name: str, kind: Kind, mark: str, pattern: str | None = None, before: int = 0) -> _Form:
    return _Form(name=name, kind=kind, mark=mark, pattern=re.compile(pattern or re.escape(mark)), before=before)


_OUT = r"(?:(CUDA|HIP|XPU|MPS|NPU|MLU|MUSA|GCU)(?: backend)?\s{1,4})?[Oo]ut\s{1,4}of\s{1,4}memory"
_ALLOCATOR = (
    rf"{_OUT}(?:\s?\([^()]{{1,200}}\))?\.\s{{1,4}}(?:\w{{1,40}} )?[Tt]ried\s{{1,4}}to\s{{1,4}}allocate\s{{1,4}}{SIZE}"
)
_OWN = (
    rf"(host )?memory ran out (?:in (\w+)(?: of step (\d+))?|between the phases of the plan) on rank (\d+): "
    rf"(?:planned {SIZE}, )?actual (?:unknown|{SIZE})(?: and {SIZE} more asked for)?(?:; {SIZE} were free of {SIZE})?"
)
"""``Shortage.sentence`` in ``shortage``."""
_KILLED_PROCESS = r"Out of memory: Killed process (\d+) \([^)]{1,40}\)(?:.{0,200}?anon-rss:(\d{1,15})kB)?"
_RAY = r"Memory on the node (?:.{1,400}? )?was ([0-9]{1,9}\.[0-9]{1,4})GB / ([0-9]{1,9}\.[0-9]{1,4})GB"
FORMS: tuple[_Form, ...] = (
    _form(OWN, Kind.DEVICE, "memory ran out ", _OWN, 5),
    _form("torch's allocator", Kind.DEVICE, "ried", _ALLOCATOR, 300),
    _form(
        "torch's cudaMallocAsync backend", Kind.DEVICE, "Allocation on device", r"Allocation on device \d+ would exceed"
    ),
    _form(
        "torch's allocator, without sizes", Kind.DEVICE, "of memory", r"OutOfMemoryError: .{0,20}[Oo]ut of memory", 60
    ),
    _form(CUDA_CALL, Kind.DEVICE, "error: out of memory", r"\b(?:CUDA|HIP|XPU)(?: driver)? error: out of memory", 12),
    _form(CUDA_CALL, Kind.DEVICE, "cudaErrorMemoryAllocation", r"(?<!`)cudaErrorMemoryAllocation", 1),
    _form("XPU's driver", Kind.DEVICE, "ERROR_OUT_OF_DEVICE_MEMORY"),
    _form(
        "torch, without sizes",
        Kind.DEVICE,
        "out of memory",
        r"\b(?:CUDA|HIP|XPU|MPS backend) out of memory",
        12,
    ),
    _form("cuBLAS", Kind.CUDA_LIBRARY, "CUBLAS_STATUS_ALLOC_FAILED"),
    _form(HANDLE, Kind.CUDA_LIBRARY, "CUBLAS_STATUS_NOT_INITIALIZED"),
    _form("cuDNN", Kind.CUDA_LIBRARY, "CUDNN_STATUS_ALLOC_FAILED"),
    _form("NCCL", Kind.CUDA_LIBRARY, "Cuda failure", r"Cuda failure (?:2 )?'out of memory'"),
    _form("NCCL", Kind.CUDA_LIBRARY, "Failed to CUDA", r"Failed to CUDA [mc]alloc"),
    _form("bitsandbytes", Kind.CUDA_LIBRARY, "Error out of memory at line"),
    _form(
        "torch's CPU allocator", Kind.HOST, "CPUAllocator", r"CPUAllocator: (?:can't allocate memory|not enough memory)"
    ),
    _form("numpy", Kind.HOST, "Unable to allocate", rf"Unable to allocate {SIZE} for an array"),
    _form("the system", Kind.HOST, "Cannot allocate memory"),
    _form("C++", Kind.HOST, "std::bad_alloc"),
    _form("Python", Kind.HOST, "MemoryError", r"(?m)(?<![\w.])MemoryError(?::|\s*$)", 1),
    _form("Ray", Kind.HOST, "Memory on the node", _RAY),
    _form("the system's log", Kind.HOST, "Out of memory: Killed", _KILLED_PROCESS),
    _form("Slurm or cgroups", Kind.HOST, "oom", r"oom[_-]kill|OOMKilled", 0),
    _form("Kubernetes", Kind.HOST, "OOMKilled"),
    _form("data loading workers", Kind.SHARED_MEMORY, "insufficient shared memory"),
    _form("data loading workers", Kind.SHARED_MEMORY, "killed by signal: Bus error"),
    _form("data loading workers", Kind.SHARED_MEMORY, "unable to write to file </torch_"),
    _form("data loading workers", Kind.HOST, "killed by signal: Killed"),
    _form("the file system", Kind.DISK, "No space left on device"),
    _form("the file system", Kind.DISK, "Disk quota exceeded"),
    _form("the launcher", Kind.KILLED, "-9", r"(?:exitcode\s{0,8}: |return code = |exit code:? ?)-9\b", 24),
    _form("the launcher", Kind.KILLED, "SIGKILL", r"(?:Signals\.SIGKILL: 9|[Ss]ignal 9 \(SIGKILL\))", 12),
    _form("the launcher", Kind.KILLED, "exit code 137"),
    _form("the launcher", Kind.KILLED, "exit status 137"),
    _form(
        "the shell", Kind.KILLED, "Killed", r"(?m)^(?:.{0,200}?line \d+:\s+\d+ |\[\d+\]\s+\d+ )?Killed\b(?:\s|$)", 240
    ),
    _form("the launcher", Kind.SHARED_MEMORY, "-7", r"(?:exitcode\s{0,8}: |return code = |exit code:? ?)-7\b", 24),
)
"""Forms, the more telling first: where two match the same place, the first counts."""
LOOKED_FOR = (
    "messages of torch's allocators (CUDA, HIP, XPU, MPS, CPU), of cuBLAS, cuDNN and NCCL, of a full host, /dev/shm or "
    "disk, and of a process that was killed (-9)"
)
"""What a text without any of them is told to lack."""
_OLD_FORM = re.compile(r"\((?:GPU|NPU|MLU|XPU|[A-Z]{2,6}) (\d{1,4}); ")
_NEW_DEVICE = re.compile(r"\b(?:GPU|NPU|MLU|Device) (\d{1,4}) has a total capac")
_PROCESS = re.compile(rf"Process (\d{{1,10}}) has {SIZE} memory in use")
_REQUESTED_ON_HOST = re.compile(r"tried to allocate (\d{1,20}) bytes")
_FIELDS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(text.replace("SIZE", SIZE))
    for name, text in {
        "total_bytes": r"(?:total capaci?ty of SIZE|; SIZE total capacity|\(GPU \d+; SIZE total|Device limit\s*: SIZE)",
        "free_bytes": r"(?:of which SIZE is free|; SIZE free; |Free \(according to CUDA\)\s*: SIZE)",
        "allocated_bytes": r"(?:memory SIZE is allocated by PyTorch|; SIZE already allocated"
        r"|Currently allocated\s*: SIZE|MPS allocated: SIZE)",
        "private_pool_bytes": r"with SIZE allocated in private pools",
        "unallocated_bytes": r"and SIZE is reserved by PyTorch but unallocated",
        "reserved_bytes": r"; SIZE reserved in total by PyTorch",
        "allowed_bytes": r"(?:SIZE allowed; |max allowed: SIZE|memory fraction\)\s*: SIZE)",
        "in_use_bytes": r"this process has SIZE memory in use",
    }.items()
}


def bytes_of(number: str, unit: str) -> int:
    """The bytes of a size as it is printed.

    >>> bytes_of("1.50", "GiB")
    1610612736
    """
    return round(float(number) * UNITS[unit])


def requested_bytes(message: str) -> int | None:
    """The bytes that could not be had, where the message says so.

    >>> requested_bytes("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has ...")
    1610612736
    >>> requested_bytes("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12")
    4096
    """
    found = messages_in(message)
    return found[0].requested_bytes if found else None


def messages_in(text: str) -> list[MemoryMessage]:
    """Every message, in order; of each form the last ``MAX_MESSAGES``. A line counts as its most telling form alone.

    ``text`` has no colours and only ``\\n`` for line breaks.
    """
    form_of_line: dict[int, str] = {}
    found: list[MemoryMessage] = []
    for form in FORMS:
        for match in _matches(form, text):
            line = line_start(text, match.start())
            if form_of_line.setdefault(line, form.name) == form.name:
                found.append(
                    MemoryMessage(kind=form.kind, form=form.name, text="", start=match.start(), end=match.end())
                )
    return list(_with_details(sorted(found, key=lambda message: message.start), text))


def _matches(form: _Form, text: str) -> Iterator[re.Match[str]]:
    """The matches, the last first; the search by a literal is what makes a long log quick."""
    at, last_start, count = len(text), len(text) + 1, 0
    for _ in range(MAX_MARKS):
        at = text.rfind(form.mark, 0, at)
        if at < 0 or count == MAX_MESSAGES:
            return
        end = at + WINDOW_CHARACTERS
        before = max(0, at - form.before)
        match = form.pattern.search(text, before, end) if form.before else form.pattern.match(text, at, end)
        if match is not None and match.start() <= at < match.end() and match.start() < last_start:
            last_start, count = match.start(), count + 1
            yield match


def line_start(text: str, at: int, *, most: int = MAX_LINE_CHARACTERS) -> int:
    """The position at which the line of a place begins, or the last ``most`` characters of it before that place do."""
    least = max(0, at - most)
    return max(text.rfind("\n", least, at) + 1, least)


def _with_details(found: list[MemoryMessage], text: str) -> Iterator[MemoryMessage]:
    """The messages with what each says between itself and the next one."""
    ends = [message.start for message in found[1:]] + [len(text)]
    for message, end in zip(found, ends, strict=False):
        yield _detailed(message, text[message.start : min(end, message.start + WINDOW_CHARACTERS)])


def _detailed(message: MemoryMessage, window: str) -> MemoryMessage:
    if message.form == OWN:
        return _of_own(message, window)
    first, _, rest = window.partition("\n")
    words = one_line(window if message.kind is Kind.DEVICE else first)
    text = one_line(first) if message.kind is not Kind.DEVICE or not _goes_on(first, rest) else words
    sizes: dict[str, Any] = {name: _size(pattern, words) for name, pattern in _FIELDS.items()}
    requested, rounding = _requested(message, words)
    unallocated, reserved, allocated = (
        sizes.pop("unallocated_bytes"),
        sizes.pop("reserved_bytes"),
        sizes["allocated_bytes"],
    )
    if reserved is None and unallocated is not None and allocated is not None:
        reserved = allocated + unallocated
    device = _OLD_FORM.search(words) or _NEW_DEVICE.search(words) or re.match(r"Allocation on device (\d+)", words)
    backend = re.match(_OUT, words)
    processes = [(int(pid), bytes_of(number, unit)) for pid, number, unit in _PROCESS.findall(words)]
    sizes.update(_host_sizes(message, words))
    return MemoryMessage(
        kind=message.kind,
        form=message.form,
        text=text[:1000],
        start=message.start,
        end=message.start + len(first),
        backend=backend[1] if backend else None,
        device=int(device[1]) if device else None,
        requested_bytes=requested,
        requested_rounding_bytes=rounding,
        reserved_bytes=reserved,
        processes=tuple(process for process in processes if process[1] < MOST_BYTES),
        **sizes,
    )


def _of_own(message: MemoryMessage, window: str) -> MemoryMessage:
    """What a rank of the bundled trainer says; the sizes are all that it has."""
    match = re.match(_OWN, window)
    assert match is not None
    host, *parts = match.groups()
    sizes = [bytes_of(parts[at], parts[at + 1]) if parts[at] else None for at in range(3, 13, 2)]
    _, allocated, requested, free, total = sizes
    return replace(
        message,
        kind=Kind.DEVICE if host is None else Kind.HOST,
        text=one_line(match[0]),
        requested_bytes=requested,
        requested_rounding_bytes=0 if requested is None else GIB // 200,
        allocated_bytes=allocated,
        free_bytes=free,
        total_bytes=total,
        phase=parts[0],
        step=None if parts[1] is None else int(parts[1]),
        rank=int(parts[2]),
    )


def _goes_on(first: str, rest: str) -> bool:
    """Whether a message is wrapped, or of several lines: what torch's says at the end is not in its first."""
    return bool(rest) and "PyTorch" not in first


def _size(pattern: re.Pattern[str], words: str) -> int | None:
    match = pattern.search(words)
    if match is None:
        return None
    number, unit = (part for part in match.groups() if part is not None)
    found = bytes_of(number, unit)
    return found if found < MOST_BYTES else None


def _requested(message: MemoryMessage, words: str) -> tuple[int | None, int]:
    """The bytes and half of their last digit."""
    on_host = _REQUESTED_ON_HOST.search(words) if message.kind is Kind.HOST else None
    if on_host is not None:
        return int(on_host[1]), 0
    match = re.search(rf"(?:[Tt]ried to allocate|Unable to allocate|Requested\s*:) {SIZE}", words)
    if match is None:
        return None, 0
    digits = len(match[1].partition(".")[2])
    return bytes_of(match[1], match[2]), round(UNITS[match[2]] / 10**digits / 2)


def _host_sizes(message: MemoryMessage, words: str) -> dict[str, int | None]:
    """What Ray and the kernel say of the host. Ray divides by 2**30 too (``memory_monitor.cc``)."""
    ray = re.search(_RAY, words) if message.form == "Ray" else None
    if ray is not None:
        return {"in_use_bytes": bytes_of(ray[1], "GB"), "total_bytes": bytes_of(ray[2], "GB")}
    killed = re.search(_KILLED_PROCESS, words) if message.form == "the system's log" else None
    return {"in_use_bytes": int(killed[2]) * 2**10} if killed is not None and killed[2] else {}
