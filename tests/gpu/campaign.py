"""The measurement campaign: short real runs of the bundled trainer on one GPU, beside what was planned for them.

``python tests/gpu/campaign.py --dry-run`` shows the runs with planned bytes and seconds, without a GPU.
``python tests/gpu/campaign.py --slice-s 480`` runs those that have no measurement yet, the most telling first, each in
a process of its own, until the next one may not end within the slice; the same command again goes on. ``--rehearse``
does the same with rehearsals, on any computer. Records go into ``records.jsonl`` beside this file, or where
``--records`` says; ``report.py`` makes the table of them. No network is needed: ``wheels.py`` gets the packages before.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from campaign_records import RECORDS, Record, add_record, records_in
from campaign_runs import CARD, NUM_STEPS, RUNS, CampaignRun, PlannedRun, planned_run

from vlmplan.child_process import child_environment
from vlmplan.rehearsal.request import request_json
from vlmplan.units import gib_text

ONE_RUN = Path(__file__).parent / "one_run.py"
LIMIT_SECONDS = 240.0
"""Of one run: what takes longer is recorded as that, and not tried again."""
LAST_WORDS = 400


@click.command(help=__doc__)
@click.option("--dry-run", is_flag=True, help="Plan the runs, and start none.")
@click.option("--rehearse", "rehearses", is_flag=True, help="Rehearse the runs; no GPU is needed.")
@click.option("--slice-s", type=float, default=480.0, show_default=True, help="Seconds that this call may take.")
@click.option("--gpu", help=f"What is planned for.  [default: local; {CARD} for --dry-run and --rehearse]")
@click.option("--records", type=click.Path(path_type=Path), default=RECORDS, help="Where records are read and written.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only runs with TEXT in their names (repeatable).")
@click.option("--again", is_flag=True, help="Also those that failed before.")
def main(
    dry_run: bool, rehearses: bool, slice_s: float, gpu: str | None, records: Path, only: tuple[str, ...], again: bool
) -> None:
    end = time.monotonic() + slice_s
    wanted = [run for run in RUNS if not only or any(text in run.name for text in only)]
    card = gpu or (CARD if dry_run or rehearses else "local")
    if dry_run:
        print_plans(planned_run(run, card) for run in wanted)
        return
    kind = "rehearsed" if rehearses else "measured"
    plans = [planned_run(run, card) for run in waiting(wanted, records_in(records), kind, again=again)]
    for record in (rehearsals if rehearses else measurements)(plans, end):
        add_record(record, records)
        click.echo(summary(record, kind))
    left = sum(1 for _ in waiting(wanted, records_in(records), kind, again=False))
    click.echo(f"{len(wanted) - left} of {len(wanted)} runs have a {kind} record; {left} are left")


def rehearsals(plans: Iterable[PlannedRun], end: float) -> Iterator[Record]:
    """The records of the runs, rehearsed one after the other until the next may not end in time."""
    for planned in plans:
        if not has_room(planned, end):
            return
        yield recorded(planned, rehearsed_record)


def measurements(plans: Sequence[PlannedRun], end: float) -> Iterator[Record]:
    """The same, measured; the next run's process makes its model in host memory while one is on the card."""
    ahead: StartedRun | None = None
    try:
        for planned, following in zip(plans, [*plans[1:], None], strict=True):
            if not has_room(planned, end):
                return
            now = ahead or StartedRun(planned)
            ahead = None if following is None else StartedRun(following)
            limit = min(LIMIT_SECONDS, end - time.monotonic())
            yield recorded(planned, lambda _, limit=limit, now=now: now.record(limit))
    finally:
        if ahead is not None:
            ahead.end()


def has_room(planned: PlannedRun, end: float) -> bool:
    if time.monotonic() + planned.seconds <= end:
        return True
    click.echo(f"the slice ends before {planned.run.name}, which may take {planned.seconds:.0f} s; call again")
    return False


def waiting(runs: Iterable[CampaignRun], known: dict[str, Record], kind: str, *, again: bool) -> Iterable[CampaignRun]:
    """Runs without such a record, those whose package is missing here left out with a word."""
    for run in runs:
        record = known.get(run.name, {})
        if kind in record or (f"{kind}_error" in record and not again):
            continue
        if kind == "measured" and run.needs is not None and find_spec(run.needs) is None:
            click.echo(f"{run.name} waits: {run.needs} is not installed here")
            continue
        yield run


def recorded(planned: PlannedRun, make: Callable[[PlannedRun], Record]) -> Record:
    """The record of a run: what was planned, and what ``make`` found or said."""
    return {
        "name": planned.run.name,
        "is_held_back": planned.run.is_held_back,
        "options": dict(planned.run.options),
        "planned": planned_json(planned),
        **make(planned),
    }


def planned_json(planned: PlannedRun) -> dict[str, Any]:
    """What the estimate says of the run, by the names of what is measured."""
    estimate = planned.estimate
    return {
        "gpu": estimate.cluster.node.gpu.id,
        "uses_nvlink": estimate.cluster.node.uses_nvlink,
        "is_calibrated": estimate.cluster.node.gpu.calibration is not None,
        "phases": {phase.name: phase.peak.total for phase in estimate.timeline.phases},
        "peak_allocated_bytes": estimate.peak_allocated_bytes,
        "peak_reserved_bytes": estimate.device.reserved_bytes,
        "peak_device_bytes": estimate.device.device_bytes,
        "step_seconds": estimate.step_seconds,
        "seconds_by_part": None if estimate.step_time is None else estimate.step_time.as_json(),
    }


class StartedRun:
    """A process for a run, which waits for the card when it has done what needs none."""

    def __init__(self, planned: PlannedRun) -> None:
        self._request = json.dumps(request_json(planned.plan, planned.estimate, rank=0, num_steps=NUM_STEPS))
        self._folder = tempfile.TemporaryDirectory(prefix="vlmplan-campaign-")
        path = Path(self._folder.name, "request.json")
        path.write_text(self._request, encoding="utf-8")
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - until it ends
        self._process = subprocess.Popen(
            [sys.executable, str(ONE_RUN), str(path)],
            env=child_environment(planned.plan.environment | {"HF_HUB_OFFLINE": "1"}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            errors="replace",
        )

    def record(self, limit_seconds: float) -> Record:
        """What the run takes on the device of the plan, or why there is no such."""
        try:
            out, _ = self._process.communicate(self._request, timeout=limit_seconds)
            self._log.seek(0)
            last_words = " ".join(self._log.read().split())[-LAST_WORDS:]
        except subprocess.TimeoutExpired:
            return {"measured_error": f"it took more than {limit_seconds:.0f} s"}
        finally:
            self.end()
        if not out.strip():
            return {"measured_error": f"exit code {self._process.returncode}: {last_words}"}
        answer = json.loads(out)
        return {"measured_error": answer["error"]} if "error" in answer else {"measured": answer["measured"]}

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        self._folder.cleanup()


def rehearsed_record(planned: PlannedRun) -> Record:
    """What the rehearsal of the plan finds."""
    from vlmplan.errors import VlmplanError
    from vlmplan.rehearsal import rehearse

    try:
        found = rehearse(planned.plan, planned.estimate)
    except VlmplanError as error:
        return {"rehearsed_error": str(error)}
    return {
        "rehearsed": {
            "phases": {phase.name: phase.rehearsed.peak_bytes for phase in found.phases},
            "peak_allocated_bytes": found.peak_allocated_bytes,
            "peak_reserved_bytes": found.device.reserved_bytes,
            "peak_device_bytes": found.device.device_bytes,
        }
    }


def summary(record: Record, kind: str) -> str:
    if f"{kind}_error" in record:
        return f"{record['name']}: {record[f'{kind}_error']}"
    planned, found = record["planned"]["peak_allocated_bytes"], record[kind]["peak_allocated_bytes"]
    return f"{record['name']}: {gib_text(found)} {kind}, {planned / found - 1:+.2%} planned"


def print_plans(plans: Iterable[PlannedRun]) -> None:
    """A line for each run: planned bytes on the device, of a step, and of the whole process."""
    seconds = count = 0.0
    click.echo(f"{'run':66} {'device':>10} {'host':>10}  {'step':>7} {'run':>6}")
    for planned in plans:
        estimate = planned.estimate
        device, host = gib_text(estimate.device.device_bytes), gib_text(estimate.host.peak_bytes)
        step = "-" if estimate.step_seconds is None else f"{estimate.step_seconds:.2f} s"
        click.echo(f"{planned.run.name:66} {device:>10} {host:>10}  {step:>7} {planned.seconds:4.0f} s")
        seconds, count = seconds + planned.seconds, count + 1
    click.echo(f"{count:.0f} runs, {seconds / 60:.0f} minutes")


if __name__ == "__main__":
    main()
