"""``vlmplan recommend``: the cheapest, fastest or smallest setup over many kinds of hardware."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.completion import gpu_names
from vlmplan.cli.option_kinds import FILE, REAL, WHOLE, SectionedCommand, one_of, options, under
from vlmplan.cli.option_words import command_text
from vlmplan.cli.options import (
    CALIBRATION,
    CATALOG,
    CONFIG,
    DATA,
    FOR,
    HOST_RAM,
    JSON,
    MACHINES,
    NETWORK,
    OFFERS,
    PRICES,
    PRICING,
    REPORT,
    WORKLOAD,
)
from vlmplan.cli.output import print_document, refuse_files, refuse_idle_force, waiting_at, write_report
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.cli.refresh import REFRESH, refresh_prices
from vlmplan.cli.task_options import TASK
from vlmplan.commands.day import today
from vlmplan.commands.other_trainer import for_trainer, next_steps
from vlmplan.commands.recommend import (
    answered,
    compared,
    described,
    next_steps_of,
    print_answer,
    refuse_without_prices,
    report,
)
from vlmplan.errors import EXIT_DOES_NOT_FIT

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.plan import Plan
    from vlmplan.rehearsal import Comparison
    from vlmplan.search import Recommendation


SOME_MACHINES = under(
    MACHINES,
    click.option(
        "--gpu",
        multiple=True,
        shell_complete=gpu_names,
        metavar="NAME[:COUNT]",
        help="Only these GPUs (repeatable); local is those of this machine.",
    ),
    click.option("--num-nodes", type=WHOLE, metavar="N", help="Number of equal machines.  [default: 1]"),
    HOST_RAM,
    NETWORK,
    CALIBRATION,
)
OBJECTIVE = under(
    OFFERS,
    click.option(
        "--objective",
        type=one_of(("cost", "time", "vram")),
        default="cost",
        show_default=True,
        help="Look for the cheapest run, the fastest, or the one that leaves the most memory free.",
    ),
)
LIMITS = under(
    OFFERS,
    click.option("--max-usd-per-hour", type=REAL, metavar="USD", help="For all machines together."),
    click.option("--max-usd", type=REAL, metavar="USD", help="For the whole run."),
    click.option("--max-hours", type=REAL, metavar="N", help="Of training; start-up and download come on top."),
    click.option("--provider", multiple=True, metavar="NAME", help="Only offers of this provider (repeatable)."),
    click.option("--region", multiple=True, metavar="NAME", help="Only offers that say this region (repeatable)."),
    click.option(
        "--pricing",
        multiple=True,
        type=one_of(PRICING),
        help="Only such offers (repeatable).  [default: on_demand, own]",
    ),
    *PRICES,
)


@click.command(cls=SectionedCommand)
@options(WORKLOAD[:1], CONFIG, FOR, DATA, WORKLOAD[1:], SOME_MACHINES, OBJECTIVE, LIMITS, REFRESH)
@options(RECIPE, EVALUATION, TASK, CATALOG)
@click.option(
    "--out",
    type=FILE,
    metavar="DIR",
    help="Write plan.json, ds_config.json, launch.sh; hostfile and job.slurm for several machines; sky.yaml for rented "
    "ones that SkyPilot knows; with --for that trainer's own file, its DeepSpeed file and train.sh.",
)
@click.option("--pareto", "shows_pareto", is_flag=True, help="Show cost against time of everything that fits.")
@options(REPORT)
@click.option("--svg", type=FILE, metavar="FILE", help="Write cost against time as a picture.")
@click.option("--force", is_flag=True, help="Let --out, --html and --svg overwrite files.")
@click.option("--rehearse", "rehearses", is_flag=True, help="Rehearse the first plan before it is shown.")
@options(JSON)
def recommend(
    *,
    as_json: bool,
    catalog_files: tuple[Path, ...],
    out: Path | None,
    html: Path | None,
    svg: Path | None,
    force: bool,
    rehearses: bool,
    shows_pareto: bool,
    refreshes: bool,
    **given: Any,
) -> int:
    """Search the catalog's offers, or the given GPUs, for the best setup that fits.

    Options of the recipe that you give are held fixed; everything else is tried. --pareto shows the setups than which
    no other is both faster and cheaper. Where nothing fits, it ends with the least changes that do on the same cards
    and with the cheapest other machine. Exit code 3 if nothing fits.

    A run's price holds start-up, download, training, checkpoints and a week of disk. With --pricing interruptible it
    also holds what interruptions make you do again, for checkpoints at the distance that costs least.
    """
    from vlmplan.cli.check import check_words
    from vlmplan.request import parse

    pictures = {"--html": html, "--svg": svg}
    refuse_idle_force({"--out": out, **pictures}, force=force)
    refuse_files(pictures, force=force)
    if out is not None:
        from vlmplan.emit import refuse_directory

        refuse_directory(out)
    compares = compared(has_picture=html is not None or svg is not None, has_plot=shows_pareto and not as_json)
    request = parse(given)
    if refreshes:
        refuse_without_prices(request, catalog_files, today())
        refresh_prices(today(), catalog_files, providers=given["provider"])
    rehearse = _with_bar if rehearses else None
    waiting = waiting_at("searching", as_json=as_json)
    answer = answered(
        request, catalog_files, compares=compares, shows_pareto=shows_pareto, rehearse=rehearse, waiting=waiting
    )
    found, made = answer.found, None
    if found.plans:
        made = for_trainer(request, found.plans[0].estimate, catalog_files, out, words=check_words, force=force)
    lines = next_steps_of(found, request, out, force=force) if made is None else next_steps(made)
    command = command_text(recommend, catalog_files, order=tuple(given))
    lines += _write_picture(found, svg, force=force)
    lines += write_report(html, lambda: report(answer, command(request), command), force=force)
    if as_json:
        print_document(described(answer, command, made))
    else:
        print_answer(answer, lines, command)
    return 0 if found.plans else EXIT_DOES_NOT_FIT


def _with_bar(plan: "Plan", estimate: "Estimate") -> "Comparison":
    from vlmplan.cli.rehearse import rehearsed

    return rehearsed(plan, estimate)


def _write_picture(found: "Recommendation", path: Path | None, *, force: bool) -> list[str]:
    """Write cost against time where the user wants it, and say so; nothing where nothing fits."""
    if not found.plans or path is None:
        return []
    from vlmplan.answers.front_picture import svg_text
    from vlmplan.files import write_atomically

    write_atomically(path, svg_text(found), force=force)
    return [f"written: {path}"]
