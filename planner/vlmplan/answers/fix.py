"""Changes of a trainer's own file: the first as a diff, each with what it costs; document and text."""

from collections.abc import Iterator
from datetime import date
from typing import Any

import click

from vlmplan.answers.estimate import heading, verdict_line
from vlmplan.answers.offers import about_text, offer_text
from vlmplan.changes.kinds import engine_title
from vlmplan.data_plan.data_run import DataRun
from vlmplan.estimation import evaluation_hints
from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers.editing.patch import KeyChange
from vlmplan.plain_text import printable_line
from vlmplan.proposals.fixes import WORTH_FRACTION, Fix, Fixes
from vlmplan.render.lines import say
from vlmplan.units import SECONDS_PER_HOUR, counted, duration_text, gib_text


def document(found: Fixes) -> list[JsonDict]:
    """The key ``fix`` of ``vlmplan.check/1``: ways to change the file, the cheapest first, which is
    what is written.

    ``changes`` are keys with their values before and after, null where there is none; ``diff`` is for ``patch``.
    ``costs`` are of the run before and after, on known samples as they are; seconds and usd are null where a speed or a
    price is not known.
    """
    return [_fix_json(found, fix) for fix in found.fixes]


def _fix_json(found: Fixes, one: Fix) -> JsonDict:
    return {
        "changes": [
            {"file": str(change.file), "key": change.key, "before": change.before, "after": change.after}
            for change in one.patch.changes
        ],
        "costs": _costs(found, one),
        "verdict": one.estimate.verdict.value,
        "keeps_results": one.keeps_results,
        "samples_per_step": one.estimate.samples_per_step,
        **_samples_json(one),
        "notes": list(_notes(one)),
        "diff": _diff(one),
    }


def _samples_json(one: Fix) -> JsonDict:
    """How many known samples are cut or left out, and which fraction of images is made smaller."""
    if one.request.from_data is None:
        return {"num_samples_changed": None, "shrunk_image_fraction": None}
    source = one.request.from_data.source
    return {"num_samples_changed": source.num_changed, "shrunk_image_fraction": source.shrunk_image_fraction}


def _costs(found: Fixes, one: Fix) -> JsonDict:
    before, after = found.present, one.estimate
    run_seconds = before.run_seconds if found.run is None else found.run.run_seconds
    run_seconds_after = after.run_seconds if one.run is None else one.run.run_seconds
    pairs = {
        "device_bytes": (before.device.device_bytes, after.device.device_bytes),
        "host_bytes_per_node": (before.host.peak_bytes, after.host.peak_bytes),
        "step_seconds": (before.step_seconds, after.step_seconds),
        "run_seconds": (run_seconds, run_seconds_after),
        "usd": (_usd(found, run_seconds), _usd(found, run_seconds_after)),
    }
    return {name: {"before": first, "after": second} for name, (first, second) in pairs.items()}


def _usd(found: Fixes, run_seconds: float | None) -> float | None:
    """What training costs on this machine, without its start and its end."""
    if found.offer is None or run_seconds is None:
        return None
    return found.offer.usd_per_hour * found.present.cluster.num_nodes * run_seconds / SECONDS_PER_HOUR


def _diff(one: Fix) -> str:
    return "".join(file.diff for file in one.patch.files)


def print_fixes(found: Fixes, on: date) -> None:
    """The estimate as it is in a line, the first change as a diff, and what each costs, to standard output."""
    present = found.present
    say(heading(present), verdict_line(present), *evaluation_hints(present.recipe.evaluation, present.timeline))
    if not found.fixes:
        if found.fits_already:
            say(f"No change of the file that was tried saves {WORTH_FRACTION:.0%} of the time: it stays as it is")
        return
    click.echo()
    for line in _diff(found.fixes[0]).splitlines():
        click.echo(_coloured(printable_line(line)))
    click.echo()
    for number, one in enumerate(found.fixes):
        lead = "this change" if number == 0 else "or"
        say(f"{lead}: {changes_text(one)}", *(f"  {line}" for line in _cost_lines(found, one, on)))
        say(*(f"  note: {note}" for note in _notes(one)))


def _coloured(line: str) -> str:
    colour = {"+": "green", "-": "red"}.get(line[:1])
    return line if colour is None else click.style(line, fg=colour)


def changes_text(one: Fix) -> str:
    """The keys that change, file by file; of a file that is new only what engine it means."""
    texts: list[str] = []
    for file in one.patch.files:
        if file.origin is None:
            texts.append(f"{file.path} is new: {_engine_text(one)}")
            continue
        keys = [_change_text(change) for change in one.patch.changes if change.file == file.path]
        where = "" if file is one.patch.files[0] else f"in {file.path} "
        texts.append(where + "; ".join(keys))
    return "; ".join(texts)


def to_fit_texts(one: Fix, where: str) -> Iterator[str]:
    """The change of the file in a sentence, and what shows it whole."""
    device, samples = one.estimate.device, one.estimate.samples_per_step
    parts = [f"{gib_text(device.device_bytes)} of {gib_text(device.usable_bytes)}"]
    if one.estimate.step_seconds is not None:
        parts.append(f"{duration_text(one.estimate.step_seconds)} for {counted(samples, 'sample')}")
    parts.append("the same results but for rounding" if one.keeps_results else "other results")
    yield f"To fit on {where}: {changes_text(one)}; {', '.join(parts)}"
    yield "--fix shows this change of the file and others, --fix --write FILE writes it"


def _engine_text(one: Fix) -> str:
    recipe = one.estimate.recipe
    engine = (recipe.zero_stage, recipe.offload_optimizer, recipe.offload_params)
    return engine_title(engine, one.estimate.cluster.num_gpus)


def _change_text(change: KeyChange) -> str:
    if change.after is None:
        return f"without {change.key}"
    before = "" if change.before is None else f"{_text(change.before)} -> "
    return f"{change.key} {before}{_text(change.after)}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cost_lines(found: Fixes, one: Fix, on: date) -> Iterator[str]:
    before, after = found.present, one.estimate
    device = after.device
    yield (
        f"memory {gib_text(before.device.device_bytes)} -> {gib_text(device.device_bytes)} of "
        f"{gib_text(device.usable_bytes)}{_host_text(found, one)}"
    )
    if one.run is not None and found.run is not None:
        yield from _run_lines(found, found.run, one, one.run, on)
    elif after.step_seconds is not None and before.step_seconds is not None and after.run_seconds is not None:
        faster = _faster_text(after.step_seconds / before.step_seconds - 1)
        than = "" if found.fits_already else " than it would be as it is"
        run = duration_text(after.run_seconds) + _money_text(found, after.run_seconds, on)
        yield f"time: a step of {duration_text(after.step_seconds)}, {faster}{than}; {run}"
    if _packs_anew(found, one):
        yield "results: each row of a step is several samples: more of them a step, so learning_rate means another"
        return
    samples = counted(after.samples_per_step, "sample")
    same = "the same results but for rounding" if one.keeps_results else "other results"
    yield f"results: {samples} a step as before, so learning_rate means the same; {same}"


def _faster_text(share: float) -> str:
    return f"{abs(share):.0%} {'slower' if share > 0 else 'faster'}" if abs(share) >= 0.005 else "no slower"


def _run_lines(found: Fixes, run: DataRun, one: Fix, other: DataRun, on: date) -> Iterator[str]:
    """The time of the run on the samples as they are, and how many of them and of their images change."""
    if run.run_seconds is not None and other.run_seconds is not None:
        faster = _faster_text(other.run_seconds / run.run_seconds - 1)
        than = "" if found.fits_already else " than it would be as it is"
        money = _money_text(found, other.run_seconds, on)
        yield f"time: {duration_text(other.run_seconds)} on these samples{money}, {faster}{than}"
    assert one.request.from_data is not None
    source = one.request.from_data.source
    total, padding = len(source.found.shapes), other.padding_fraction
    done = "left out" if source.rules.drops_long else "cut"
    shrunk = (
        f"; {source.shrunk_image_fraction:.1%} of the images are made smaller" if source.dataset.has_pictures else ""
    )
    yield (
        f"samples: {source.num_changed:,} of {total:,} ({source.num_changed / total:.1%}) are {done}{shrunk}; "
        f"{padding:.0%} of the computed tokens are padding"
    )


def _packs_anew(found: Fixes, one: Fix) -> bool:
    """Whether rows hold several samples that held one."""
    data = one.request.from_data
    return data is not None and data.source.rules.packs and found.run is not None and not found.packs


def _money_text(found: Fixes, run_seconds: float, on: date) -> str:
    usd = _usd(found, run_seconds)
    return (
        ""
        if usd is None or found.offer is None
        else f" and {about_text(usd, found.offer, on)} on {offer_text(found.offer, on)}"
    )


def _host_text(found: Fixes, one: Fix) -> str:
    before, after = found.present.host.peak_bytes, one.estimate.host.peak_bytes
    is_of_interest = after > before or found.present.host_is_short
    return f"; host RAM {gib_text(before)} -> {gib_text(after)}" if is_of_interest else ""


def _notes(one: Fix) -> Iterator[str]:
    yield from one.patch.notes
    if one.widens_update:
        yield "DeepSpeed updates weights in float32, which this trainer does not without it"
    if one.adds_adapters:
        yield (
            "learning_rate is left as it is: adapters usually take a larger one than whole weights (LLaMA-Factory's "
            "examples 1e-4 and 1e-5)"
        )
