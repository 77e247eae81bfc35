"""Stacked bars of memory: one cell is a fixed number of bytes, one letter or colour a component."""

from collections.abc import Mapping, Sequence

import click

from vlmplan.render.tables import shows_colour

LETTERS: Mapping[str, str] = {
    "weights": "W",
    "gradients": "G",
    "optimizer_states": "O",
    "activations": "A",
    "logits": "L",
    "communication_buffers": "C",
    "temporaries": "T",
    "inference_engine": "V",
}
COLOURS: Mapping[str, str] = {
    "weights": "blue",
    "gradients": "yellow",
    "optimizer_states": "green",
    "activations": "red",
    "logits": "magenta",
    "communication_buffers": "cyan",
    "temporaries": "white",
    "inference_engine": "bright_blue",
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
    is_coloured = shows_colour()
    limit = int(limit_bytes / bytes_per_cell + 0.5)
    text, length = "", 0
    for name, count in segments(parts, bytes_per_cell):
        inside = max(0, min(count, limit - length))
        mark = "|" if inside < count and length <= limit else ""
        text += _cells(name, inside, is_coloured) + mark + _cells(name, count - inside, is_coloured)
        length += count
    return text + ("." * (limit - length) + "|" if length <= limit else "")


def legend(names: Sequence[str], width: int) -> str:
    """What the letters or colours mean, in lines of at most ``width`` columns."""
    is_coloured = shows_colour()
    lines: list[list[str]] = [[]]
    used = 0
    for name in names:
        needed = len("W ") + len(name) + len("  ")
        if used + needed - len("  ") > width:
            lines.append([])
            used = 0
        lines[-1].append(f"{_cells(name, 1, is_coloured)} {name.replace('_', ' ')}")
        used += needed
    return "\n".join("  ".join(line) for line in lines)


def _cells(name: str, count: int, is_coloured: bool) -> str:
    return click.style("█" * count, fg=COLOURS[name]) if is_coloured and count else LETTERS[name] * count
