"""``vlmplan estimate``: one setup on one kind of GPU."""

from pathlib import Path
from typing import Any

import click

from vlmplan.cli.option_kinds import SectionedCommand, one_of, options
from vlmplan.cli.option_words import command_text
from vlmplan.cli.options import CATALOG, CONFIG, DATA, FOR, FORCE, JSON, ONE_CLUSTER, REPORT, SAVING, WORKLOAD
from vlmplan.cli.output import print_document, refuse_files, refuse_idle_force, write_report
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.cli.task_options import TASK
from vlmplan.commands.estimate import answered, described, print_answer, report
from vlmplan.errors import EXIT_DOES_NOT_FIT

COMPARED = ("zero", "method", "precision", "optimizer", "checkpointing")
"""What ``--compare`` takes; kept here so that --help imports no more."""


@click.command(cls=SectionedCommand)
@options(WORKLOAD[:1], CONFIG, FOR, DATA, WORKLOAD[1:], SAVING, ONE_CLUSTER, RECIPE, EVALUATION, TASK, CATALOG)
@click.option("--scaling", "scales", is_flag=True, help="Show speed and price on 1 to 128 such machines as well.")
@click.option("--compare", type=one_of(COMPARED), help="Show setups that differ in this choice side by side.")
@click.option(
    "--sample-lengths",
    "lengths",
    metavar="LENGTHS",
    help="Samples differ in length, and torch's native allocator keeps blocks for that: vary, SHORTEST-LONGEST in "
    "tokens, or a file with a length on each line, such as sample_lengths.txt of a run.",
)
@options(REPORT, FORCE, JSON)
def estimate(
    *,
    as_json: bool,
    catalog_files: tuple[Path, ...],
    scales: bool,
    compare: str | None,
    lengths: str | None,
    html: Path | None,
    force: bool,
    **given: Any,
) -> int:
    """Bytes per phase and component, host RAM, disk and seconds of one setup.

    --scaling adds when another machine stops paying: for the same samples a step, and for the same samples a GPU.

    Where it does not fit, it ends with the least changes that do on the same cards and with the cheapest other machine.
    Exit code 0 if it fits (or is tight), 3 if it does not.
    """
    from vlmplan.request import parse

    refuse_idle_force({"--html": html}, force=force)
    refuse_files({"--html": html}, force=force)
    request, order = parse(given), tuple(given)
    command = command_text(estimate, catalog_files, order=order, lengths=lengths)
    if compare is not None:
        if lengths is not None:
            raise click.UsageError("--sample-lengths does not go with --compare; give one of them")
        if scales:
            raise click.UsageError("--scaling does not go with --compare; give one of them")
        from vlmplan.cli.compare import run_comparison

        asked = f"{command(request)} --compare {compare}"
        fits = run_comparison(compare, request, catalog_files, as_json=as_json, html=html, asked=asked, force=force)
        return 0 if fits else EXIT_DOES_NOT_FIT
    answer = answered(request, catalog_files, lengths, scales=scales)
    write_report(html, lambda: report(answer, command(request), command), force=force)
    if as_json:
        print_document(described(answer, command))
    else:
        print_answer(answer, command)
    from vlmplan.memory.device import Verdict

    return EXIT_DOES_NOT_FIT if answer.estimate.verdict is Verdict.DOES_NOT_FIT else 0
