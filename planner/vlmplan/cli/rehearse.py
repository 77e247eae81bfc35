"""``vlmplan rehearse``: the real step of one rank on tensors without data, beside its estimate."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.option_kinds import FILE, WHOLE, SectionedCommand, options, under
from vlmplan.cli.option_words import ClickValues, given_flags
from vlmplan.cli.options import (
    CATALOG,
    CONFIG,
    DATA,
    JSON,
    MODEL,
    MODEL_AND_SAMPLES,
    ONE_CLUSTER,
    PLAN_FILE,
    REPORT,
    WORKLOAD,
)
from vlmplan.cli.output import print_document, refuse_files, refuse_idle_force, write_report
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.cli.rehearse_script import SCRIPT, TAKEN, ScriptOptions, rehearse_words, script_text
from vlmplan.cli.task_options import TASK
from vlmplan.commands.data import described_data, of_samples, print_of_data
from vlmplan.commands.day import today
from vlmplan.errors import EXIT_DOES_NOT_FIT, InputError, VlmplanError
from vlmplan.render.lines import tell

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.plan import Plan
    from vlmplan.proposals.way_out import WayOut
    from vlmplan.rehearsal import Comparison
    from vlmplan.rehearsal.rehearsed_device import RehearsedDevice
    from vlmplan.rehearsal.script import ScriptRehearsal
    from vlmplan.request import Request

PLAN = under(MODEL_AND_SAMPLES, PLAN_FILE)
OUTPUT = (
    click.option("--rank", type=WHOLE, metavar="N", help="Whose GPU.  [default: the fullest]"),
    click.option("--steps", type=WHOLE, metavar="N", help="Optimizer steps, 3 or more.  [default: 3]"),
    REPORT,
    click.option("--svg", type=FILE, metavar="FILE", help="Write memory over time as a picture."),
    click.option("--trace", type=FILE, metavar="FILE", help="Write a trace for ui.perfetto.dev."),
    click.option("--force", is_flag=True, help="Overwrite these files."),
)


@dataclass(frozen=True, slots=True)
class Files:
    """What is written beside what is printed."""

    html: Path | None
    svg: Path | None
    trace: Path | None
    force: bool

    def check(self) -> None:
        """Raise InputError where a file would be overwritten, or written twice."""
        files = {"--html": self.html, "--svg": self.svg, "--trace": self.trace}
        refuse_idle_force(files, force=self.force)
        refuse_files(files, force=self.force)

    def write(self, found: "RehearsedDevice", report: "Callable[[], str]", picture: "Callable[[], str]") -> None:
        """Write what is wanted; ``report`` makes the page, ``picture`` memory over time."""
        from vlmplan.rehearsal.perfetto import trace_text

        texts: tuple[tuple[Path | None, Callable[[], str]], ...] = (
            (self.html, report),
            (self.svg, picture),
            (self.trace, lambda: trace_text(found)),
        )
        for path, text in texts:
            write_report(path, text, force=self.force)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPlan:
    """A plan with its estimate and sentences about the hardware; ``request``: what it was made of, None for a file."""

    plan: "Plan"
    estimate: "Estimate"
    notes: list[str]
    request: "Request | None" = None


@click.command(cls=SectionedCommand)
@options(PLAN, CONFIG, MODEL, DATA, WORKLOAD[1:], ONE_CLUSTER, RECIPE, EVALUATION, TASK, OUTPUT, SCRIPT, CATALOG, JSON)
@click.pass_context
def rehearse(
    ctx: click.Context,
    *,
    plan_file: Path | None,
    rank: int | None,
    steps: int | None,
    html: Path | None,
    svg: Path | None,
    trace: Path | None,
    force: bool,
    as_json: bool,
    catalog_files: tuple[Path, ...],
    **given: Any,
) -> int:
    """Run the real training step of one rank on tensors without data: exact bytes, no GPU and no weights needed.

    Model, adapters, loss, optimizer and DeepSpeed are those of launch. Where it does not fit, it
    ends with the least changes that do. With a command behind --, such as -- python train.py or
    -- torchrun train.py, your own script runs instead. Exit code 0 if it fits, 3 if it does not.
    """
    from vlmplan.cli.option_words import command_text
    from vlmplan.memory.device import Verdict

    files = Files(html, svg, trace, force)
    files.check()
    script = ScriptOptions(**{field.name: given.pop(field.name) for field in fields(ScriptOptions)})
    if script.words:
        if plan_file:
            raise InputError("a script's rehearsal has no plan: leave out --plan, or the command behind --")
        others = given_flags(ctx.command, {name: value for name, value in given.items() if name not in TAKEN})
        rehearsed_script = rehearse_words(script, given, catalog_files, others=others, rank=rank, num_steps=steps)
        _answer_of_script(rehearsed_script, files, script_text(script, given, catalog_files, rank, steps), as_json)
        return 0 if rehearsed_script.verdict is not Verdict.DOES_NOT_FIT else EXIT_DOES_NOT_FIT
    if script.given:
        raise InputError(f"{', '.join(script.given)} is of a script: give its command behind --")
    asked = plan_asked_for(ctx, plan_file, given, catalog_files)
    found = rehearsed(asked.plan, asked.estimate, rank=rank, num_steps=steps)
    fits = found.verdict is not Verdict.DOES_NOT_FIT
    way_out = None if fits else _way_out(found, asked, catalog_files)
    text = command_text(rehearse, catalog_files, order=() if asked.request is None else tuple(given))
    words = asked_words(asked, plan_file, text)
    files.write(found, lambda: _report(found, asked.notes, way_out, text, words), lambda: _picture(found))
    _answer(found, asked, way_out, text, as_json=as_json)
    return 0 if fits else EXIT_DOES_NOT_FIT


def asked_words(asked: AskedPlan, plan_file: Path | None, text: "Callable[[Request], str]") -> str:
    """The command line of the options, or of the plan's file."""
    if asked.request is not None:
        return text(asked.request)
    return shlex.join(["vlmplan", "rehearse", "--plan", "" if plan_file is None else plan_file.name])


def _answer_of_script(found: "ScriptRehearsal", files: Files, command: str, as_json: bool) -> None:
    from vlmplan.reports.script_rehearsal import script_report, script_svg

    files.write(found, lambda: script_report(found, command_text=command), lambda: script_svg(found))
    if as_json:
        from vlmplan.answers.script_rehearsal import document

        print_document(document(found))
        return
    from vlmplan.answers.script_rehearsal import print_script_rehearsal

    print_script_rehearsal(found)


def _picture(found: "Comparison") -> str:
    from vlmplan.reports.rehearsal import rehearsal_svg

    return rehearsal_svg(found)


def _report(
    found: "Comparison",
    notes: list[str],
    way_out: "WayOut | None",
    command: "Callable[[Request], str]",
    asked: str,
) -> str:
    from vlmplan.answers.to_fit import way_out_lines
    from vlmplan.reports import rehearsal_report

    hints = way_out_lines(way_out, command, today())
    return rehearsal_report(found, notes, hints=hints, command_text=asked)


def _answer(
    found: "Comparison",
    asked: AskedPlan,
    way_out: "WayOut | None",
    command: "Callable[[Request], str]",
    *,
    as_json: bool,
) -> None:
    """Print what was rehearsed and the way out, whose ``command`` is this one with changes."""
    data = None if asked.request is None else of_samples(asked.request)
    if as_json:
        from vlmplan.answers import rehearsal, to_fit

        document = rehearsal.document(found, asked.notes) | described_data(data)
        print_document(document | to_fit.document(way_out, command, today()))
        return
    from vlmplan.answers.rehearsal import print_rehearsal
    from vlmplan.answers.to_fit import print_way_out

    print_rehearsal(found, asked.notes)
    print_of_data(data)
    print_way_out(way_out, command, today())


def _way_out(found: "Comparison", asked: AskedPlan, catalog_files: tuple[Path, ...]) -> "WayOut | None":
    """What fits when it is raised by as much as the rehearsal is above its estimate."""
    from vlmplan.commands.to_fit import found_way_out, way_out_of_plan
    from vlmplan.memory.device import Verdict

    ratio = max(1.0, found.device.device_bytes / found.estimate.device.device_bytes)

    def accepts(other: "Estimate") -> bool:
        device = other.device
        rehearsed_bytes = device.device_bytes * ratio
        return other.verdict is Verdict.FITS and rehearsed_bytes + device.reserve_bytes <= device.usable_bytes

    try:
        if asked.request is None:
            return way_out_of_plan(asked.plan, found.estimate, catalog_files, accepts=accepts)
        return found_way_out(asked.request, found.estimate, catalog_files, accepts=accepts)
    except VlmplanError as error:
        tell(f"vlmplan: what would fit cannot be said: {error}")
        return None


def rehearsed(
    plan: "Plan", estimate: "Estimate", *, rank: int | None = None, num_steps: int | None = None
) -> "Comparison":
    """The rehearsal of a plan beside its estimate, with a bar on the terminal meanwhile."""
    from vlmplan.rehearsal import rehearse as run
    from vlmplan.rehearsal.request import num_phases
    from vlmplan.render.progress import progress_bar

    with progress_bar("rehearsing", num_phases(plan, num_steps)) as say:
        return run(plan, estimate, rank=rank, num_steps=num_steps, say=say)


def plan_asked_for(
    ctx: click.Context, plan_file: Path | None, given: ClickValues, catalog_files: tuple[Path, ...]
) -> AskedPlan:
    """The plan of the file or of the options."""
    from vlmplan.launch.beside_plan import other_ds_config
    from vlmplan.launch.plan_estimate import estimate_of
    from vlmplan.plan import plan_from_estimate, read_plan
    from vlmplan.request import parse

    if plan_file is None:
        from vlmplan.requested import requested_estimate

        if given["model"] is None and given["config"] is None:
            raise click.UsageError("--plan FILE, --config FILE or --model NAME is needed", ctx)
        request = parse(given)
        estimate, notes = requested_estimate(request, catalog_files)
        plan = plan_from_estimate(estimate, base=request.ds_config)
        return AskedPlan(plan=plan, estimate=estimate, notes=notes, request=request)
    extra = given_flags(ctx.command, given)
    if extra:
        raise InputError(f"{plan_file} decides everything that is planned, so {', '.join(extra)} cannot be given too")
    plan = read_plan(plan_file)
    return AskedPlan(plan=plan, estimate=estimate_of(plan, catalog_files), notes=other_ds_config(plan, plan_file))
