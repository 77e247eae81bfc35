"""The files of a setup for another trainer: its keys as YAML, its DeepSpeed file, and a script that starts it.

All of them lie in one folder, in which the script runs: names in them are of that folder.
"""

import json
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vlmplan.emit.plain_trainer_script import script_text
from vlmplan.emit.scripts import cards_by_place
from vlmplan.emit.trl_script import trl_script_text
from vlmplan.emit.write import write_texts
from vlmplan.estimation import Estimate
from vlmplan.other_trainers.writing import DS_CONFIG_FILE, Tool, WrittenSetup, needs_processes, title_of
from vlmplan.plain_text import one_line
from vlmplan.recipe import Recipe, engine_name
from vlmplan.units import gib_text
from vlmplan.versions import VLMPLAN_VERSION
from vlmplan.workload import Workload

START_FILE = "train.sh"


def trainer_file_names(written: WrittenSetup) -> list[str]:
    """The names of its files."""
    names = [written.file, written.script, None if written.deepspeed is None else DS_CONFIG_FILE, START_FILE]
    return [name for name in names if name is not None]


def checked_file(written: WrittenSetup) -> str:
    """The file that says all that the setup does: LLaMA-Factory's keys set no variables, its script does."""
    return START_FILE if written.tool is Tool.LLAMA_FACTORY else written.file


def trainer_file_texts(written: WrittenSetup, estimate: Estimate, *, check: str) -> dict[str, str]:
    """The files by name. ``check`` is the command that reads them back, run in their folder."""
    head = _head(written, estimate, check)
    texts = {written.file: _comments(head) + "".join(f"{line}\n" for line in _yaml_lines(written))}
    if written.script is not None:
        texts[written.script] = _program(written, estimate.recipe, estimate.workload, head)
    if written.deepspeed is not None:
        texts[DS_CONFIG_FILE] = json.dumps(written.deepspeed, indent=2, ensure_ascii=False) + "\n"
    texts[START_FILE] = "\n".join(_start_lines(written, estimate, head)) + "\n"
    return texts


def _program(written: WrittenSetup, recipe: Recipe, workload: Workload, head: list[str]) -> str:
    if written.tool is Tool.TRL:
        return trl_script_text(head, None if recipe.task is None else recipe.task.kind, recipe.evaluation)
    return script_text(head, recipe, workload)


def write_trainer_files(
    written: WrittenSetup, estimate: Estimate, directory: Path, *, check: str, force: bool = False
) -> list[Path]:
    """Write the files into ``directory``, made if need be; their paths.

    Raises InputError, before anything is written, if one of them exists and ``force`` is off.
    """
    texts = trainer_file_texts(written, estimate, check=check)
    contents: dict[str, str | bytes] = {**texts}
    return write_texts(contents, directory, executable=START_FILE, force=force)


def started_command(written: WrittenSetup) -> str:
    """The command with the variables that it needs, as one line of shell."""
    variables = [f'{name}="{value}"' if "$" in value else f"{name}={value}" for name, value in _variables(written)]
    return " ".join([*variables, *map(_word, written.command)])


def _head(written: WrittenSetup, estimate: Estimate, check: str) -> list[str]:
    recipe, cluster, device = estimate.recipe, estimate.cluster, estimate.device
    engine, model = engine_name(recipe, cluster.num_gpus), estimate.workload.model
    return [
        f"{one_line(model.hub_id or model.id)}: {recipe.method.value}, {engine}, "
        f"{cluster.num_gpus} x {cluster.node.gpu.id}. Written by vlmplan {VLMPLAN_VERSION} for "
        f"{title_of(written.tool)}.",
        f"Planned: {gib_text(device.device_bytes)} of {gib_text(device.usable_bytes)} on each GPU; asked again by",
        f"  {one_line(check)}",
    ]


def _comments(lines: list[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


def _yaml_lines(written: WrittenSetup) -> Iterator[str]:
    """A line for each key, with what is to be filled in behind it, or why it is there."""
    import yaml

    for key, value in written.settings.items():
        dump = partial(yaml.safe_dump, allow_unicode=True, sort_keys=False, width=10**6)
        if isinstance(value, list):
            line = f"{key}: {dump(value, default_flow_style=True)}".rstrip("\n")
        else:
            line = dump({key: value}, default_flow_style=False).rstrip("\n")
        notes = {**written.reasons, **{name: f"fill in: {what}" for name, what in written.to_fill_in.items()}}
        yield f"{line}  # {notes[key]}" if key in notes else line


def _start_lines(written: WrittenSetup, estimate: Estimate, head: list[str]) -> Iterator[str]:
    cluster = estimate.cluster
    yield "#!/usr/bin/env bash"
    yield from (f"# {line}" for line in head)
    yield "set -euo pipefail"
    yield 'cd -- "$(dirname -- "${BASH_SOURCE[0]}")"'
    if cluster.num_nodes > 1:
        yield f"# Run it on each of the {cluster.num_nodes} machines."
        yield ': "${NODE_RANK:?0 on the first machine, 1 on the next}" "${MASTER_ADDR:?address of the first machine}"'
        yield "export NODE_RANK MASTER_ADDR"
    if not needs_processes(estimate.recipe, cluster):
        yield from cards_by_place(cluster.node.gpu.vendor.value)
        yield 'export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}" # more than one would be used at once'
    for name, value in _variables(written):
        yield f'export {name}="{value}"' if "$" in value else f'export {name}="${{{name}:-{value}}}"'
    yield f"exec {' '.join(map(_word, written.command))}"


def _variables(written: WrittenSetup) -> list[tuple[str, str]]:
    return list(written.environment.items())


def _word(word: str) -> str:
    return f'"{word}"' if "$" in word else shlex.quote(word)
