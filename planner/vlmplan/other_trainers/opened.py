"""A file of another trainer is opened: what it is written in, whose it is, and every value that it and the files that
it names hold."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, cast

from vlmplan.errors import InputError
from vlmplan.files import text_of
from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers.accelerate import ACCELERATE, TRL_FILES, over_file, read_accelerate
from vlmplan.other_trainers.launchers import COMPILES, OF_LAUNCHER, PROCESSES, Launched, in_file_form, over
from vlmplan.other_trainers.loaded import loaded
from vlmplan.other_trainers.named_files import MAX_BYTES, found_file
from vlmplan.other_trainers.parsed_programs import Parsed, as_parsed, started_program
from vlmplan.other_trainers.programs import ProgramRun, program_source, run_of_program
from vlmplan.other_trainers.scripts import OF_TRL, ScriptRun, looks_like_script, python_runs, run_of_script
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.shell import commands_of
from vlmplan.other_trainers.whose import folder_problem, trainer_of
from vlmplan.other_trainers.working_folder import working_folder

MAX_NOTEBOOK_BYTES = 16 * 2**20
"""A notebook has the pictures that its cells drew in it. A choice."""
NOTEBOOK_SUFFIX = ".ipynb"
PROGRAM_SUFFIXES = (".py", NOTEBOOK_SUFFIX)
SCRIPT_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
OWN_KEYS = re.compile(r"#[ \t]*vlmplan:[ \t]*ignore[ \t]+([\w., \t-]+)")
"""A comment in which a user says that keys are his script's own and change neither memory nor time."""
OF_COMMANDS = (
    "; its arguments come from the command that starts it: give the shell script that holds that, which is read"
)
OF_FILES: Mapping[str, str] = {
    "HfArgumentParser": OF_COMMANDS,
    "TrlParser": f"{OF_COMMANDS} with the program beside it, or the YAML of its --config",
}
"""By the class that parses them."""
ENVIRONMENT_KEYS: Mapping[str, str] = {**dict.fromkeys(OF_TRL, "env"), "swift": "ENV"}
"""Keys under which a trainer's file sets variables."""


class Form(Enum):
    """What a file is written in."""

    YAML = "YAML"
    JSON = "JSON"
    SCRIPT = "a shell script"
    PROGRAM = "a program in Python"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedConfig:
    """A file of another trainer, whose it is, and every value that it and the files that it names hold.

    ``trainer`` is one of ``READERS``, or ``ACCELERATE``. ``run`` is the command of a script, ``program`` what one in
    Python trains. ``environment`` are the variables that the trainer is started with. ``unsaved`` are DeepSpeed files
    that are not written yet, by the names that ``values`` have for them. ``is_alone``: ``text`` came without the files
    beside it.
    """

    path: Path
    text: str
    """With the line ends that it has."""
    form: Form
    trainer: str
    values: Mapping[str, Any] = field(hash=False)
    environment: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    run: ScriptRun | None = field(default=None, hash=False)
    program: ProgramRun | None = field(default=None, hash=False)
    unsaved: Mapping[str, JsonDict] = field(default_factory=dict[str, JsonDict], hash=False)
    notes: tuple[str, ...] = ()
    is_alone: bool = False
    parsed: Parsed | None = field(default=None, hash=False)
    """What is known of the program that a script starts."""
    inside: Path | None = field(default=None, hash=False)
    """The folder that a script's command runs in, where the script has gone to another than its own."""
    by_launcher: frozenset[str] = frozenset()
    """Those of ``values`` that accelerate's launcher decides: this file does not hold them."""

    @property
    def source(self) -> str:
        return str(self.path)

    @property
    def own_keys(self) -> frozenset[str]:
        """Keys that a comment of the file says to be a script's own (``# vlmplan: ignore KEY, KEY``)."""
        listed_keys = " ".join(OWN_KEYS.findall(self.text)).replace(",", " ").split()
        return frozenset(key.lstrip("-").replace("-", "_") for key in listed_keys)

    @property
    def folder(self) -> Path | None:
        """The folder of the files that it names; None for one that came alone, for which no file is opened."""
        return None if self.is_alone else self.inside or self.path.resolve().parent


def open_trainer_config(path: Path, text: str | None = None, *, is_alone: bool = False) -> OpenedConfig:
    """The file at ``path``, or the ``text`` that it would hold; ``is_alone``: no file that it names is opened.

    Raises UnavailableError where it cannot be read, InputError for what is no configuration.
    """
    source = str(path)
    is_notebook = path.suffix == NOTEBOOK_SUFFIX
    if text is None:
        if path.is_dir():
            raise InputError(folder_problem(path))
        most_bytes = MAX_NOTEBOOK_BYTES if is_notebook else MAX_BYTES
        text = text_of(path, name=source, most_bytes=most_bytes, keeps_line_ends=True)
    if path.suffix in PROGRAM_SUFFIXES:
        return _opened_program(path, text, is_alone)
    is_object = text.lstrip().startswith("{")
    if not is_object and (path.suffix in SCRIPT_SUFFIXES or looks_like_script(text)):
        return _opened_script(path, text, is_alone)
    values, _ = held = loaded(text, source)
    trainer = trainer_of(values, source)
    form = Form.JSON if is_object else Form.YAML
    environment = environment_of(trainer, values, {})
    folder = None if is_alone else path.resolve().parent
    decided, notes = _decided_by_accelerate(values, trainer, Launched(), source, folder)
    return OpenedConfig(
        path=path,
        text=text,
        form=form,
        trainer=trainer,
        values=decided | values,
        environment=environment,
        notes=(*held.notes_for(trainer, source), *notes),
        is_alone=is_alone,
        by_launcher=frozenset(decided.keys() - values.keys()),
    )


def _opened_program(path: Path, text: str, is_alone: bool) -> OpenedConfig:
    """A program that trains with transformers' or TRL's trainers, or with Unsloth. Raises InputError for others, which
    are run as they are."""
    source = str(path)
    code = program_source(text, source=source, is_notebook=path.suffix == NOTEBOOK_SUFFIX)
    advice = next((said for parser, said in OF_FILES.items() if parser in code.code), "")
    try:
        program = run_of_program(code, source=source, folder=None if is_alone else path.resolve().parent)
    except InputError as error:
        raise InputError(f"{error}{advice}") from None
    if program is None:
        raise InputError(
            f"{source} is a program, of which those are read that train with transformers' Trainer or TRL's "
            f"SFTTrainer, DPOTrainer or GRPOTrainer a model that they load there, or with Unsloth; vlmplan rehearse "
            f"--gpu NAME:COUNT -- python {path.with_suffix('.py').name} runs one as it is, without a GPU{advice}"
        )
    return OpenedConfig(
        path=path,
        text=text,
        form=Form.PROGRAM,
        trainer=program.trainer,
        values=program.values,
        environment=program.environment,
        program=program,
        notes=program.notes,
        is_alone=is_alone,
    )


def environment_of(trainer: str, values: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, str]:
    """The variables of a run: its ``own`` and those that a file sets.

    TRL's replace those that are set (``scripts/utils.py``), ms-swift's do not (``cli/main.py``).
    """
    said = values.get(ENVIRONMENT_KEYS.get(trainer, ""))
    if not isinstance(said, Mapping):
        return dict(own)
    texts = {str(key): str(value) for key, value in cast(Mapping[object, object], said).items()}
    return {**own, **texts} if trainer in OF_TRL else {**texts, **own}


def _opened_script(path: Path, text: str, is_alone: bool) -> OpenedConfig:
    source, folder = str(path), None if is_alone else path.resolve().parent
    values: dict[str, Any] = {}
    places: list[str] = []
    inside = folder
    try:
        run = run_of_script(text, source=source, folder=folder)
    except InputError:
        run, parsed = _started_programs(text, source, folder)
        if run is None or parsed is None:
            raise
    else:
        if folder is not None:
            inside = folder = working_folder(commands_of(text, source=source, folder=folder), run.command, folder)
        for name in run.files:
            file = found_file(name, folder, source, "the configuration", places)
            held = loaded(text_of(file, name=str(file), most_bytes=MAX_BYTES), str(file))
            values |= held.values
            places += held.notes_for(run.trainer, str(file))
        parsed = as_parsed(run, values | dict(run.values), folder, source)
    given, run = parsed.values, replace(run, trainer=parsed.trainer)
    decided, notes = _decided_by_accelerate(given, run.trainer, run.launched, source, folder)
    return OpenedConfig(
        path=path,
        text=text,
        form=Form.SCRIPT,
        trainer=run.trainer,
        values=decided | given,
        environment=environment_of(run.trainer, values, {**parsed.environment, **run.environment}),
        run=run,
        inside=inside,
        notes=(*places, *parsed.notes, *notes),
        is_alone=is_alone,
        parsed=parsed,
        by_launcher=frozenset(decided.keys() - given.keys()),
    )


def _started_programs(text: str, source: str, folder: Path | None) -> tuple[ScriptRun | None, Parsed | None]:
    """The one command of a script that starts a program which trains, and which is here; None where there is none."""
    found = [(run, started_program(run, folder, source)) for run in python_runs(text, source=source, folder=folder)]
    trains = [(run, parsed) for run, parsed in found if parsed is not None]
    return trains[0] if len(trains) == 1 else (None, None)


def _decided_by_accelerate(
    values: dict[str, Any], trainer: str, launched: Launched, source: str, folder: Path | None
) -> tuple[JsonDict, tuple[str, ...]]:
    """Keys of ``TrainingArguments`` that accelerate's launcher decides by its file and its own options, and notes. Of
    TRL's ``values`` those are taken out that its command hands on to the launcher."""
    is_trl = trainer in OF_TRL
    handed = {key: values[key] for key in (*OF_LAUNCHER, "accelerate_config") if is_trl and key in values}
    name = launched.options.get("config_file", handed.get("accelerate_config"))
    own = over(in_file_form(handed), launched.accelerate_options)
    if is_trl:
        values.pop(COMPILES, None)
    if name is None and not own.keys() - PROCESSES:
        return {}, ()
    for key in handed:
        values.pop(key, None)
    file: Mapping[str, Any] = {}
    file_source = source
    places: list[str] = []
    if is_trl and name in TRL_FILES:
        file, file_source = TRL_FILES[str(name)], f"accelerate_config {name}"
    elif name is not None:
        key = "accelerate_config" if is_trl else "--config_file"
        path = found_file(str(name), folder, source, key, places)
        file_source = str(path)
        held = loaded(text_of(path, name=file_source, most_bytes=MAX_BYTES), file_source)
        file = held.values
        places += held.notes_for(ACCELERATE, file_source)
    settings = Settings(over_file(file, own), source=file_source, trainer=ACCELERATE)
    decided = read_accelerate(settings)
    settings.close()
    said = [f"{', '.join(handed)} of the file: accelerate's launcher takes {'it' if len(handed) == 1 else 'them'}"]
    return decided, (*places, *(said if handed else ()), *settings.notes)
