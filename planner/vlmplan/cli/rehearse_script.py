"""``vlmplan rehearse ... -- python train.py``: one rank of anybody's script on tensors without data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from vlmplan.cli.options import Decorator, print_document
from vlmplan.errors import InputError

GIB = 2**30
DEFAULT_MINUTES = 10.0
TAKEN = ("gpu", "num_nodes", "host_ram", "inter_node_gbit")
"""Options of estimate that say something of a script's machine."""
NUM_PHASES_OUTSIDE, NUM_PHASES_OF_STEP = 4, 3
SCRIPT: tuple[Decorator, ...] = (
    click.option(
        "--assume",
        multiple=True,
        metavar="FILE:LINE=VALUE",
        help="Of a script: what is read at that line where a value is unknown.  [default: 0, False]",
    ),
    click.option("--longest", is_flag=True, help="Of a script: train on batches of its longest samples."),
    click.option("--allow-network", is_flag=True, help="Of a script: let it reach networks."),
    click.option(
        "--max-minutes", type=click.FloatRange(min=0.0, min_open=True), metavar="N", help="Of a script.  [default: 10]"
    ),
    click.option(
        "--max-rehearsal-ram",
        type=click.FloatRange(min=0.0, min_open=True),
        metavar="GIB",
        help="Of a script: end it above so much of this machine's memory.",
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
    max_minutes: float | None
    max_rehearsal_ram: float | None

    @property
    def given(self) -> list[str]:
        values = {
            "--assume": self.assume,
            "--longest": self.longest,
            "--allow-network": self.allow_network,
            "--max-minutes": self.max_minutes,
            "--max-rehearsal-ram": self.max_rehearsal_ram,
        }
        return [name for name, value in values.items() if value]


def rehearse_words(
    asked: ScriptOptions,
    given: dict[str, Any],
    catalog_files: Sequence[Path],
    *,
    rank: int | None,
    num_steps: int | None,
    trace: Path | None,
    force: bool,
    as_json: bool,
) -> bool:
    """Rehearse a command, and print what came of it; whether it fits."""
    from vlmplan.answers.script_rehearsal import document, print_script_rehearsal
    from vlmplan.catalog import load_catalog
    from vlmplan.files import write_atomically
    from vlmplan.memory.device import Verdict
    from vlmplan.rehearsal.perfetto import trace_text
    from vlmplan.rehearsal.script import rehearse_script
    from vlmplan.render.progress import rehearsal_progress
    from vlmplan.request import own_request, requested_cluster

    machine = {name: value for name, value in given.items() if name in TAKEN}
    refused = sorted("--" + name.replace("_", "-") for name, value in given.items() if value and name not in TAKEN)
    if refused:
        raise InputError(f"the script decides how it trains, so {', '.join(refused)} cannot be given too")
    cluster, _ = requested_cluster(own_request(machine).hardware, load_catalog(tuple(catalog_files)))
    minutes = asked.max_minutes or DEFAULT_MINUTES
    ram = asked.max_rehearsal_ram
    with rehearsal_progress(NUM_PHASES_OUTSIDE + NUM_PHASES_OF_STEP * (num_steps or NUM_PHASES_OF_STEP)) as say:
        found = rehearse_script(
            asked.words,
            cluster,
            rank=rank,
            num_steps=num_steps,
            assumptions=asked.assume,
            allows_network=asked.allow_network,
            longest=asked.longest,
            max_host_bytes=None if ram is None else int(ram * GIB),
            max_seconds=60 * minutes,
            say=say,
        )
    if trace is not None:
        write_atomically(trace, trace_text(found), force=force)
    if as_json:
        print_document(document(found))
    else:
        print_script_rehearsal(found)
    return found.verdict is not Verdict.DOES_NOT_FIT
