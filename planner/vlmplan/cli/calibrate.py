"""``vlmplan calibrate``: measure this machine's GPU in place of what estimates assume."""

from pathlib import Path

import click

from vlmplan.cli.option_kinds import FILE, options
from vlmplan.cli.options import CATALOG, JSON
from vlmplan.cli.output import print_document, refuse_files, refuse_idle_force
from vlmplan.cli.strict_command import StrictCommand
from vlmplan.commands.day import today
from vlmplan.render.lines import tell


@click.command(cls=StrictCommand)
@click.option("--gpu", "name", default="local", show_default=True, metavar="NAME[:COUNT]", help="local, or cpu:RANKS.")
@click.option("--quick", "is_quick", is_flag=True, help="In two minutes at most, not eight.")
@click.option("--out", type=FILE, metavar="FILE", help="Write it there, and not where estimates look for it.")
@click.option("--force", is_flag=True, help="Overwrite that file.")
@options(CATALOG, JSON)
def calibrate(
    *, name: str, is_quick: bool, out: Path | None, force: bool, catalog_files: tuple[Path, ...], as_json: bool
) -> None:
    """Measure what estimates assume of a GPU and its host: speeds, the host's overheads, bytes that are always there.

    It takes at most 8 minutes, and the card should have nothing else to do. What was measured goes into
    ~/.config/vlmplan/calibration/GPU.json. From then on estimates for that GPU use it and say so; --no-calibration
    leaves it out. Ctrl-C leaves the file as it was.
    """
    from vlmplan.answers.calibration import document, print_calibration
    from vlmplan.calibrating import calibrate as measure
    from vlmplan.calibrating import keep, measured_machine
    from vlmplan.catalog import load_catalog
    from vlmplan.gpu_choice import parse_gpu_choice

    refuse_idle_force({"--out": out}, force=force)
    refuse_files({"--out": out}, force=force)
    catalog = load_catalog(catalog_files).without_calibrations()  # one that cannot be read is to be measured again
    machine = measured_machine(parse_gpu_choice(name), catalog)
    found = measure(machine, is_quick=is_quick, on=today(), say=lambda part: tell(f"measuring {part}"))
    path = keep(found, out, force=force)
    if as_json:
        print_document(document(found, path))
    else:
        print_calibration(found, path, is_used=out is None)
