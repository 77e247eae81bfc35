"""``vlmplan launch``: train what a plan says, on this machine or from it."""

import dataclasses
import os
import shlex
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.launch_options import CURRICULUM_FILE, LAUNCH, parser
from vlmplan.cli.option_kinds import SectionedCommand
from vlmplan.cli.option_words import ClickValues, given_flags, words_of
from vlmplan.cli.output import print_document, refuse_files, refuse_idle_force, write_report
from vlmplan.commands.day import today
from vlmplan.errors import InputError, VlmplanError
from vlmplan.render.lines import tell
from vlmplan.run.record import RECORD_FILE
from vlmplan.run.training import TrainerOptions

if TYPE_CHECKING:
    from vlmplan.cli.curriculum import CurriculumOptions
    from vlmplan.launch.prepared import PreparedRun
    from vlmplan.launch.resuming import LaunchRequest
    from vlmplan.plan import Plan
    from vlmplan.proposals.way_out import WayOut
    from vlmplan.request import Request


@click.command(cls=SectionedCommand)
@LAUNCH
@click.pass_context
def launch(
    ctx: click.Context,
    *,
    plan_file: Path | None,
    curriculum: Path | None,
    demo: bool,
    dry_run: bool,
    hostfile: Path | None,
    as_json: bool,
    catalog_files: tuple[Path, ...],
    html: Path | None,
    force: bool,
    **given: Any,
) -> int:
    """Train what --plan says, or what the options of estimate plan for this machine.

    Looks first whether it can run here and names everything that is in the way (exit code 1). Then its exit code is
    that of the run, 128 + N if it was ended by signal N.
    """
    if as_json and not dry_run:
        raise click.UsageError("--json prints what would be run; it needs --dry-run", ctx)
    refuse_idle_force({"--html": html}, force=force)
    refuse_files({"--html": html}, force=force)
    trainer_options = _trainer_options(given)
    if _goes_on_with_curriculum(trainer_options, plan_file, demo=demo) or curriculum is not None:
        from vlmplan.cli.curriculum import CurriculumOptions, run_curriculum

        options = CurriculumOptions(
            file=curriculum,
            plan_options=given,
            trainer_options=trainer_options,
            hostfile=hostfile,
            catalog_files=catalog_files,
        )
        options = _checked_curriculum(ctx, options, plan_file, demo=demo, html=html)
        return run_curriculum(options, dry_run=dry_run, as_json=as_json)
    if demo:
        _fill_in_demo(ctx, given, trainer_options, plan_file)
    if trainer_options["output_dir"] is None:
        raise click.UsageError("--output-dir is needed", ctx)
    from vlmplan.launch.resuming import launch_request

    request = launch_request(trainer_options, hostfile=hostfile, catalog_files=catalog_files)
    prepared, way_out = _prepared(ctx, given, plan_file, request, demo=demo, dry_run=dry_run)
    text = _command_text(prepared, tuple(given) if given["model"] is not None else ())
    code = _printed(prepared, way_out, text) if as_json else _run(prepared, way_out, text, dry_run=dry_run)
    write_report(html, lambda: _report(prepared, None if dry_run else code), force=force)
    return code


def _trainer_options(given: ClickValues) -> ClickValues:
    """What of the options is for the trainer, taken out of them; data that is planned from is trained on."""
    if given["data"] is not None and given["train_data"] is given["dummy_data"] is None:
        given["train_data"] = given["data"]
    names = {item.name for item in dataclasses.fields(TrainerOptions)}
    return {name: given.pop(name) for name in names}


def _report(prepared: "PreparedRun", exit_code: int | None) -> str:
    """The page of a run; ``exit_code`` is None where it was not to be started."""
    from vlmplan.launch.plan_estimate import estimate_of
    from vlmplan.reports import launch_report

    found = estimate_of(prepared.plan, prepared.catalog_files)
    return launch_report(prepared, found, exit_code=None if prepared.findings.problems else exit_code)


def _printed(prepared: "PreparedRun", way_out: "WayOut | None", text: "Callable[[Request], str]") -> int:
    """What would be run, as JSON; the exit code."""
    from vlmplan.answers import launch, to_fit

    print_document(launch.document(prepared) | to_fit.document(way_out, text, today()))
    return _exit_code(prepared)


def _exit_code(prepared: "PreparedRun") -> int:
    """The exit code of a run that is not started."""
    return VlmplanError.exit_code if prepared.findings.problems else 0


def _prepared(
    ctx: click.Context,
    given: ClickValues,
    plan_file: Path | None,
    request: "LaunchRequest",
    *,
    demo: bool,
    dry_run: bool,
) -> "tuple[PreparedRun, WayOut | None]":
    """The run, with a look at its data where it is only looked at, and what fits where it does not."""
    from vlmplan.launch.prepared import prepare, with_data

    # A dry run's model goes away again.
    scratch = tempfile.TemporaryDirectory(prefix="vlmplan-") if demo and dry_run else nullcontext()
    with scratch as folder:
        if demo and request.record is None:
            trainer = request.trainer
            given["model"] = _demo_model(trainer, trainer.output_dir if folder is None else Path(folder))
        planned = _plan(ctx, given, plan_file, request)
        prepared = prepare(planned.plan, planned.launch_request, planned.notes)
        if dry_run:
            prepared = with_data(prepared)
        return prepared, _way_out(prepared, planned.request)


def _run(prepared: "PreparedRun", way_out: "WayOut | None", text: "Callable[[Request], str]", *, dry_run: bool) -> int:
    """Start the run, or print what would be; after it what fits, on standard error."""
    from vlmplan.answers.launch import print_run, print_way_out

    if dry_run:
        print_run(prepared)
        code = _exit_code(prepared)
    else:
        from vlmplan.cli.start import start

        code = start(prepared)
    if way_out is not None:
        print_way_out(way_out, text, today())
    return code


def _way_out(prepared: "PreparedRun", request: "Request | None") -> "WayOut | None":
    """What fits where the plan does not, by what was asked for or, without that, by the plan; None where it does."""
    from vlmplan.commands.to_fit import found_way_out, way_out_of_plan
    from vlmplan.launch.plan_estimate import estimate_of

    if prepared.merges_only or prepared.plan.expected.verdict != "does_not_fit":
        return None
    try:
        present = estimate_of(prepared.plan, prepared.catalog_files)
        if request is None:
            return way_out_of_plan(prepared.plan, present, prepared.catalog_files)
        return found_way_out(request, present, prepared.catalog_files)
    except VlmplanError as error:
        tell(f"vlmplan: what would fit cannot be said: {error}")
        return None


def _command_text(prepared: "PreparedRun", order: tuple[str, ...]) -> "Callable[[Request], str]":
    """A request as a command that does everything else as this one does; its options in ``order``."""
    from vlmplan.cli.option_words import given_options
    from vlmplan.cli.out_of_memory import run_options

    own = run_options(prepared) | {"output_dir": prepared.options.output_dir}

    def text(request: "Request") -> str:
        return shlex.join(["vlmplan", "launch", *words_of(parser, given_options(parser, request, order) | own)])

    return text


def _goes_on_with_curriculum(trainer_options: ClickValues, plan_file: Path | None, *, demo: bool) -> bool:
    """Whether --resume means a curriculum: the folder holds one, and nothing else is asked for."""
    folder = trainer_options["output_dir"]
    is_other = demo or plan_file is not None
    return trainer_options["resume"] and folder is not None and not is_other and (folder / CURRICULUM_FILE).is_file()


def _checked_curriculum(
    ctx: click.Context, options: "CurriculumOptions", plan_file: Path | None, *, demo: bool, html: Path | None
) -> "CurriculumOptions":
    """The options, with those of the curriculum that is gone on with; UsageError for what a curriculum has no use
    for."""
    from vlmplan.cli.curriculum import with_kept

    if html is not None:
        raise click.UsageError("--html is of one run; a curriculum has several", ctx)
    if options.trainer_options["resume"] and options.trainer_options["output_dir"] is not None:
        options = with_kept(options)
    trainer_options = options.trainer_options
    others = {
        "--plan": plan_file is not None,
        "--demo": demo,
        "--random-weights": bool(trainer_options["random_weights"]),
    }
    for name, is_given in others.items():
        if is_given:
            raise click.UsageError(f"--curriculum plans each stage for --model; {name} does not go with it", ctx)
    if options.plan_options["model"] is None:
        raise click.UsageError("--curriculum needs --model NAME", ctx)
    if trainer_options["output_dir"] is None:
        raise click.UsageError("--output-dir is needed", ctx)
    return options


def _fill_in_demo(ctx: click.Context, given: ClickValues, trainer_options: ClickValues, plan_file: Path | None) -> None:
    """Fill in the options of the demo where the user says nothing."""
    from vlmplan.launch import demo

    if plan_file is not None or given["model"] is not None:
        raise click.UsageError("--demo brings its own model; --plan and --model cannot be given with it", ctx)
    folder = trainer_options["output_dir"] or Path(demo.FOLDER)
    if trainer_options["resume"] and (folder / RECORD_FILE).is_file():
        trainer_options["output_dir"] = folder  # whose run says the rest
        return
    for values, defaults in ((given, demo.PLAN_OPTIONS), (trainer_options, demo.TRAINER_OPTIONS)):
        values |= {name: value for name, value in defaults.items() if values[name] is None}
    if trainer_options["train_data"] is not None:
        trainer_options["dummy_data"] = None
    if trainer_options["output_dir"] is None:
        trainer_options["output_dir"] = Path(demo.FOLDER) if trainer_options["resume"] else demo.demo_folder()


def _demo_model(trainer: TrainerOptions, folder: Path) -> str:
    """The demo's model, newly written under ``folder``; that of the run where one is resumed."""
    from vlmplan.launch.demo import MODEL_FOLDER, refuse_without_packages, write_demo_model
    from vlmplan.launch.run_folder import held_run_problem

    problem = None if trainer.resume else held_run_problem(trainer.output_dir)
    if problem is not None:
        raise InputError(problem)
    model = trainer.output_dir / MODEL_FOLDER
    if not (trainer.resume and (model / "config.json").is_file()):
        refuse_without_packages()
        tell("writing the demo's model, for which torch and transformers are loaded")
        model = write_demo_model(folder / MODEL_FOLDER)
    return str(model.absolute())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A plan, what to say about it, and with what it is made; ``request`` is None where no model was named."""

    plan: "Plan"
    notes: list[str]
    launch_request: "LaunchRequest"
    request: "Request | None" = None


def _plan(ctx: click.Context, given: ClickValues, plan_file: Path | None, launch_request: "LaunchRequest") -> _Planned:
    """The plan of the file, of the resumed run, or of the options."""
    from vlmplan.catalog import load_catalog
    from vlmplan.launch.beside_plan import other_ds_config
    from vlmplan.launch.edited_plan import as_it_stands
    from vlmplan.launch.prepared import asked_of, planned
    from vlmplan.launch.resuming import asks_for_another_plan, kept_options, request_to_go_on
    from vlmplan.plan import PLAN_FILE, read_plan

    before = launch_request.trainer.output_dir / PLAN_FILE
    if plan_file is None and launch_request.trainer.resume and os.path.lexists(before):
        plan = read_plan(before)
        if not asks_for_another_plan(given, launch_request.record):
            plan, notes = as_it_stands(plan, before, launch_request.catalog_files)
            return _Planned(plan=plan, notes=[*notes, *other_ds_config(plan, before)], launch_request=launch_request)
        given = kept_options(given)
        task = {} if plan.recipe.task is None else {"task": plan.recipe.task.kind.value}
        request = asked_of(task | given, launch_request.trainer)  # options of the task need not name it again
        changed = request_to_go_on(plan, launch_request.record, request, load_catalog(launch_request.catalog_files))
        launch_request = dataclasses.replace(
            launch_request, planned_with=dict(launch_request.planned_with or {}) | given
        )
        plan, notes = planned(changed, launch_request.catalog_files, launch_request.trainer)
        return _Planned(
            plan=plan, notes=notes, launch_request=launch_request, request=None if request.model is None else request
        )
    if plan_file is None:
        if given["model"] is None:
            none = f"there is no {before}, so " if launch_request.trainer.resume else ""
            raise click.UsageError(f"{none}--plan FILE or --model NAME is needed", ctx)
        launch_request = dataclasses.replace(launch_request, planned_with=kept_options(given))
        request = asked_of(given, launch_request.trainer)
        plan, notes = planned(request, launch_request.catalog_files, launch_request.trainer)
        return _Planned(plan=plan, notes=notes, launch_request=launch_request, request=request)
    extra = given_flags(parser, given)
    if extra:
        raise InputError(f"{plan_file} decides everything that is planned, so {', '.join(extra)} cannot be given too")
    launch_request = dataclasses.replace(launch_request, planned_with=None)
    plan, notes = as_it_stands(read_plan(plan_file), plan_file, launch_request.catalog_files)
    return _Planned(plan=plan, notes=[*notes, *other_ds_config(plan, plan_file)], launch_request=launch_request)
