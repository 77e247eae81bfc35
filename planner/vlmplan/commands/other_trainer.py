"""``--for``: what is written for another trainer, and how to start it and ask again."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.files.json_reader import JsonDict
    from vlmplan.other_trainers.writing import WrittenSetup
    from vlmplan.request import Request

CheckWords = Callable[[Mapping[str, Any]], Sequence[str]]
"""The words of ``vlmplan check`` that give these options."""


class ForTrainer(NamedTuple):
    """A setup for another trainer; ``directory`` is where its files are, None where they are not written."""

    setup: "WrittenSetup"
    directory: Path | None
    check_words: tuple[str, ...]
    """Of the command that reads the files back, but for the file."""
    catalogs: tuple[Path, ...]

    @property
    def title(self) -> str:
        """The trainer by its name."""
        from vlmplan.other_trainers.writing import title_of

        return title_of(self.setup.tool)

    def check_command(self, directory: Path | None) -> str:
        """``vlmplan check FILE`` with what no file says; in the folder itself where ``directory`` is None."""
        from vlmplan.emit.trainer_files import checked_file

        name = checked_file(self.setup)
        file = name if directory is None else str(directory / name)
        catalogs = [word for path in self.catalogs for word in ("--catalog", str(path))]
        return shlex.join(["vlmplan", "check", file, *self.check_words, *catalogs])


def for_trainer(
    request: "Request",
    estimate: "Estimate",
    catalog_files: tuple[Path, ...],
    out: Path | None,
    *,
    words: CheckWords,
    force: bool,
) -> ForTrainer | None:
    """What an estimate is as the setup of the trainer that ``request`` is made for, written where ``out`` says so; None
    where the bundled one runs it."""
    if request.written_for is None:
        return None
    from vlmplan.emit.trainer_files import write_trainer_files
    from vlmplan.other_trainers.writing import settings_for
    from vlmplan.plan import largest_parameter

    setup = settings_for(
        request.written_for,
        estimate.recipe,
        estimate.workload,
        estimate.cluster,
        base=request.ds_config,
        largest_parameter=largest_parameter(estimate),
    )
    check_words = tuple(words(_check_options(request, estimate, setup)))
    made = ForTrainer(setup=setup, directory=out, check_words=check_words, catalogs=catalog_files)
    if out is not None:
        write_trainer_files(setup, estimate, out, check=made.check_command(None), force=force)
    return made


def _check_options(request: "Request", estimate: "Estimate", setup: "WrittenSetup") -> dict[str, Any]:
    """What no file says. A rented machine has the host memory by which it was chosen."""
    from vlmplan.launch.plan_options import gib_of_host

    node = estimate.cluster.node
    values: dict[str, Any] = {"gpu": (f"{node.gpu.id}:{node.num_gpus}",)}
    if estimate.cluster.num_nodes > 1:
        values["num_nodes"] = estimate.cluster.num_nodes
    values |= {name: request.option(name) for name in ("host_ram", "inter_node_gbit")}
    if values["host_ram"] is None:
        values["host_ram"] = gib_of_host(node.host_ram_bytes)
    return {**values, **setup.options}


def trainer_texts(made: ForTrainer, estimate: "Estimate") -> dict[str, str]:
    """The files by name."""
    from vlmplan.emit.trainer_files import trainer_file_texts

    return trainer_file_texts(made.setup, estimate, check=made.check_command(None))


def next_steps(made: ForTrainer) -> list[str]:
    """How to start the files, in lines for the user."""
    from vlmplan.emit.trainer_files import START_FILE, started_command, trainer_file_names

    setup, directory = made.setup, made.directory
    if directory is None:
        return [f"add --out DIR to write {', '.join(trainer_file_names(setup))} of the first plan"]
    places = {key: setup.file if key in setup.settings else setup.script or setup.file for key in setup.to_fill_in}
    return [
        f"written: {', '.join(str(directory / name) for name in trainer_file_names(setup))}",
        *(f"fill in: {key} in {directory / places[key]}: {what}" for key, what in setup.to_fill_in.items()),
        *(f"note: {key}: {setup.settings[key]} is in {setup.file}: {why}" for key, why in setup.reasons.items()),
        f"train with: bash {shlex.quote(str(directory / START_FILE))}",
        f"which runs: {started_command(setup)}",
        f"asked again: {made.check_command(directory)}",
    ]


def document(made: ForTrainer) -> "JsonDict":
    """The setup in JSON."""
    from vlmplan.emit.trainer_files import started_command, trainer_file_names

    setup = made.setup
    return {
        "trainer": made.title,
        "settings": dict(setup.settings),
        "ds_config": setup.deepspeed,
        "environment": dict(setup.environment),
        "command": started_command(setup),
        "to_fill_in": dict(setup.to_fill_in),
        "check": made.check_command(made.directory),
        "files": [] if made.directory is None else [str(made.directory / name) for name in trainer_file_names(setup)],
    }
