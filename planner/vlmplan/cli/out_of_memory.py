"""What ``vlmplan launch`` says after a run whose memory ran out."""

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vlmplan.answers.out_of_memory import fullest, host_sentence, remedy_sentence, shortage_sentence
from vlmplan.catalog import load_catalog
from vlmplan.cli.launch_options import parser
from vlmplan.cli.option_words import ClickValues, words_of
from vlmplan.errors import VlmplanError
from vlmplan.files import write_atomically
from vlmplan.launch.out_of_memory import Planner, Remedy, correction_of, smallest_remedy
from vlmplan.launch.prepared import PreparedRun
from vlmplan.render.lines import tell
from vlmplan.run.shortage import Shortage, read_shortages
from vlmplan.run.training import EXIT_OUT_OF_MEMORY, TrainerOptions, default_of

DS_CONFIG_TO_FIT = "ds_config-to-fit.json"


def tell_out_of_memory(prepared: PreparedRun, code: int) -> None:
    """Say on standard error where memory ran out, planned against actual, and the command that would fit.

    Nothing where the run's ranks left no word of it.
    """
    shortages = read_shortages(prepared.options.output_dir) if code else []
    if not shortages:
        if code == EXIT_OUT_OF_MEMORY:
            tell("vlmplan: memory ran out on a rank whose folder is not on this machine")
        return
    worst = fullest(shortages)
    tell(f"vlmplan: {shortage_sentence(shortages)}")
    try:
        for line in _advice(prepared, worst):
            tell(line)
    except VlmplanError as error:
        tell(f"vlmplan: what would fit cannot be said: {error}")


def _advice(prepared: PreparedRun, shortage: Shortage) -> Iterator[str]:
    plan, facts = prepared.plan, prepared.facts
    if shortage.is_on_host and plan.hardware.vendor != "cpu":
        yield f"vlmplan: {host_sentence(plan)}"
        return
    correction = correction_of(shortage, plan, host_ram_bytes=facts.host_ram_bytes)
    planner = Planner(plan, load_catalog(prepared.catalog_files), packages=facts.packages)
    remedy = smallest_remedy(planner, correction)
    yield f"vlmplan: {remedy_sentence(remedy, correction, shlex.join(words_of(parser, remedy.changed)))}"
    if remedy.fits:
        yield f"to fit: {shlex.join(_command_to_fit(prepared, remedy))}"


def _command_to_fit(prepared: PreparedRun, remedy: Remedy) -> list[str]:
    """``vlmplan launch`` with every option of the changed setup, the same data, and a new folder."""
    folder = prepared.options.output_dir
    options: ClickValues = remedy.setup.request.options()
    if remedy.setup.ds_config is not None:
        options["ds_config"] = folder / DS_CONFIG_TO_FIT
        _write_ds_config(options["ds_config"], remedy.setup.ds_config)
    options |= run_options(prepared)
    options["output_dir"] = _new_folder(folder)
    return ["vlmplan", "launch", *words_of(parser, options)]


def run_options(prepared: PreparedRun) -> ClickValues:
    """The options of ``vlmplan launch`` that do not plan: catalogs, nodes, and what the trainer is told, but for the
    folder and ``--resume``."""
    options: ClickValues = {"catalog_files": prepared.catalog_files, "hostfile": prepared.hostfile}
    for item in fields(TrainerOptions):
        value = getattr(prepared.options, item.name)
        if value != default_of(item) and item.name not in ("output_dir", "resume"):
            options[item.name] = value
    return options


def _write_ds_config(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(dict(content), indent=2) + "\n", force=True)


def _new_folder(folder: Path) -> Path:
    """The same name with the next free number: ``runs/1-2`` after ``runs/1``."""
    names = (folder.with_name(f"{folder.name}-{number}") for number in range(2, 10**6))
    return next(path for path in names if not os.path.lexists(path))
