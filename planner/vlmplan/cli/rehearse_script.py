"""``vlmplan rehearse ... -- python train.py``: one rank of anybody's script on tensors without data."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.option_kinds import Number, under
from vlmplan.errors import InputError
from vlmplan.units import GIB

if TYPE_CHECKING:
    from vlmplan.rehearsal.script import ScriptRehearsal

DEFAULT_MINUTES = 10.0
FILES_WITH_OPTIONS = (".json", ".yaml", ".yml")
"""How files end that options name: a plan, or a trainer's configuration. No command is called so."""
TAKEN = ("gpu", "num_nodes", "host_ram", "inter_node_gbit", "calibration")
"""Options of estimate that say something of a script's machine."""
FLAGS = ("--longest", "--allow-network", "--allow-programs")
NUM_PHASES_OUTSIDE, NUM_PHASES_OF_STEP = 4, 3
SCRIPT = under(
    "A script of your own",
    click.option(
        "--assume",
        multiple=True,
        metavar="FILE:LINE=VALUE",
        help="What is read at that line where a value is unknown.  [default: 0, False]",
    ),
    click.option("--longest", is_flag=True, help="Train on batches of its longest samples."),
    click.option("--allow-network", is_flag=True, help="Let it reach networks."),
    click.option("--allow-programs", is_flag=True, help="Let it start other programs."),
    click.option(
        "--max-minutes", type=Number(min=0.0, min_open=True), metavar="N", help="That it may take.  [default: 10]"
    ),
    click.option(
        "--max-rehearsal-ram",
        type=Number(min=0.0, min_open=True),
        metavar="GIB",
        help="End it above so much of this machine's memory.",
    ),
    click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """What is said of a script's rehearsal alone."""

    words: tuple[str, ...]
    assume: tuple[str, ...]
    longest: bool
    allow_network: bool
    allow_programs: bool
    max_minutes: float | None
    max_rehearsal_ram: float | None

    @property
    def given(self) -> list[str]:
        values = {
            "--assume": self.assume,
            "--longest": self.longest,
            "--allow-network": self.allow_network,
            "--allow-programs": self.allow_programs,
            "--max-minutes": self.max_minutes,
            "--max-rehearsal-ram": self.max_rehearsal_ram,
        }
        return [name for name, value in values.items() if value]


def rehearse_words(
    asked: ScriptOptions,
    given: dict[str, Any],
    catalog_files: Sequence[Path],
    *,
    others: Sequence[str],
    rank: int | None,
    num_steps: int | None,
) -> "ScriptRehearsal":
    """The rehearsal of a command, with a bar on the terminal meanwhile; ``others`` are options that are no business of
    a script's."""
    from vlmplan.catalog import load_catalog
    from vlmplan.rehearsal.script import ScriptSettings, rehearse_script
    from vlmplan.render.progress import progress_bar
    from vlmplan.request import own_request, requested_cluster

    if len(asked.words) == 1 and asked.words[0].endswith(FILES_WITH_OPTIONS):
        raise InputError(
            f"{asked.words[0]} is no command that trains; a plan is given as --plan FILE, a trainer's configuration as "
            "--config FILE"
        )
    if others:
        raise InputError(f"the script decides how it trains, so {', '.join(others)} cannot be given too")
    machine = {name: value for name, value in given.items() if name in TAKEN}
    cluster, _ = requested_cluster(own_request(machine).hardware, load_catalog(tuple(catalog_files)))
    ram = asked.max_rehearsal_ram
    settings = ScriptSettings(
        rank=rank,
        num_steps=num_steps,
        assumptions=asked.assume,
        allows_network=asked.allow_network,
        allows_programs=asked.allow_programs,
        longest=asked.longest,
        max_host_bytes=None if ram is None else int(ram * GIB),
        max_seconds=60 * (asked.max_minutes or DEFAULT_MINUTES),
    )
    with progress_bar("rehearsing", NUM_PHASES_OUTSIDE + NUM_PHASES_OF_STEP * (num_steps or NUM_PHASES_OF_STEP)) as say:
        return rehearse_script(asked.words, cluster, settings, say)


def script_text(
    asked: ScriptOptions, given: dict[str, Any], catalog_files: Sequence[Path], rank: int | None, num_steps: int | None
) -> str:
    """The command line that asks for the same rehearsal."""
    values: dict[str, Any] = {name.replace("_", "-"): given.get(name) for name in TAKEN if name != "calibration"}
    values |= {"rank": rank, "steps": num_steps, "max-minutes": asked.max_minutes}
    values |= {"max-rehearsal-ram": asked.max_rehearsal_ram}
    words = ["vlmplan", "rehearse"]
    for name, value in values.items():
        if value is not None:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    uses_calibration = given.get("calibration")
    words += [] if uses_calibration is None else [f"--{'' if uses_calibration else 'no-'}calibration"]
    words += [word for file in catalog_files for word in ("--catalog", file.name)]
    words += [word for text in asked.assume for word in ("--assume", text)]
    words += [name for name in FLAGS if name in asked.given]
    return shlex.join([*words, "--", *asked.words])
