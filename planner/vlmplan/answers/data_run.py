"""What the micro batches of ``--data`` take: as JSON, and as lines with a table of what would buy something."""

from collections.abc import Iterator, Sequence

import click

from vlmplan.data_plan.covering import Covering
from vlmplan.data_plan.data_run import DataRun
from vlmplan.data_plan.options import MOST_MICRO_BATCH, Largest, Option
from vlmplan.data_plan.source import DataSource
from vlmplan.data_rules import Order
from vlmplan.estimation import Estimate
from vlmplan.files.json_reader import JsonDict
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import counted, duration_text, gib_text, size_text, usd_text


def document(run: DataRun) -> JsonDict:
    """Bytes are of tensors at the peak of the fullest GPU; of ``worst_micro_batch`` and ``any_order`` those that
    ``estimate`` has for samples like theirs."""
    worst = run.worst
    return {
        "order": run.order.value,
        "worst_micro_batch": {
            **_covering_json(worst.covering, worst.peak_bytes),
            "step": worst.step,
            "num_images": worst.micro_batch.num_images,
            "num_patches": worst.micro_batch.patches,
        },
        "any_order": _covering_json(run.bound, run.bound_bytes),
        "steps_per_epoch": run.steps_per_epoch,
        "num_steps": run.num_steps,
        "padding_fraction": run.padding_fraction,
        "mean_step_seconds": run.step_seconds,
        "run_seconds": run.run_seconds,
        "cautions": [] if run.hang is None else [run.hang],
    }


def options_document(options: Sequence[Option], largest: Largest) -> JsonDict:
    """What else could be done with the samples, and the largest of each that fits."""
    return {
        "options": [
            {
                "name": option.name,
                "peak_allocated_bytes": option.data_run.bound_bytes,
                "run_seconds": option.data_run.run_seconds,
                "num_steps": option.data_run.num_steps,
                "padding_fraction": option.data_run.padding_fraction,
                "cut_fraction": option.cut_fraction,
                "shrunk_image_fraction": option.shrunk_fraction,
            }
            for option in options
        ],
        "largest_that_fits": {
            "micro_batch": largest.micro_batch,
            "seq_len": largest.seq_len,
            "image_size": None if largest.image_size is None else size_text(largest.image_size),
        },
    }


def _covering_json(covers: Covering, peak_bytes: int) -> JsonDict:
    size = covers.image_size
    return {
        "seq_len": covers.seq_len,
        **({"target_len": covers.target_len} if covers.target_len else {}),
        "images_per_sample": covers.images_per_sample,
        "image_size": None if size is None else size_text(size),
        **({} if covers.clip_frames is None else {"frames_per_video": covers.clip_frames}),
        **_sounds_json(covers),
        "peak_allocated_bytes": peak_bytes,
    }


def _sounds_json(covers: Covering) -> JsonDict:
    if not covers.audios_per_sample:
        return {}
    return {"audios_per_sample": covers.audios_per_sample, "audio_seconds": covers.audio_seconds}


def print_data_run(
    found: Estimate, source: DataSource, run: DataRun, *, is_of_search: bool, run_usd: float | None = None
) -> None:
    """The run on these samples, and what it costs; that of a search is of its best setup, whose times above are of the
    longest samples."""
    if is_of_search:
        say("the best on these samples; the times and prices above are as if all were the longest")
    say(*_run_lines(found, source, run, run_usd))


def print_options(source: DataSource, run: DataRun, options: Sequence[Option], largest: Largest) -> None:
    """What would buy something."""
    click.echo()
    print_table(_table(source, run, options))
    say(*_largest_lines(largest, has_pictures=source.dataset.has_pictures))


def _run_lines(found: Estimate, source: DataSource, run: DataRun, run_usd: float | None) -> Iterator[str]:
    recipe, rules = found.recipe, source.rules
    order = {Order.RANDOM: "random order", Order.BY_LENGTH: "grouped by length"}.get(run.order, "order of the file")
    ranks = counted(found.cluster.num_gpus, "GPU")
    packed = f", packed into rows of {run.trained.limit:,}" if rules.packs else ""
    yield f"micro batches of {recipe.micro_batch} on {ranks}, {order}{packed}, as {rules.trainer} makes them:"
    worst = run.worst
    drawn = "" if rules.is_bundled or run.order is Order.SEQUENTIAL else ", of an order like the trainer's"
    yield (
        f"  worst: {_covering_text(worst.covering)} each: peak {gib_text(worst.peak_bytes)}, in step {worst.step:,} of "
        f"{run.num_steps:,}{drawn}"
    )
    yield f"  any order: {_covering_text(run.bound)} each: peak {gib_text(run.bound_bytes)} at the most"
    yield f"  padding: {run.padding_fraction:.1%} of the computed tokens"
    if run.run_seconds is not None and run.step_seconds is not None and found.step_seconds is not None:
        worst_seconds = found.step_seconds * run.num_steps + run.evaluation_seconds
        money = "" if run_usd is None else f" for {usd_text(run_usd)}"
        yield (
            f"  time: {duration_text(run.step_seconds)} a step on average, {duration_text(run.run_seconds)} in "
            f"all{money}; {duration_text(worst_seconds)} if every micro batch were the worst"
        )
    if run.hang is not None:
        yield f"caution: {run.hang}"


def _covering_text(covers: Covering) -> str:
    text, shown = f"samples of {covers.seq_len:,} tokens", list[str]()
    if covers.clip_frames is not None:
        frames = counted(covers.clip_frames, "frame")
        shown.append(f"{counted(covers.images_per_sample, 'video')} of {frames}")
    elif covers.image_size is not None:
        shown.append(f"{counted(covers.images_per_sample, 'image')} of {size_text(covers.image_size)}")
    if covers.audios_per_sample:
        shown.append(f"{counted(covers.audios_per_sample, 'sound')} of {covers.audio_seconds:g} s")
    text = f"{text} with {' and '.join(shown)}" if shown else text
    return f"{text}, answers of {covers.target_len:,}" if covers.target_len else text


def _table(source: DataSource, run: DataRun, options: Sequence[Option]) -> Table:
    has_images = source.dataset.has_pictures
    titles = ["what would buy", "peak", "change", "run", "change", "padding", "cut"]
    titles += ["shrunk"] if has_images else []
    now = source.trained.num_over / len(source.found.shapes)
    rows = [_row("as it is", run, run, now, 0.0, has_images)]
    rows += [
        _row(option.name, option.data_run, run, option.cut_fraction or now, option.shrunk_fraction, has_images)
        for option in options
    ]
    return Table(
        titles=tuple(titles),
        rows=rows,
        number_columns=frozenset(titles[1:]),
        cut_columns=frozenset(titles[:1]),
    )


def _row(
    name: str, one: DataRun, base: DataRun, cut_fraction: float, shrunk_fraction: float, has_images: bool
) -> tuple[str, ...]:
    seconds, was = one.run_seconds, base.run_seconds
    change = None if seconds is None or was is None else seconds / was - 1
    row = (
        name,
        gib_text(one.bound_bytes),
        f"{one.bound_bytes / base.bound_bytes - 1:+.0%}",
        duration_text(seconds) if seconds is not None else "",
        "" if change is None else f"{change:+.0%}",
        f"{one.padding_fraction:.0%}",
        f"{cut_fraction:.1%}",
    )
    return (*row, f"{shrunk_fraction:.0%}") if has_images else row


def _largest_lines(largest: Largest, *, has_pictures: bool) -> Iterator[str]:
    if largest.micro_batch is None:
        yield "largest that fits: not even a micro batch of 1"
    else:
        more = " or more" if largest.micro_batch == MOST_MICRO_BATCH else ""
        yield f"largest micro batch that fits, in any order: {largest.micro_batch:,}{more}"
    if largest.seq_len is not None:
        yield f"largest --seq-len: {largest.seq_len:,}"
    if largest.image_size is not None and has_pictures:
        yield f"largest images: {size_text(largest.image_size)}, with samples longer by their tokens"
