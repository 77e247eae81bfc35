"""What this machine has besides GPUs, from the operating system."""

import os
import shutil
import sys
from pathlib import Path

from vlmplan.errors import UnavailableError

THIS_MACHINE = "this machine"
"""Whose host memory it is, in words."""
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def host_ram_bytes() -> int:
    """RAM of this machine, or of the container it is seen from if that is less.

    Raises UnavailableError where the operating system does not say.
    """
    installed = _windows_ram_bytes() if sys.platform == "win32" else _posix_ram_bytes()
    if installed is None:
        raise UnavailableError("this operating system does not say how much RAM the machine has")
    return min([installed, *_cgroup_limit_bytes()])


def free_bytes_at(folder: Path) -> int | None:
    """Free bytes of the drive that ``folder`` is or would be on; None where it cannot be asked."""
    folder = Path(os.path.abspath(folder))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def num_host_cpus() -> int | None:
    """Logical CPUs that this process may use; ``None`` where the operating system does not say."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _posix_ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _cgroup_limit_bytes() -> list[int]:
    """A container's limit, by control groups 2 or 1; no limit is written as ``max`` or an absurd number."""
    limits: list[int] = []
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return [limit for limit in limits if limit > 0]


def _windows_ram_bytes() -> int | None:
    import ctypes

    class MemoryStatus(ctypes.Structure):
        """MEMORYSTATUSEX of sysinfoapi.h."""

        _fields_ = (
            ("length", ctypes.c_ulong),
            ("memory_load", ctypes.c_ulong),
            ("total_physical", ctypes.c_ulonglong),
            ("rest", ctypes.c_ulonglong * 6),
        )

    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - the attribute exists on Windows only
    return int(status.total_physical) if kernel.GlobalMemoryStatusEx(ctypes.byref(status)) else None
