"""Memory by phase as a picture: bars of components on one scale with the card's limit, its reserve, and round ticks; an
SVG that stands still, of what the page's chart is drawn of.
"""

from collections.abc import Iterator, Mapping

from vlmplan.engines.components import Components
from vlmplan.files.json_reader import JsonDict
from vlmplan.render.picture import WIDTH, markup, round_ticks
from vlmplan.units import GIB, gib_text

ROW, BAR = 30, 18
LEFT, RIGHT, TOP, BOTTOM = 72, 84, 26, 26
NUM_TICKS = 8
COMPONENTS = frozenset(Components().as_json())


def memory_picture(answer: JsonDict) -> str:
    """The picture as an element; ``answer`` is ``drawn`` with its ``document``."""
    document = answer["document"]
    rows = _rows(answer)
    limit, reserve = document["gpu"]["usable_bytes"], document["reserve_bytes"]
    end = 1.03 * max(limit, *(sum(parts.values()) for parts in rows.values()))
    height = TOP + ROW * len(rows) + BOTTOM
    inside = [*_grid(end, height), *_bars(rows, end), *_limit(limit, reserve, end, height)]
    about = f"Bars of memory: {answer['verdict']}"
    lines = "\n".join(inside)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" class="picture">\n<title>{markup(about)}</title>\n{lines}\n</svg>'
    )


def _rows(answer: JsonDict) -> dict[str, dict[str, int]]:
    """The components of every phase at its peak; ``device`` is the highest of them with what is beside tensors."""
    rows = {phase["name"]: phase["components"] for phase in answer["phases"]}
    return rows | {"device": rows[answer["document"]["peak_phase"]] | answer["beyond"]}


def _x(num_bytes: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * num_bytes / end


def _grid(end: float, height: int) -> Iterator[str]:
    bottom = height - BOTTOM
    for tick in round_ticks(end / GIB, NUM_TICKS):
        x = _x(tick * GIB, end)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{bottom}" class="grid"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" class="tick" text-anchor="middle">{tick:g}</text>'
    yield f'<text x="{WIDTH - 2}" y="{bottom + 16}" class="tick" text-anchor="end">GiB</text>'


def _bars(rows: Mapping[str, Mapping[str, int]], end: float) -> Iterator[str]:
    for place, (name, parts) in enumerate(rows.items()):
        y, before = TOP + ROW * place, 0
        yield f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{markup(name)}</text>'
        for component, num_bytes in parts.items():
            if num_bytes:
                x, width = _x(before, end), _x(num_bytes, end) - LEFT
                style = component if component in COMPONENTS else "beyond"
                about = f"{name}: {component.replace('_', ' ')} {gib_text(num_bytes)}"
                yield (
                    f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="{BAR}" class="part {style}">'
                    f"<title>{markup(about)}</title></rect>"
                )
                before += num_bytes
        yield f'<text x="{WIDTH - 4}" y="{y + 17}" text-anchor="end">{gib_text(before)}</text>'


def _limit(limit: int, reserve: int, end: float, height: int) -> Iterator[str]:
    start, x, bottom = _x(limit - reserve, end), _x(limit, end), height - BOTTOM
    text = f"{gib_text(limit)} usable, {gib_text(reserve)} of it reserve"
    anchor = "end" if x > WIDTH / 2 else "start"
    yield f'<rect x="{start:.1f}" y="{TOP - 4}" width="{x - start:.1f}" height="{bottom - TOP + 4}" class="reserve"/>'
    yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 10}" y2="{bottom}" class="limit"/>'
    yield f'<text x="{x:.1f}" y="{TOP - 13}" text-anchor="{anchor}">{text}</text>'
