"""``vlmplan launch``: train what a plan says, on this machine or from it."""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.options import CATALOG, FILE, JSON, ONE_CLUSTER, RECIPE, WORKLOAD, options, today
from vlmplan.errors import InputError, VlmplanError
from vlmplan.notes import caveats, footnotes
from vlmplan.run_record import RECORD_FILE
from vlmplan.training import EXIT_OUT_OF_MEMORY, MONITOR_PACKAGES, SCHEDULES, TrainerOptions
from vlmplan.units import counted

if TYPE_CHECKING:
    from vlmplan.launch.data_look import DataLook
    from vlmplan.launch.facts import Facts
    from vlmplan.launch.preflight import Findings
    from vlmplan.launch.resuming import Asked
    from vlmplan.plan import Plan
    from vlmplan.search.way_out import WayOut

SCHEMA = "vlmplan.launch/1"
CURRICULUM_FILE = "curriculum.json"
"""In the output folder of a curriculum: what it is."""


def _count(flag: str, text: str) -> Any:
    return click.option(flag, type=int, metavar="N", help=text)


PLAN = (
    click.option("--plan", "plan_file", type=FILE, metavar="FILE", help="A plan.json; or give options of estimate."),
    click.option("--curriculum", type=FILE, metavar="FILE", help="A YAML file of stages, one after another."),
    click.option("--demo", is_flag=True, help="A tiny model and made-up images on 2 CPU ranks; no download."),
)
DATA = (
    click.option("--train-data", type=FILE, metavar="FILE", help="Samples to train on: JSONL, or a JSON list."),
    click.option("--eval-data", type=FILE, metavar="FILE", help="Samples to look at after every epoch."),
    click.option("--image-folder", type=FILE, metavar="DIR", help="Where images are; else beside the data."),
    _count("--dummy-data", "N made-up samples instead of data."),
    click.option("--skip-bad-samples", is_flag=True, help="Leave out samples that cannot be used."),
    click.option("--group-by-length", is_flag=True, help="Samples of about equal length in a micro batch."),
)
RUN = (
    click.option("--output-dir", type=FILE, metavar="DIR", help="Checkpoints, log and result of one run."),
    click.option("--adapter", type=FILE, metavar="DIR", help="Start from the weights of this adapter."),
    click.option("--resume", is_flag=True, help="Go on from the newest checkpoint of --output-dir."),
    click.option("--dry-run", is_flag=True, help="Look whether it can run, print what would, write nothing."),
    click.option("--hostfile", type=FILE, metavar="FILE", help="The nodes, HOST slots=GPUS in each line."),
    click.option("--random-weights", is_flag=True, help="Do not load weights, draw them."),
    click.option("--learning-rate", type=float, metavar="X", help="[default: 1e-5 for full, 1e-4 for adapters]"),
    click.option("--weight-decay", type=float, metavar="X", help="[default: 0]"),
    click.option("--warmup-fraction", type=float, metavar="X", help="Part of all steps.  [default: 0.03]"),
    click.option("--schedule", type=click.Choice(SCHEDULES), help="[default: cosine]"),
    _count("--save-every", "Steps between checkpoints.  [default: one at the end]"),
    _count("--keep-last", "Checkpoints that are kept.  [default: 2]"),
    _count("--max-steps", "Stop after so many steps."),
    _count("--seed", "Of order and random weights.  [default: 0]"),
    click.option("--merge-adapters", is_flag=True, help="Also write the model with its adapters merged in."),
    _count("--measured-steps", "First steps whose memory is followed on CPU ranks.  [default: 3]"),
    click.option(
        "--monitor",
        type=click.Choice(tuple(MONITOR_PACKAGES)),
        multiple=True,
        help="Also write curves there; repeatable.",
    ),
)
MODEL = click.option("--model", metavar="NAME", help="Alias, Hugging Face id, folder or config.json.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that was looked at and not started."""

    plan: "Plan"
    options: TrainerOptions
    facts: "Facts"
    findings: "Findings"
    command: list[str]
    environment: dict[str, str]
    texts: dict[str, str]
    notes: list[str]
    catalog_files: tuple[Path, ...] = ()
    hostfile: Path | None = None
    data: "DataLook | None" = None


@click.command()
@options(PLAN, DATA, RUN, MODEL, WORKLOAD[1:], ONE_CLUSTER, RECIPE, CATALOG, JSON)
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
    **given: Any,
) -> int:
    """Train what --plan says, or what the options of estimate plan for this machine.

    Looks first whether it can run here and names everything that is in the way (exit code 1). Then its exit code is
    that of the run, 128 + N if it was ended by signal N.
    """
    if as_json and not dry_run:
        raise click.UsageError("--json prints what would be run; it needs --dry-run", ctx)
    from vlmplan.answers.to_fit import document as to_fit_json

    names = {item.name for item in dataclasses.fields(TrainerOptions)}
    asked = {name: given.pop(name) for name in names}
    if _goes_on_with_curriculum(asked, plan_file, demo=demo) or curriculum is not None:
        from vlmplan.cli.curriculum import OfAllStages, run_curriculum, with_kept

        of_all = OfAllStages(file=curriculum, given=given, asked=asked, hostfile=hostfile, catalog_files=catalog_files)
        of_all = with_kept(of_all) if asked["resume"] and asked["output_dir"] is not None else of_all
        _check_curriculum(ctx, of_all.given, of_all.asked, plan_file, demo=demo)
        return run_curriculum(of_all, dry_run=dry_run, as_json=as_json)
    if demo:
        _fill_in_demo(ctx, given, asked, plan_file)
    if asked["output_dir"] is None:
        raise click.UsageError("--output-dir is needed", ctx)
    from vlmplan.launch.resuming import asked_of

    whole = asked_of(asked, hostfile=hostfile, catalog_files=catalog_files)
    # A dry run's model goes away again.
    scratch = tempfile.TemporaryDirectory(prefix="vlmplan-") if demo and dry_run else nullcontext()
    with scratch as folder:
        if demo and whole.record is None:
            trainer = whole.trainer
            given["model"] = _demo_model(trainer, trainer.output_dir if folder is None else Path(folder))
        plan, notes, whole = _plan(ctx, given, plan_file, whole)
        prepared = prepare(plan, whole, notes)
        if dry_run:
            prepared = with_data(prepared)
        way_out = _way_out(prepared, given)
    text = _command_text(prepared)
    if as_json:
        described = document(prepared) | to_fit_json(way_out, text, today())
        click.echo(json.dumps({"schema": SCHEMA} | described, indent=2))
    elif dry_run:
        show(prepared)
    code = (VlmplanError.exit_code if prepared.findings.problems else 0) if dry_run else start(prepared)
    if way_out is not None and not as_json:
        _say_way_out(way_out, text)
    return code


def _say_way_out(found: "WayOut", text: Callable[[Mapping[str, Any]], str]) -> None:
    """Print to standard error what would fit."""
    from vlmplan.answers.to_fit import way_out_parts

    for sentence, lead, changed in way_out_parts(found, today()):
        click.echo(sentence, err=True)
        if changed is not None:
            click.echo(f"{lead} {text(changed)}", err=True)


def _way_out(prepared: Prepared, given: Mapping[str, Any]) -> "WayOut | None":
    """What fits where the plan does not, by the options that were given or, without any, by those of the plan; None
    where it does."""
    from vlmplan.cli.rehearse import estimate_of
    from vlmplan.cli.to_fit import found_way_out, way_out_of_plan

    if prepared.plan.expected.verdict != "does_not_fit":
        return None
    try:
        present = estimate_of(prepared.plan, prepared.catalog_files)
        if given["model"] is None:
            return way_out_of_plan(prepared.plan, present, prepared.catalog_files)
        return found_way_out(given, present, prepared.catalog_files)
    except VlmplanError as error:
        click.echo(f"vlmplan: what would fit cannot be said: {error}", err=True)
        return None


def _command_text(prepared: Prepared) -> Callable[[Mapping[str, Any]], str]:
    """Options of a plan as a command that does everything else as this one does."""
    from vlmplan.cli.out_of_memory import run_options
    from vlmplan.cli.to_fit import command_text

    own = run_options(prepared) | {"output_dir": prepared.options.output_dir}
    text = command_text(launch, ())
    return lambda options: text({**options, **own})


def _goes_on_with_curriculum(asked: Mapping[str, Any], plan_file: Path | None, *, demo: bool) -> bool:
    """Whether --resume stands for a curriculum: the folder holds one, and nothing else is asked for."""
    folder = asked["output_dir"]
    is_other = demo or plan_file is not None
    return asked["resume"] and folder is not None and not is_other and (folder / CURRICULUM_FILE).is_file()


def _check_curriculum(
    ctx: click.Context, given: Mapping[str, Any], asked: Mapping[str, Any], plan_file: Path | None, *, demo: bool
) -> None:
    """Raise UsageError for options that a curriculum has no use for."""
    others = {"--plan": plan_file is not None, "--demo": demo, "--random-weights": bool(asked["random_weights"])}
    for name, is_given in others.items():
        if is_given:
            raise click.UsageError(f"--curriculum plans each stage for --model; {name} does not go with it", ctx)
    if given["model"] is None:
        raise click.UsageError("--curriculum needs --model NAME", ctx)
    if asked["output_dir"] is None:
        raise click.UsageError("--output-dir is needed", ctx)


def _fill_in_demo(ctx: click.Context, given: dict[str, Any], asked: dict[str, Any], plan_file: Path | None) -> None:
    """Fill in the options of the demo where the user says nothing."""
    from vlmplan.launch import demo

    if plan_file is not None or given["model"] is not None:
        raise click.UsageError("--demo brings its own model; --plan and --model cannot be given with it", ctx)
    folder = asked["output_dir"] or Path(demo.FOLDER)
    if asked["resume"] and (folder / RECORD_FILE).is_file():
        asked["output_dir"] = folder  # whose run says the rest
        return
    for values, defaults in ((given, demo.PLAN_OPTIONS), (asked, demo.TRAINER_OPTIONS)):
        values |= {name: value for name, value in defaults.items() if values[name] is None}
    if asked["train_data"] is not None:
        asked["dummy_data"] = None
    if asked["output_dir"] is None:
        asked["output_dir"] = Path(demo.FOLDER) if asked["resume"] else demo.demo_folder()


def _demo_model(trainer: TrainerOptions, folder: Path) -> str:
    """The demo's model, newly written under ``folder``; that of the run where one is resumed."""
    from vlmplan.launch.demo import MODEL_FOLDER, write_demo_model
    from vlmplan.launch.run_folder import held_run_problem

    problem = None if trainer.resume else held_run_problem(trainer.output_dir)
    if problem is not None:
        raise InputError(problem)
    model = trainer.output_dir / MODEL_FOLDER
    if not (trainer.resume and (model / "config.json").is_file()):
        click.echo("writing the demo's model, for which torch and transformers are loaded", err=True)
        model = write_demo_model(folder / MODEL_FOLDER)
    return str(model.absolute())


def _plan(
    ctx: click.Context, given: dict[str, Any], plan_file: Path | None, asked: "Asked"
) -> "tuple[Plan, list[str], Asked]":
    """The plan of the file, of the resumed run, or of the options; what to say about it; with what it is made."""
    from vlmplan.catalog import load_catalog
    from vlmplan.emit import PLAN_FILE
    from vlmplan.launch.resuming import asks_for_another_plan, kept_options, options_to_go_on
    from vlmplan.plan import read_plan

    before = asked.trainer.output_dir / PLAN_FILE
    if plan_file is None and asked.trainer.resume and before.is_file():
        plan = read_plan(before)
        if not asks_for_another_plan(given, asked.record):
            return plan, [], asked
        changed = options_to_go_on(plan, asked.record, given, load_catalog(asked.catalog_files))
        asked = dataclasses.replace(asked, planned_with=dict(asked.planned_with or {}) | kept_options(given))
        return (*planned(changed, asked.catalog_files, asked.trainer), asked)
    if plan_file is None:
        if given["model"] is None:
            raise click.UsageError("--plan FILE or --model NAME is needed", ctx)
        asked = dataclasses.replace(asked, planned_with=kept_options(given))
        return (*planned(given, asked.catalog_files, asked.trainer), asked)
    extra = sorted("--" + name.replace("_", "-") for name, value in given.items() if value is not None)
    if extra:
        raise InputError(f"{plan_file} decides everything that is planned, so {', '.join(extra)} cannot be given too")
    return read_plan(plan_file), [], dataclasses.replace(asked, planned_with=None)


def planned(
    given: dict[str, Any], catalog_files: tuple[Path, ...], trainer: TrainerOptions
) -> "tuple[Plan, list[str]]":
    """The plan that the options of estimate ask for; the data says how many samples there are, if the user does not."""
    from vlmplan.cli.estimate import requested_estimate
    from vlmplan.data_file import num_records_in
    from vlmplan.launch.optimizer_settings import refuse_other_settings
    from vlmplan.plan import plan_from_estimate
    from vlmplan.request import ds_config_of

    if given["num_samples"] is None:
        num_samples = trainer.dummy_data
        if trainer.train_data is not None and trainer.train_data.is_file():
            num_samples = num_records_in(trainer.train_data)
        given = given | {"num_samples": num_samples or None}
    result, notes = requested_estimate(given, catalog_files)
    base = ds_config_of(given)
    if base is not None:
        refuse_other_settings(base, trainer)
    every = [*result.workload.model.notes, *result.hints, *result.cautions, *notes]
    return plan_from_estimate(result, base=base), every


def prepare(plan: "Plan", asked: "Asked", notes: Sequence[str]) -> Prepared:
    """Look at this machine; the command, environment and files of the run."""
    import os

    from vlmplan.catalog import load_catalog
    from vlmplan.emit import PLAN_FILE
    from vlmplan.launch.facts import facts_of_this_machine, machine_json
    from vlmplan.launch.preflight import preflight
    from vlmplan.launch.resuming import record_to_keep
    from vlmplan.launch.run_folder import changes_of_plan, has_checkpoint, run_texts
    from vlmplan.launch.start import run_command, run_environment

    trainer, hostfile = asked.trainer, asked.hostfile
    resumes = trainer.resume and has_checkpoint(trainer.output_dir)
    notes = [*notes, *asked.notes, *(changes_of_plan(trainer.output_dir, plan) if trainer.resume else ())]
    if trainer.resume and not resumes:
        notes.append(f"{trainer.output_dir} has no checkpoint to go on from, so training starts anew")
    facts = facts_of_this_machine(plan, trainer.output_dir)
    findings = preflight(plan, trainer, facts, load_catalog(asked.catalog_files), hostfile=hostfile)
    findings = dataclasses.replace(findings, problems=(*asked.problems, *findings.problems))
    command = run_command(
        plan,
        plan_path=os.path.abspath(trainer.output_dir / PLAN_FILE),
        hostfile=hostfile,
        facts=dataclasses.replace(facts, visible_devices=None) if findings.problems else facts,
        arguments=dataclasses.replace(trainer, resume=resumes).arguments(),
    )
    environment = run_environment(plan, facts, trainer.output_dir, os.environ)
    versions = {"vlmplan": plan.vlmplan_version} | machine_json(facts)
    return Prepared(
        plan=plan,
        options=trainer,
        facts=facts,
        findings=findings,
        command=command,
        environment=environment,
        texts=run_texts(plan, command, environment, versions, record_to_keep(asked, plan)),
        notes=notes,
        catalog_files=asked.catalog_files,
        hostfile=hostfile,
    )


def with_data(prepared: Prepared) -> Prepared:
    """``prepared`` after a look at its data as its start would read it; what that refuses is one more problem."""
    from vlmplan.launch.data_look import looked_at
    from vlmplan.launch.preflight import data_problems, missing_packages

    plan, options, findings = prepared.plan, prepared.options, prepared.findings
    if options.train_data is None or any(data_problems(plan, options)):
        return prepared
    missing = missing_packages(plan, prepared.facts.packages)
    if missing:
        note = f"the data was not looked at, which needs {', '.join(missing)}"
        return dataclasses.replace(prepared, notes=[*prepared.notes, note])
    data = looked_at(plan, options, prepared.environment)
    if data.problem is not None:
        findings = dataclasses.replace(findings, problems=(*findings.problems, data.problem))
    return dataclasses.replace(prepared, findings=findings, data=data)


def document(prepared: Prepared) -> dict[str, Any]:
    """What would be run, for ``--json``."""
    return {
        "command": prepared.command,
        "environment": prepared.environment,
        "files": _files(prepared),
        "data": None if prepared.data is None else dict(prepared.data.accounts),
        "problems": list(prepared.findings.problems),
        "notes": [*prepared.notes, *prepared.findings.warnings],
        "plan": prepared.plan.as_json(),
    }


def show(prepared: Prepared) -> None:
    """Print what would be run."""
    from vlmplan.launch.start import shell_text
    from vlmplan.render import lines

    lines.say(f"would write: {', '.join(_files(prepared))}")
    lines.say_command("would run:", shell_text(prepared.command, prepared.environment))
    for line in () if prepared.data is None else prepared.data.lines():
        lines.say(line)
    say(prepared)


def _files(prepared: Prepared) -> list[str]:
    from vlmplan.launch.run_folder import LOG_FILE

    return [str(prepared.options.output_dir / name) for name in (*prepared.texts, LOG_FILE)]


def say(prepared: Prepared) -> None:
    """Print notes and problems to standard error."""
    sentences = (*prepared.notes, *prepared.findings.warnings)
    for sentence in caveats(sentences):
        click.echo(f"caution: {sentence}", err=True)
    for sentence in footnotes(sentences):
        click.echo(f"note: {sentence}", err=True)
    for sentence in prepared.findings.problems:
        click.echo(f"vlmplan: {sentence}", err=True)


def _starting(plan: "Plan") -> str:
    hardware = plan.hardware
    how = "in plain PyTorch" if plan.ds_config is None else "through DeepSpeed's launcher"
    nodes = f" on {hardware.num_nodes} machines" if hardware.num_nodes > 1 else ""
    return f"starting {counted(hardware.num_gpus, 'rank')}{nodes} {how}, which takes a while"


def start(prepared: Prepared) -> int:
    """Write the run's files, run it and return its exit code; 1 where something is in the way."""
    from vlmplan.cli.out_of_memory import tell_out_of_memory
    from vlmplan.launch.run_folder import COMMAND_FILE, LOG_FILE, has_checkpoint, locked_log, write_run_files
    from vlmplan.launch.start import ending, follow
    from vlmplan.shortage import remove_shortages

    say(prepared)
    if prepared.findings.problems:
        return VlmplanError.exit_code
    folder = prepared.options.output_dir
    click.echo(f"{_starting(prepared.plan)}; {folder / LOG_FILE} keeps what it prints", err=True)
    with locked_log(folder, resumes=prepared.options.resume) as log:
        write_run_files(folder, prepared.texts)
        remove_shortages(folder)
        log.write(f"$ {prepared.texts[COMMAND_FILE]}".encode())
        code = follow(prepared.command, prepared.environment, log, is_one_node=prepared.plan.hardware.num_nodes == 1)
    if code:
        goes_on = ", --resume goes on" if code != EXIT_OUT_OF_MEMORY and has_checkpoint(folder) else ""
        click.echo(f"vlmplan: {ending(code)}; {folder / LOG_FILE} has what it printed{goes_on}", err=True)
        tell_out_of_memory(prepared, launch, code)
    return code
