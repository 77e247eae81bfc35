"""What ``vlmplan launch`` says after a run whose memory ran out."""

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.options import words_of
from vlmplan.errors import VlmplanError
from vlmplan.training import EXIT_OUT_OF_MEMORY, TrainerOptions, default_of
from vlmplan.units import gib_text

if TYPE_CHECKING:
    from vlmplan.cli.launch import Prepared
    from vlmplan.launch.out_of_memory import Correction, Remedy
    from vlmplan.shortage import Shortage

DS_CONFIG_TO_FIT = "ds_config-to-fit.json"


def tell_out_of_memory(prepared: "Prepared", command: click.Command, code: int) -> None:
    """Say on standard error where memory ran out, planned against actual, and the ``command`` that would fit.

    Nothing where the run's ranks left no word of it.
    """
    from vlmplan.shortage import read_shortages

    shortages = read_shortages(prepared.options.output_dir) if code else []
    if not shortages:
        if code == EXIT_OUT_OF_MEMORY:
            click.echo("vlmplan: memory ran out on a rank whose folder is not on this machine", err=True)
        return
    worst = max(shortages, key=_excess)
    others = f" ({len(shortages)} ranks ran out; this is the fullest)" if len(shortages) > 1 else ""
    click.echo(f"vlmplan: {worst.sentence()}{others}", err=True)
    try:
        for line in _advice(prepared, command, worst):
            click.echo(line, err=True)
    except VlmplanError as error:
        click.echo(f"vlmplan: what would fit cannot be said: {error}", err=True)


def _excess(shortage: "Shortage") -> float:
    """How far the rank was beyond its plan; who does not know comes last."""
    return (shortage.needed_bytes or 0) / (shortage.planned_bytes or float("inf"))


def _advice(prepared: "Prepared", command: click.Command, shortage: "Shortage") -> Iterator[str]:
    from vlmplan.catalog import load_catalog
    from vlmplan.launch.out_of_memory import Planner, correction_of, smallest_remedy

    plan, facts = prepared.plan, prepared.facts
    if shortage.is_on_host and plan.hardware.vendor != "cpu":
        needed = gib_text(plan.expected.host_bytes_per_node)
        yield f"vlmplan: it was not the GPU's memory; the plan needs {needed} of the host's on every node"
        return
    correction = correction_of(shortage, plan, host_ram_bytes=facts.host_ram_bytes)
    planner = Planner(plan, load_catalog(prepared.catalog_files), packages=facts.packages)
    remedy = smallest_remedy(planner, correction)
    changed = shlex.join(words_of(command, remedy.changed))
    if not remedy.fits:
        yield f"vlmplan: nothing that can be changed makes it fit{_even_with(changed)}: {_numbers(remedy, correction)}"
        return
    results = "trains the same but for rounding" if remedy.keeps_results else "trains something else"
    yield f"vlmplan: the smallest change that fits is {changed}, which {results}: {_numbers(remedy, correction)}"
    yield f"to fit: {shlex.join(_command_to_fit(prepared, command, remedy))}"


def _even_with(changed: str) -> str:
    return f", not even {changed}" if changed else ""


def _numbers(remedy: "Remedy", correction: "Correction") -> str:
    """What the setup of ``remedy`` needs, and how that is known."""
    found = remedy.setup.estimate
    text = f"planned {gib_text(found.device.reserved_bytes)}"
    ratio, limit = correction.ratio_for(found), correction.limit_bytes
    if ratio > 1:
        needed = gib_text(correction.needed_bytes(found))
        text += f", {needed} when raised by the {ratio:.2f} that this run was over its plan"
    if limit is None:
        return text + "; what this run took is not known, so this goes by the plan alone"
    return text + f", of {gib_text(limit)} that there are for it"


def _command_to_fit(prepared: "Prepared", command: click.Command, remedy: "Remedy") -> list[str]:
    """``vlmplan launch`` with every option of the changed setup, the same data, and a new folder."""
    folder = prepared.options.output_dir
    options: dict[str, Any] = dict(remedy.setup.options)
    if remedy.setup.ds_config is not None:
        options["ds_config"] = folder / DS_CONFIG_TO_FIT
        _write_ds_config(options["ds_config"], remedy.setup.ds_config)
    options |= run_options(prepared)
    options["output_dir"] = _new_folder(folder)
    return ["vlmplan", "launch", *words_of(command, options)]


def run_options(prepared: "Prepared") -> dict[str, Any]:
    """The options of ``vlmplan launch`` that do not plan: catalogs, nodes, and what the trainer is told, but for the
    folder and ``--resume``."""
    options: dict[str, Any] = {"catalog_files": prepared.catalog_files, "hostfile": prepared.hostfile}
    for item in fields(TrainerOptions):
        value = getattr(prepared.options, item.name)
        if value != default_of(item) and item.name not in ("output_dir", "resume"):
            options[item.name] = value
    return options


def _write_ds_config(path: Path, content: Mapping[str, Any]) -> None:
    from vlmplan.files import write_atomically

    write_atomically(path, json.dumps(dict(content), indent=2) + "\n", force=True)


def _new_folder(folder: Path) -> Path:
    """The same name with the next free number: ``runs/1-2`` after ``runs/1``."""
    names = (folder.with_name(f"{folder.name}-{number}") for number in range(2, 10**6))
    return next(path for path in names if not os.path.lexists(path))
