"""The table of the campaign: planned, rehearsed and measured. ``python tests/gpu/report.py`` writes README.md.

``tests/tools/documents.py`` puts its headline into docs/accuracy.md. Planned is what this version says of the run now,
so that a mended formula shows; rehearsed and measured are the records. Errors are planned / measured - 1, or planned /
rehearsed - 1 where nothing was measured. Planned here is without any calibration; the last column is with what
``vlmplan calibrate`` measured on the same machine and day, where there is its file in ``config``. That of 2026-11-26 is
of before two mistakes were mended: ``operation_seconds`` is multiplied here by 1008 / 752, since it was divided by more
operations than its model runs, and ``matmul_ramp`` is left out, since it was what the host takes to ask for a product.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from campaign_records import LAUNCHES, OF_OTHER_CARDS, RECORDS, Record, records_in
from campaign_runs import CARD, RUNS, CampaignRun, planned_run

from vlmplan.estimation import Estimate
from vlmplan.units import GIB

TABLE = Path(__file__).parent / "README.md"
CONFIG = Path(__file__).parent / "config"
"""By day, ``XDG_CONFIG_HOME`` with the calibration of the card on which runs were measured."""
HEADER = """# Runs on a GPU

{num_runs} short runs of the bundled trainer (`campaign_runs.py`), one by one on a card of 80 GB or more, as
`campaign.py` records them in `records.jsonl`; `wheels.py` gets the packages that a machine without a network needs.
Every second run is held back: formulas are mended by the others alone. `python tests/gpu/report.py` rewrites this file.
While one run gets ready on the card, the model of the next one is made in host memory; in the runs on an H200 it was
made while steps were timed, too, which slowed those that wait for the host. On the H100 nothing else ran meanwhile.
Errors of seconds stand beside what is assumed of a card, and beside what `vlmplan calibrate` measured on the same
machine (`config/`). No images are opened; in the runs on an H200 pixels were drawn at random for each batch, which took
the host time that is not planned.

Torch counts a tensor's whole block, unless more than 1 MiB of it would be left over (`should_split` in
`CUDACachingAllocator.cpp`). Planned and rehearsed are tensors alone, so allocated bytes of models with odd widths are
measured up to 1.1% above them; the replay of the allocator, from which reserved and device bytes come, counts them.
"""
LAUNCHED = """
## Tasks

`vlmplan launch --task` on the same card: TRL's trainers, random weights, texts as long as planned. Seconds are the
median of a step, the first left out.
"""
PHASES = ("generate", "reference", "forward", "backward", "step")
TITLES = (
    "run",
    "card",
    "planned",
    "rehearsed",
    "measured",
    "error",
    "worst phase",
    "device",
    "error",
    "step",
    "error",
    "calibrated",
)
NOTHING_MEASURED = (
    "No run on a GPU has been recorded yet: measured bytes and seconds elsewhere are of other people's runs."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run: peaks in bytes and seconds of a step; None for what is not known."""

    name: str
    card: str | None
    is_held_back: bool
    planned: int
    rehearsed: int | None
    measured: int | None
    phase_errors: Mapping[str, float]
    planned_device: int
    measured_device: int | None
    planned_seconds: float | None
    range_seconds: tuple[float, float] | None
    measured_seconds: float | None
    calibrated_seconds: float | None

    @property
    def is_within_range(self) -> bool | None:
        """Whether the seconds are between those at best and at worst."""
        if self.measured_seconds is None or self.range_seconds is None:
            return None
        best, worst = self.range_seconds
        return best <= self.measured_seconds <= worst

    @property
    def error(self) -> float | None:
        known = self.rehearsed if self.measured is None else self.measured
        return None if known is None else self.planned / known - 1

    @property
    def worst_phase(self) -> tuple[str, float] | None:
        """The phase of a step whose peak is planned worst, and its error: a run's highest peak is one phase alone."""
        return max(self.phase_errors.items(), key=lambda one: abs(one[1]), default=None)

    @property
    def device_error(self) -> float | None:
        return None if self.measured_device is None else self.planned_device / self.measured_device - 1

    @property
    def seconds_error(self) -> float | None:
        if self.measured_seconds is None or self.planned_seconds is None:
            return None
        return self.planned_seconds / self.measured_seconds - 1

    @property
    def calibrated_error(self) -> float | None:
        if self.measured_seconds is None or self.calibrated_seconds is None:
            return None
        return self.calibrated_seconds / self.measured_seconds - 1


def rows(records: Mapping[str, Record], others: Iterable[Mapping[str, Record]] = ()) -> list[Row]:
    """Of every run of the list that has a record, in the list's order, planned anew: one for each card on which it was
    measured. ``others``: records of other cards."""
    return [_row(run, record) for run in RUNS for record in _records_of(run.name, records, others)]


def _records_of(name: str, records: Mapping[str, Record], others: Iterable[Mapping[str, Record]]) -> Iterator[Record]:
    """The measured records of a run, each beside its rehearsal; the rehearsal alone where nothing was measured."""
    found = [card[name] for card in (records, *others) if name in card]
    rehearsed = {key: value for one in found for key, value in one.items() if key == "rehearsed"}
    measured = [one for one in found if "measured" in one]
    return (rehearsed | one for one in measured or found[:1])


def launched_rows() -> list[Row]:
    """Of the launches of tasks, planned anew."""
    return [_row(CampaignRun(name, one["options"]), one) for name, one in records_in(LAUNCHES).items()]


def _row(run: CampaignRun, record: Record) -> Row:
    measured, rehearsed = record.get("measured"), record.get("rehearsed")
    is_of_card = measured is not None and record["planned"]["gpu"] != "cpu"
    planned = record["planned"]
    gpu, uses_nvlink = (planned["gpu"], planned.get("uses_nvlink")) if measured is not None else (CARD, None)
    estimate = planned_run(run, gpu, calibration=False, uses_nvlink=uses_nvlink).estimate
    timed = measured["step_seconds"] if is_of_card else []
    peaks = _phase_peaks(measured, rehearsed)
    phases = {phase.name: phase.peak.total for phase in estimate.timeline.phases}
    return Row(
        name=run.name,
        card=None if measured is None else measured.get("device", "").removeprefix("NVIDIA ").split(" ")[0] or None,
        is_held_back=run.is_held_back,
        planned=estimate.peak_allocated_bytes,
        rehearsed=None if rehearsed is None else rehearsed["peak_allocated_bytes"],
        measured=None if measured is None else measured["peak_allocated_bytes"],
        phase_errors={name: phases[name] / peaks[name] - 1 for name in PHASES if peaks.get(name)},
        planned_device=estimate.device.device_bytes,
        measured_device=None if measured is None else measured["peak_device_bytes"],
        planned_seconds=_step_seconds(estimate),
        range_seconds=None if estimate.timed is None else (estimate.timed.fast_seconds, estimate.timed.slow_seconds),
        measured_seconds=median(timed) if timed else None,
        calibrated_seconds=_calibrated_seconds(run, gpu, uses_nvlink, measured.get("date", "")) if is_of_card else None,
    )


def _calibrated_seconds(run: CampaignRun, gpu: str, uses_nvlink: bool | None, date: str) -> float | None:
    """A step as it is planned with the calibration of the card on that day; None where it has none."""
    with _configured(CONFIG / date):
        estimate = planned_run(run, gpu, uses_nvlink=uses_nvlink).estimate
    return None if estimate.cluster.node.gpu.calibration is None else _step_seconds(estimate)


def _step_seconds(estimate: Estimate) -> float | None:
    """Without opening images, which these runs do not do."""
    return None if estimate.step_time is None else estimate.step_time.total - estimate.step_time.images


@contextmanager
def _configured(config: Path) -> Iterator[None]:
    """While this lasts, calibrations are those of ``config``."""
    name, before = "XDG_CONFIG_HOME", os.environ.get("XDG_CONFIG_HOME")
    os.environ[name] = str(config)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _phase_peaks(measured: Record | None, rehearsed: Record | None) -> dict[str, int]:
    """Peaks by phase as measured, or as rehearsed where nothing was measured."""
    if measured is not None:
        return {name: phase["peak_bytes"] for name, phase in measured.get("phases", {}).items()}
    return {} if rehearsed is None else rehearsed["phases"]


def section(records: Mapping[str, Record], others: Sequence[Mapping[str, Record]] = ()) -> str:
    """The part of the page: what there is, and in words what there is not."""
    found = rows(records, others)
    measured = [row for row in found if row.measured is not None]
    parts = [] if measured else [NOTHING_MEASURED]
    if any(row.error is not None for row in found):
        parts.append(_words(found, measured))
        parts.append(table(found))
    failed = [
        f"- `{name}`: {record['measured_error']}" for name, record in records.items() if "measured_error" in record
    ]
    if failed:
        parts.append("Runs that ended early:\n\n" + "\n".join(failed))
    return "\n\n".join(parts)


def _words(found: list[Row], measured: list[Row]) -> str:
    """The medians, those of held-back runs apart."""
    if not measured:
        errors = [abs(row.error) for row in found if row.error is not None]
        worst = [abs(row.worst_phase[1]) for row in found if row.worst_phase is not None]
        return (
            f"{len(errors)} of its {len(RUNS)} runs were rehearsed: the planned peak of allocated bytes is "
            f"{median(errors):.2%} off in the median and {max(errors):.2%} at most; the peak of the phase of a step "
            f"that is planned worst is {median(worst):.2%} and {max(worst):.2%} off."
        )
    groups = {"all": measured, "held back": [row for row in measured if row.is_held_back]}
    cards = Counter(row.card for row in measured if row.card is not None)
    on_cards = " and ".join(f"{count} on an {card}" for card, count in sorted(cards.items(), reverse=True))
    num_runs = len({row.name for row in measured})
    sentences = [f"{num_runs} of {len(RUNS)} runs were measured{', some twice: ' if cards else ''}{on_cards}."]
    for name, group in groups.items():
        texts = [
            f"{what} {median(errors):.1%} off"
            for what, errors in {
                "allocated bytes": [abs(row.error) for row in group if row.error is not None],
                "device bytes": [abs(row.device_error) for row in group if row.device_error is not None],
                "seconds of a step": [abs(row.seconds_error) for row in group if row.seconds_error is not None],
                "with a calibration": [abs(row.calibrated_error) for row in group if row.calibrated_error is not None],
            }.items()
            if errors
        ]
        if texts:
            sentences.append(f"Median of {name}: {', '.join(texts)}.")
    timed = [row.is_within_range for row in measured if row.is_within_range is not None]
    if timed:
        sentences.append(f"{sum(timed)} of {len(timed)} take no less than at best and no more than at worst.")
    return " ".join(sentences)


def table(found: Iterable[Row]) -> str:
    lines = [f"| {' | '.join(TITLES)} |", f"|---|---|{'---:|' * (len(TITLES) - 2)}"]
    for row in found:
        cells = (
            f"`{row.name}`" + (" (held back)" if row.is_held_back else ""),
            row.card or "-",
            _gib(row.planned),
            _gib(row.rehearsed),
            _gib(row.measured),
            _percent(row.error),
            "-" if row.worst_phase is None else f"{row.worst_phase[0]} {_percent(row.worst_phase[1])}",
            _gib(row.measured_device),
            _percent(row.device_error),
            "-" if row.measured_seconds is None else f"{row.measured_seconds:.3f} s",
            _percent(row.seconds_error),
            _percent(row.calibrated_error),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _gib(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / GIB:.2f} GiB"


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.2f}%"


def report() -> str:
    """The whole file."""
    runs = section(records_in(RECORDS), [records_in(path) for path in OF_OTHER_CARDS])
    return "\n".join((HEADER.format(num_runs=len(RUNS)), runs, LAUNCHED, table(launched_rows()))) + "\n"


if __name__ == "__main__":
    TABLE.write_text(report(), encoding="utf-8")
