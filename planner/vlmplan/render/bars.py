"""Stacked bars of memory: one cell is a fixed number of bytes, one letter or colour a component."""

import sys
from collections.abc import Mapping, Sequence

import click

LETTERS: Mapping[str, str] = {
    "weights": "W",
    "gradients": "G",
    "optimizer_states": "O",
    "activations": "A",
    "logits": "L",
    "communication_buffers": "C",
    "temporaries": "T",
}
COLOURS: Mapping[str, str] = {
    "weights": "blue",
    "gradients": "yellow",
    "optimizer_states": "green",
    "activations": "red",
    "logits": "magenta",
    "communication_buffers": "cyan",
    "temporaries": "white",
}


def segments(parts: Mapping[str, int], bytes_per_cell: float) -> list[tuple[str, int]]:
    """(component, cells) in order; ends are rounded, not lengths, so that the whole bar has the length of the sum.

    >>> segments({"weights": 10, "gradients": 25}, 10)
    [('weights', 1), ('gradients', 3)]
    """
    result: list[tuple[str, int]] = []
    total, drawn = 0, 0
    for name, num_bytes in parts.items():
        total += num_bytes
        end = int(total / bytes_per_cell + 0.5)
        if end > drawn:
            result.append((name, end - drawn))
            drawn = end
    return result


def bar(parts: Mapping[str, int], *, limit_bytes: int, bytes_per_cell: float) -> str:
    """The bar as text, with ``|`` where ``limit_bytes`` ends; in colour when a person looks at it."""
    is_coloured = sys.stdout.isatty()
    drawn = "".join(_cells(name, count, is_coloured) for name, count in segments(parts, bytes_per_cell))
    length = sum(count for _, count in segments(parts, bytes_per_cell))
    limit = int(limit_bytes / bytes_per_cell + 0.5)
    return drawn + ("." * (limit - length) + "|" if length <= limit else "")


def legend(names: Sequence[str]) -> str:
    """What the letters or colours mean."""
    is_coloured = sys.stdout.isatty()
    return "  ".join(f"{_cells(name, 1, is_coloured)} {name.replace('_', ' ')}" for name in names)


def _cells(name: str, count: int, is_coloured: bool) -> str:
    return click.style("█" * count, fg=COLOURS[name]) if is_coloured else LETTERS[name] * count
