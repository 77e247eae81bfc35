"""Changes of samples that are known: limits on their length at percentiles of it, and fewer pixels of the largest."""

import math
from collections.abc import Sequence

from vlmplan.changes.change import Change
from vlmplan.data_plan import DataSource
from vlmplan.data_plan.lengths import limits_at

FEW, MANY = ((99, 1 / 2), (95, 1 / 4), (90, 1 / 8)), ((75, 1 / 16), (50, 1 / 32))
"""(percentile of lengths that the samples are cut at, part of the largest image's pixels), of levels that cut at most a
tenth of the samples and of others, which come last. A choice."""


def known_sample_changes(source: DataSource) -> Sequence[tuple[Change, ...]]:
    """A lower limit, smaller images, or both; what loses fewest samples first."""
    found: list[tuple[Change, ...]] = []
    last: list[tuple[Change, ...]] = []
    for level in (*FEW, *MANY):
        limit = next(iter(limits_at(source.trained.samples, level[:1])), None)
        cut = () if limit is None else (_cut(limit),)
        shrunk = (_shrunk(source, level[1]),) if source.dataset.has_pictures else ()
        for changes in (cut, shrunk, (*cut, *shrunk)) if cut and shrunk else (cut or shrunk,):
            loses_many = level in MANY and changes[:1] == cut
            (last if loses_many else found).append(changes)
    return [changes for changes in (*found, *last) if changes]


def _cut(limit: int) -> Change:
    return Change(name=f"samples of at most {limit:,} tokens", options={"seq_len": limit}, keeps_results=False)


def _shrunk(source: DataSource, fraction: float) -> Change:
    width, height = max((size for _, size in source.found.sizes), key=math.prod)
    sides = [max(1, int(side * math.sqrt(fraction))) for side in (width, height)]
    name = f"images of at most {math.prod(sides) / 1e6:.2f} megapixels"
    return Change(name=name, options={"image_size": f"{sides[0]}x{sides[1]}"}, keeps_results=False)
