"""The samples of ``--data``: how long they are and what they show, as JSON and drawn."""

from collections.abc import Iterator, Sequence
from statistics import mean

import click

from vlmplan.data_plan import DataSource
from vlmplan.data_plan.lengths import PERCENTILES, percentile
from vlmplan.data_rules import Learnt
from vlmplan.files.json_reader import JsonDict
from vlmplan.render.lines import picture_width, say
from vlmplan.units import counted

LEAST_IN_HUNDREDTHS = 20_000
"""Pixels that a range has at the least where two decimals of a megapixel tell it from the next."""
NUM_BINS, NUM_IMAGE_BINS = 10, 5
"""Of a histogram of lengths and of one of images. A choice: as many as fit on a screen beside what follows."""


def document(source: DataSource) -> JsonDict:
    """Tokens of every sample before and images; ``trained`` is what is left at the limit."""
    found, kept = source.found, source.trained
    tokens = sorted(shape.length for shape in found.shapes)
    pixels = _pixels(source)
    return {
        "source": source.dataset.source,
        "counting": source.dataset.counting,
        "is_exact": source.dataset.is_exact,
        "forms": dict(source.dataset.forms),
        "num_samples": len(found.shapes),
        "num_bad": source.dataset.num_bad,
        "num_refused": found.num_refused,
        "tokens": _distribution(tokens),
        "learnt_tokens": source.dataset.learnt_tokens,
        "images_per_sample": _distribution(sorted(shape.num_images for shape in found.shapes)),
        "image_pixels": _distribution(pixels) if pixels else None,
        "num_videos": sum(len(sample.videos) for sample in source.dataset.samples),
        **_answers_json(source),
        **_sounds_json(source),
        "limit": None if source.limit_source is None else kept.limit,
        "limit_source": source.limit_source,
        "num_cut": kept.num_cut,
        "num_left_out": kept.num_long + kept.num_no_room + kept.num_many_images + kept.num_many_sounds,
        "num_trained": len(kept.samples.shapes),
    }


def _answers_json(source: DataSource) -> JsonDict:
    """How long answers are; empty where they are part of the samples."""
    answers = _answers(source)
    return {"answer_tokens": _distribution(answers)} if answers else {}


def _answers(source: DataSource) -> list[int]:
    """Tokens of every answer that a decoder of its own writes, ascending; none where they are those of the samples."""
    shapes = source.found.shapes
    is_beside = any(shape.answer_tokens and shape.length != shape.answer_tokens for shape in shapes)
    return sorted(shape.answer_tokens for shape in shapes) if is_beside else []


def _sounds_json(source: DataSource) -> JsonDict:
    """How many sounds there are, and how long; empty without any."""
    seconds = _seconds(source)
    return (
        {"num_sounds": len(seconds), "sound_seconds": sum(seconds), "longest_sound_seconds": seconds[-1]}
        if seconds
        else {}
    )


def _seconds(source: DataSource) -> list[float]:
    """Seconds of every sound, ascending."""
    return sorted(seconds for sample in source.dataset.samples for seconds in sample.sounds)


def _distribution(in_order: Sequence[int]) -> JsonDict:
    return {
        "least": in_order[0],
        "most": in_order[-1],
        "mean": mean(in_order),
        "percentiles": {str(percent): percentile(in_order, percent) for percent in PERCENTILES},
        "histogram": [{"from": first, "to": last, "count": count} for first, last, count in histogram(in_order)],
    }


def histogram(in_order: Sequence[int], num_bins: int = NUM_BINS) -> list[tuple[int, int, int]]:
    """(from, to, how many) of ranges of whole numbers, about equally wide, both ends inside.

    >>> histogram([1, 2, 2, 9, 10], 2)
    [(1, 5, 3), (6, 10, 2)]
    """
    least, most = in_order[0], in_order[-1]
    width = -(-(most - least + 1) // num_bins)
    bins = [(start, min(start + width - 1, most), 0) for start in range(least, most + 1, width)]
    counts = [0] * len(bins)
    for value in in_order:
        counts[(value - least) // width] += 1
    return [(first, last, count) for (first, last, _), count in zip(bins, counts, strict=True)]


def print_data(source: DataSource) -> None:
    """How samples are distributed, drawn."""
    say(*_head(source))
    tokens = sorted(shape.length for shape in source.found.shapes)
    for line in drawn(_length_rows(histogram(tokens)), picture_width()):
        click.echo(line)
    say(_percentiles(tokens))
    answers = _answers(source)
    if answers:
        say(f"answers: {_percentiles(answers)}")
    pixels = _pixels(source)
    if pixels:
        say(_images(source, pixels))
        for line in drawn(_pixel_rows(histogram(pixels, NUM_IMAGE_BINS)), picture_width()):
            click.echo(line)
    say(*_learnt(source), *_videos(source), *_sounds(source), *_limit(source))


def _head(source: DataSource) -> Iterator[str]:
    forms = "; ".join(f"{name}: {count:,}" for name, count in source.dataset.forms.items())
    yield f"data: {source.dataset.source}: {counted(len(source.found.shapes), 'sample')} ({forms})"


def _pixels(source: DataSource) -> list[int]:
    """Pixels of every image, ascending."""
    return sorted(width * height for sample in source.dataset.samples for width, height in sample.images)


def _percentiles(tokens: Sequence[int]) -> str:
    listed = ", ".join(f"{percent}% {percentile(tokens, percent):,}" for percent in PERCENTILES)
    return f"percentiles: {listed}, longest {tokens[-1]:,}; mean {mean(tokens):,.0f}"


def _images(source: DataSource, pixels: Sequence[int]) -> str:
    images = [len(sample.images) for sample in source.dataset.samples]
    middle, most = percentile(pixels, 50) / 1e6, pixels[-1] / 1e6
    return (
        f"images: {counted(sum(images), 'image')} in {counted(sum(map(bool, images)), 'sample')}, at most "
        f"{max(images)} in one; {middle:.2f} megapixels in the middle, {most:.2f} in the largest"
    )


def _learnt(source: DataSource) -> Iterator[str]:
    """How much of the samples as they are the loss counts, where that is known."""
    learnt = source.dataset.learnt_tokens
    what = source.rules.learns.what
    if learnt is not None:
        of = "" if what is Learnt.ANSWERS else f" ({what.value})"
        yield f"learnt: {learnt:,} of {sum(shape.tokens for shape in source.found.shapes):,} tokens{of}"


def _videos(source: DataSource) -> Iterator[str]:
    """Videos, and how many frames of each the trainer takes."""
    videos = [video for sample in source.dataset.samples for video in sample.videos]
    if not videos:
        return
    frames = sorted(source.video_amounts.num_frames(video) for video in videos)
    yield (
        f"videos: {counted(len(videos), 'video')} of {sum(video.seconds for video in videos) / len(videos):.1f} s on "
        f"average; of each {percentile(frames, 50)} frames in the middle, {frames[-1]} at the most"
    )


def _sounds(source: DataSource) -> Iterator[str]:
    seconds = _seconds(source)
    if seconds:
        most = max(len(sample.sounds) for sample in source.dataset.samples)
        yield (
            f"sounds: {counted(len(seconds), 'sound')}, at most {most} in one sample; {mean(seconds):.1f} s on "
            f"average, {percentile(seconds, 50):.1f} s in the middle, {seconds[-1]:.1f} s the longest"
        )


def _limit(source: DataSource) -> Iterator[str]:
    kept, total = source.trained, len(source.found.shapes)
    if source.limit_source is not None:
        done = "left out" if source.rules.drops_long else "cut"
        yield (
            f"limit: {kept.limit:,} tokens ({source.limit_source}): {kept.num_over:,} of {total:,} samples "
            f"({kept.num_over / total:.1%}) are longer and {done}"
        )


def _length_rows(bins: Sequence[tuple[int, int, int]]) -> list[tuple[str, int]]:
    digits = max(len(f"{last:,}") for _, last, _ in bins)
    return [(f"{first:{digits},} to {last:{digits},}", count) for first, last, count in bins]


def _pixel_rows(bins: Sequence[tuple[int, int, int]]) -> list[tuple[str, int]]:
    decimals = 2 if bins[0][1] - bins[0][0] >= LEAST_IN_HUNDREDTHS else 3
    return [(f"{first / 1e6:.{decimals}f} to {last / 1e6:.{decimals}f} MP", count) for first, last, count in bins]


def drawn(rows: Sequence[tuple[str, int]], width: int) -> list[str]:
    """A bar for each range, the longest as long as there is room; a range with few samples has a mark too.

    >>> drawn([("1 to  5", 3), ("6 to 10", 1)], 20)
    ['  1 to  5  ######  3', '  6 to 10  ##      1']
    """
    labels, counts = max(len(label) for label, _ in rows), max(len(f"{count:,}") for _, count in rows)
    room = max(1, width - labels - counts - len("      "))
    most = max(count for _, count in rows)
    lines: list[str] = []
    for label, count in rows:
        cells = "#" * (round(room * count / most) or (1 if count else 0))
        lines.append(f"  {label:{labels}}  {cells:{room}}  {count:{counts},}")
    return lines
