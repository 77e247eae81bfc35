"""Which of the frames that a video has are taken: evenly spread places, rounded as transformers' processors round.

A leaf; ``frame_rules`` says how many there are of each.
"""

import struct
from collections.abc import Sequence
from math import floor


def evenly(indices: list[int], most: int | None) -> list[int]:
    """Evenly chosen, at most ``most`` of the indices, the first and the last among them."""
    if most is None or len(indices) <= most:
        return indices
    if most == 1:
        return indices[:1]
    return [indices[round(place * (len(indices) - 1) / (most - 1))] for place in range(most)]


def even(num_frames: int) -> int:
    """The last frame comes twice where they are odd."""
    return num_frames + num_frames % 2


def once_and_even(indices: Sequence[int]) -> list[int]:
    found = list(dict.fromkeys(indices))
    return found + found[-1:] * (len(found) % 2)


def in_spans(total: int, number: int, frames_per_second: float, *, span: float, end: float) -> list[int]:
    """The first frame in each span of so many seconds before ``end``, spread anew where those are too many or too few
    (``sample_frames`` of ``Glm46VVideoProcessor`` and ``GlmgaVideoProcessor``)."""
    found, due, frame_seconds = list[int](), 0.0, 1 / frames_per_second
    for index in range(total):
        if index * frame_seconds >= due:
            due += span
            found.append(index)
            if due >= end:
                break
    if len(found) < number:
        return spread(found[0], found[-1], number)
    return found if len(found) == number else spread(0, total - 1, number)


def steps(total: int, number: int, *, first: float = 0.0) -> list[int]:
    """``torch.arange(first, total, total / number).int()``, whose elements are in single precision."""
    if not number:
        return []
    step = total / number
    return [min(total - 1, int(_single(first + place * step))) for place in range(number)]


def _single(value: float) -> float:
    [rounded] = struct.unpack("<f", struct.pack("<f", value))
    return rounded


def linear(total: int, number: int) -> list[int]:
    """``np.linspace(0, total - 1, number).round()``."""
    if number < 2:
        return [0] * number
    step = (total - 1) / (number - 1)
    return [*(round(place * step) for place in range(number - 1)), total - 1]


def spread(first: int, last: int, number: int) -> list[int]:
    """``np.linspace(first, last, number, dtype=int)``."""
    if number < 2:
        return [first] * number
    step = (last - first) / (number - 1)
    return [*(floor(place * step + first) for place in range(number - 1)), last]
