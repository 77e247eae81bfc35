"""What would buy something: packing, samples of equal length together, a lower limit, smaller images; and the largest
micro batch, length and image that fit the card."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from vlmplan.chats.downscaling import Size
from vlmplan.data_plan.covering import Covering
from vlmplan.data_plan.data_run import MAX_COMPARED_SAMPLES, DataRun, DataRuns
from vlmplan.data_plan.lengths import LIMIT_MULTIPLE, limits_at, sample_shapes, trained
from vlmplan.data_plan.source import DataSource
from vlmplan.data_rules import Order
from vlmplan.dataset.images import limited
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, Estimator
from vlmplan.memory.device import Verdict, device_memory
from vlmplan.memory.overhead import process_group
from vlmplan.models import context_length

LIMIT_PERCENTILES = (99, 95, 90)
"""Of lengths, that lower limits are tried at. A choice."""
PIXEL_FRACTIONS = (0.5, 0.25)
"""Of the largest image's pixels. A choice."""
MOST_MICRO_BATCH, MOST_SEQ_LEN, MOST_SIDE = 4096, 2**20, 8192
"""Where the search for the largest ends."""
SIDE_STEP = 28
"""Pixels in which sides of images are tried: a token of Qwen2-VL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Another way to train on the samples. ``cut_fraction`` of them are cut or left out with it, ``shrunk_fraction`` of
    the images made smaller."""

    name: str
    data_run: DataRun
    cut_fraction: float = 0.0
    shrunk_fraction: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """Each alone, with everything else as planned; None where not even the smallest fits, or there are no images."""

    micro_batch: int | None
    seq_len: int | None
    image_size: Size | None


def data_options(runs: DataRuns, source: DataSource) -> list[Option]:
    """What else could be done with the samples; the same samples under other rules first."""
    options: list[Option] = []
    for name, make in (*_other_rules(source), *_lower_limits(source), *_smaller_images(source)):
        try:
            options.append(make(name, runs))
        except InputError:  # a limit below the images of every sample, say
            continue
    return options


_Make = Callable[[str, DataRuns], Option]


def _other_rules(source: DataSource) -> Iterator[tuple[str, _Make]]:
    kept, rules = source.trained, source.rules
    if rules.prefers or rules.has_labels:  # rows of tasks, which its trainer neither packs nor sorts here
        return
    if rules.order is not Order.BY_LENGTH and not rules.packs:
        grouped = replace(rules, order=Order.BY_LENGTH)
        yield "group by length", lambda name, make: Option(name=name, data_run=make.data_run(kept, grouped))
    shows_more = source.found.sizes or source.dataset.has_sounds or source.model.is_encoder_decoder
    if not rules.packs and not shows_more:  # rows of several images are packed by few trainers
        packed = replace(rules, packs=True)
        yield f"packing into {kept.limit:,}", lambda name, make: Option(name=name, data_run=make.data_run(kept, packed))


def _lower_limits(source: DataSource) -> Iterator[tuple[str, _Make]]:
    total = len(source.found.shapes)
    for limit in limits_at(source.trained.samples, LIMIT_PERCENTILES):

        def make(name: str, runs: DataRuns, limit: int = limit) -> Option:
            kept = trained(source.found, source.rules, limit=limit, most=source.most)
            return Option(name=name, data_run=runs.data_run(kept, source.rules), cut_fraction=kept.num_over / total)

        yield f"--seq-len {limit}", make


def _smaller_images(source: DataSource) -> Iterator[tuple[str, _Make]]:
    if not (source.dataset.has_pictures and source.found.sizes):  # none, or in samples that the model cannot take
        return
    most = max(width * height for _, (width, height) in source.found.sizes)
    shown = [source.amounts.seen_size(size) for sample in source.dataset.samples for size in sample.images]
    for fraction in PIXEL_FRACTIONS:
        pixels = int(most * fraction)

        def make(name: str, runs: DataRuns, pixels: int = pixels) -> Option:
            rules = replace(source.rules, max_pixels=pixels)
            found = sample_shapes(source.dataset, source.model, rules, source.planned_size)
            kept = trained(found, rules, limit=source.trained.limit, most=source.most)
            shrunk = sum(limited(size, min_pixels=0, max_pixels=pixels) != size for size in shown)
            data_run = runs.of(replace(source, rules=rules, found=found, trained=kept), MAX_COMPARED_SAMPLES)
            return Option(
                name=name,
                data_run=data_run,
                cut_fraction=kept.num_over / len(found.shapes),
                shrunk_fraction=shrunk / len(shown),
            )

        yield f"images of {pixels / 1e6:.2f} MP", make


def largest_that_fit(found: Estimate, estimator: Estimator, runs: DataRuns, bound: Covering) -> Largest:
    """The largest micro batch, length and (square) image, each alone, by every order's bound: what an estimate of such
    samples says that fits, with the blocks that the native allocator keeps unused."""
    cluster = found.cluster

    def room(covers: Covering, micro_batch: int) -> float:
        """Bytes of a GPU that are free beside those that are kept free; below 0 where it does not fit."""
        recipe = found.recipe.with_changes(micro_batch=micro_batch)
        try:
            other = estimator.with_samples(runs.workload(covers))
            timeline = other.timeline(recipe, cluster)
        except InputError:
            return -math.inf
        device = device_memory(timeline.peak.total, cluster, process_group(recipe, cluster.num_gpus))
        if device.verdict is Verdict.FITS and not recipe.expandable_segments:
            whole = other.estimate(recipe, cluster, timeline)
            if whole.host_is_short or not whole.device.runs:
                return -math.inf
            device = whole.device
        return device.free_bytes - device.reserve_bytes

    rows = found.recipe.micro_batch
    micro_batch = largest(lambda count: room(bound, count), MOST_MICRO_BATCH, likely=rows)
    most = min(context_length(found.workload.model) or MOST_SEQ_LEN, MOST_SEQ_LEN) // LIMIT_MULTIPLE
    taken = runs.sound_tokens(bound)
    if bound.image_size is not None:
        taken += bound.images_per_sample * runs.image_tokens(bound, bound.image_size)
    least = max(1, -(-taken // LIMIT_MULTIPLE))
    usual = bound.seq_len // LIMIT_MULTIPLE
    length = largest(lambda count: room(replace(bound, seq_len=count * LIMIT_MULTIPLE), rows), most, least, usual)
    side = None
    if bound.image_size is not None and bound.clip_frames is None:
        side = largest(lambda count: room(_with_room(bound, runs, SIDE_STEP * count), rows), MOST_SIDE // SIDE_STEP)
    return Largest(
        micro_batch=micro_batch,
        seq_len=None if length is None else length * LIMIT_MULTIPLE,
        image_size=None if side is None else (SIDE_STEP * side, SIDE_STEP * side),
    )


def _with_room(bound: Covering, runs: DataRuns, side: int) -> Covering:
    """The bound with square images, and as much longer as their tokens are more."""
    assert bound.image_size is not None
    more = runs.image_tokens(bound, (side, side)) - runs.image_tokens(bound, bound.image_size)
    return replace(bound, image_size=(side, side), seq_len=max(1, bound.seq_len + bound.images_per_sample * more))


def largest(room: Callable[[int], float], most: int, least: int = 1, likely: int = 1) -> int | None:
    """The largest number up to ``most`` with ``room(number)`` of 0 or more, where all smaller ones have that too; None
    if ``least`` does not. The room shrinks nearly evenly, so that a line between two numbers leads to where it ends;
    it is looked for from a ``likely`` number on.

    >>> largest(lambda count: 37 - count, 1000, likely=9), largest(lambda count: -1, 1000)
    (37, None)
    """
    if least > most:
        return None
    low = min(max(least, likely), most)
    left, high, lacks = room(low), 2 * low, -math.inf
    if left < 0 and low > least:
        low, high, left, lacks = least, low, room(least), left
    elif left >= 0:
        while high <= most and (lacks := room(high)) >= 0:
            low, high, left = high, 2 * high, lacks
    if left < 0:
        return None
    if high > most:
        high, lacks = most + 1, -math.inf
    is_halved = True
    while high - low > 1:
        span = high - low
        step = int(span * left / (left - lacks)) if is_halved and lacks > -math.inf else span // 2
        middle = low + min(max(step, 1), span - 1)
        found = room(middle)
        low, left, high, lacks = (middle, found, high, lacks) if found >= 0 else (low, left, middle, found)
        is_halved = high - low <= span // 2
    return low
