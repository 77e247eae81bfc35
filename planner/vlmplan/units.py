"""Units and number formats. A leaf: imports nothing of vlmplan.

Inside vlmplan every byte count is an ``int`` of bytes, every time is in seconds and every price in usd.
GiB (2**30) appears only where text is made; GB (10**9) never does, because the field mixes the two up.
"""

from enum import Enum
from math import isqrt

KIB = 2**10
MIB = 2**20
GIB = 2**30
SECONDS_PER_HOUR = 3600
MAX_COUNT = 10**9
"""More tokens, samples a step, ranks or nodes than this are a slip, and beyond the floats that follow from them."""

MAX_AMOUNT = 10**12
"""More usd, hours or watts than this are a slip too."""


class Choice(Enum):
    """An enumeration whose members hash as the single objects they are, in C; Enum hashes their names, in Python."""

    __hash__ = object.__hash__


class DType(Choice):
    """Element types of tensors, with their width. The names are torch's."""

    FLOAT32 = ("float32", 4, True)
    BFLOAT16 = ("bfloat16", 2, True)
    FLOAT16 = ("float16", 2, True)
    INT64 = ("int64", 8, False)
    INT32 = ("int32", 4, False)
    UINT8 = ("uint8", 1, False)
    BOOL = ("bool", 1, False)

    def __init__(self, torch_name: str, num_bytes: int, is_floating: bool) -> None:
        self.torch_name = torch_name
        self.num_bytes = num_bytes
        self.is_floating = is_floating


def counted(count: float, noun: str) -> str:
    """A count with its noun, in the plural where that is right.

    >>> counted(1, "sample"), counted(10000, "sample"), counted(0.5, "epoch")
    ('1 sample', '10,000 samples', '0.5 epochs')
    """
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun}" if count == 1 else f"{number} {noun}s"


def is_or_are(count: float) -> str:
    """The verb of a count: 1 sample is, 2 samples are."""
    return "is" if count == 1 else "are"


def gib_text(num_bytes: float, digits: int = 2) -> str:
    """``num_bytes`` as text in GiB, small values in MiB, KiB or bytes so that nothing reads as 0.00."""
    if abs(num_bytes) >= 0.01 * GIB:
        return f"{num_bytes / GIB:.{digits}f} GiB"
    if abs(num_bytes) >= 0.1 * MIB:
        return f"{num_bytes / MIB:.1f} MiB"
    if abs(num_bytes) >= 0.1 * KIB:
        return f"{num_bytes / KIB:.1f} KiB"
    return f"{num_bytes:.0f} byte{'s' if abs(round(num_bytes)) != 1 else ''}" if num_bytes else "0"


def size_text(size: tuple[int, int]) -> str:
    """Width and height as ``--image-size`` has them.

    >>> size_text((448, 224))
    '448x224'
    """
    return f"{size[0]}x{size[1]}"


def count_text(count: float) -> str:
    """A count of parameters or samples as text.

    >>> count_text(2_208_985_600), count_text(999_885_952), count_text(512)
    ('2.21 B', '1 B', '512')
    """
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= 0.9995 * limit:
            return f"{count / limit:.3g} {suffix}"
    return f"{count:.0f}"


def divisors(*factors: int) -> list[int]:
    """The divisors of the product of ``factors``, smallest first; looked for up to the root of each factor.

    >>> divisors(12), divisors(2, 6)
    ([1, 2, 3, 4, 6, 12], [1, 2, 3, 4, 6, 12])
    """
    found = {1}
    for factor in factors:
        lower = [size for size in range(1, isqrt(factor) + 1) if factor % size == 0]
        found = {one * other for one in found for size in lower for other in (size, factor // size)}
    return sorted(found)


def usd_text(usd: float) -> str:
    """A price as text: whole dollars from a thousand on, below ten cents with tenths of a cent.

    >>> usd_text(1234.5), usd_text(12.345), usd_text(0.0958), usd_text(0.0001), usd_text(0)
    ('$1,234', '$12.35', '$0.096', 'less than $0.001', '$0')
    """
    if usd >= 1000:
        return f"${usd:,.0f}"
    if usd >= 0.1:
        return f"${usd:.2f}"
    if usd >= 0.001:
        return f"${usd:.3f}"
    return "less than $0.001" if usd else "$0"


def duration_text(seconds: float) -> str:
    """A duration as text in the largest unit that reads well: ``41 min``, ``3.2 h``, ``2.5 days``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 2 * SECONDS_PER_HOUR:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * SECONDS_PER_HOUR:
        return f"{seconds / SECONDS_PER_HOUR:.1f} h"
    return f"{seconds / 86400:.1f} days"
