"""``vlmplan diagnose``: why a run ran out of memory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.option_kinds import FILE, SectionedCommand, options, under
from vlmplan.cli.option_words import command_text, given_flags
from vlmplan.cli.options import CATALOG, CONFIG, DATA, JSON, MODEL, MODEL_AND_SAMPLES, ONE_CLUSTER, WORKLOAD
from vlmplan.cli.output import print_document
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.cli.task_options import TASK
from vlmplan.commands.diagnose import described, diagnosed, files_of, print_found, request_of_plan

if TYPE_CHECKING:
    from vlmplan.request import Request

PLAN = under(
    MODEL_AND_SAMPLES,
    click.option(
        "--plan", "plan_file", type=FILE, metavar="FILE", help="The plan.json that the run was of, or its folder."
    ),
)


@click.command(cls=SectionedCommand)
@click.argument("log", type=FILE)
@options(PLAN, CONFIG, MODEL, DATA, WORKLOAD[1:], ONE_CLUSTER, RECIPE, EVALUATION, TASK, CATALOG, JSON)
def diagnose(log: Path, *, plan_file: Path | None, as_json: bool, catalog_files: tuple[Path, ...], **given: Any) -> int:
    """Which phase of a run ran out of memory, why, and the smallest change that fits.

    LOG is a training log, a traceback or the message alone; - is standard input. The folder of a run of vlmplan launch
    has its log and its plan. Of a long log the end is read. Forms of torch's messages since 2.0 are known, of CUDA,
    HIP, XPU, MPS and the CPU, and what the system says of a full host, disk or /dev/shm.

    With the setup (--config, --plan, or --model and --gpu with the options of vlmplan estimate) what was planned stands
    beside what was needed. Exit code 1 where there is no such message.
    """
    from vlmplan.cli.estimate import estimate
    from vlmplan.diagnosis import read_log

    log, own_plan = files_of(log)
    request = _request(plan_file, given, catalog_files, own_plan=own_plan)
    found = diagnosed(read_log(log), request, catalog_files)
    command = command_text(estimate, catalog_files, order=("config", *given))
    if as_json:
        print_document(described(found, command))
    else:
        print_found(found, command)
    return 0


def _request(
    plan_file: Path | None, given: dict[str, Any], catalog_files: tuple[Path, ...], *, own_plan: Path | None
) -> "Request | None":
    """The setup that is named, that of the run's ``own_plan`` where none is; None where there is none."""
    from vlmplan.request import parse

    options_given = given_flags(diagnose, given)
    if plan_file is not None:
        if options_given:
            raise click.UsageError(f"--plan is the whole setup; {options_given[0]} does not go with it")
        return request_of_plan(plan_file, catalog_files)
    if not options_given:
        return None if own_plan is None else request_of_plan(own_plan, catalog_files)
    if given["model"] is None and given["config"] is None:
        raise click.UsageError(f"{options_given[0]} needs the model: give --model, --config or --plan")
    request = parse(given)
    if not request.hardware.gpus:
        raise click.UsageError("--gpu NAME:COUNT is needed with a model: what the run was on")
    return request
