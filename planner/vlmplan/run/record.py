"""What a run was asked for, kept in its folder as run.json, so that it goes on as it began.

Schema ``vlmplan.run/1``: every option of the trainer with the value that it had, defaults too (a later version may have
others); size and SHA-256 of the training data; a mark of the model's weights; and what only ``vlmplan launch`` takes:
the options that the plan was made from, the hostfile, catalogs. Paths are absolute. ``vlmplan launch`` writes it before
the run starts, the trainer where nobody else did.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args, get_type_hints

from vlmplan.chats.data_files import data_files
from vlmplan.chats.named_columns import EVERYTHING
from vlmplan.errors import InputError, UnavailableError, VlmplanError
from vlmplan.files import open_regular, write_atomically
from vlmplan.files.json_reader import JsonObject, read_json_object
from vlmplan.run.training import DATA_SOURCES, LEARNING_RATES, TrainerOptions, flag
from vlmplan.units import counted

SCHEMA = "vlmplan.run/1"
RECORD_FILE = "run.json"
OF_EACH_START = ("output_dir", "resume")
"""Options that say where a run is, not what it is: they are not kept."""
MAY_CHANGE = (
    *("eval_data", "image_folder", "save_every", "save_minutes", "keep_last", "max_steps"),
    *("merge_adapters", "measured_steps", "monitor", "skip_bad_samples"),
)
"""Options that a resumed run may be given anew: where its images are, what is looked at, written and when it stops.
``skip_bad_samples`` is for a sample that turns out bad while it trains; one that is found before would change the
number of samples, by which a checkpoint is known.
``max_steps`` is where the schedule of the learning rate ends, so that from there on it is the one of the new length.
All others decide which samples come in which order and what they change, and stay."""
SCHEDULE_ENDS = "; the schedule of the learning rate ends there"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DataMark:
    """What a file of training data is known again by; images that it names are not looked at."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """``options.learning_rate`` is never None. ``planned_with``: names and values of the options of ``vlmplan launch``
    that were given for the plan; None where a plan was given, or the trainer was started without launch. ``weights``: a
    mark of those in the model's folder (``models.weights_mark``); None for a model of the Hub."""

    options: TrainerOptions
    data: DataMark | None = None
    weights: str | None = None
    planned_with: Mapping[str, Any] | None = field(default=None, hash=False)
    hostfile: Path | None = None
    catalog_files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """``options`` of a run that goes on. ``problems``: options that differ and may not; ``changes``: those that may;
    sentences."""

    options: TrainerOptions
    problems: tuple[str, ...]
    changes: tuple[str, ...]


# -- keeping ---------------------------------------------------------------------------------------------------------


def record_of(options: TrainerOptions, method: str, *, data: DataMark | None = None, **of_launch: Any) -> RunRecord:
    """The record of a run of ``method``. Reads the training data where ``data`` is not known."""
    rate = LEARNING_RATES[method] if options.learning_rate is None else options.learning_rate
    paths = {item.name: _absolute(getattr(options, item.name)) for item in fields(TrainerOptions)}
    kept = dataclasses.replace(options, **(paths | {"learning_rate": rate, "resume": False}))
    return RunRecord(options=kept, data=data or _mark_if_readable(options.train_data), **of_launch)


def _absolute(value: Any) -> Any:
    return Path(os.path.abspath(value)) if isinstance(value, Path) else value


def record_text(record: RunRecord) -> str:
    """run.json."""
    options = {item.name: getattr(record.options, item.name) for item in fields(TrainerOptions)}
    content = {
        "schema": SCHEMA,
        "options": {name: value for name, value in options.items() if name not in OF_EACH_START},
        "data": None if record.data is None else dataclasses.asdict(record.data),
        "weights": record.weights,
        "planned_with": None if record.planned_with is None else dict(record.planned_with),
        "hostfile": record.hostfile,
        "catalog_files": list(record.catalog_files),
    }
    return json.dumps(content, indent=2, default=os.fspath) + "\n"


def keep_record(options: TrainerOptions, method: str) -> None:
    """Write run.json where ``vlmplan launch`` has not, or said something else."""
    record, before = record_of(options, method), read_record(options.output_dir)
    if before is not None and (before.options, before.data) == (record.options, record.data):
        return
    if before is not None and options.resume:
        record = dataclasses.replace(before, options=record.options, data=record.data)
    write_atomically(options.output_dir / RECORD_FILE, record_text(record), force=True)


def data_mark(path: Path) -> DataMark:
    """Of a file, or of all that ``data_files`` finds, one after the other. Raises OSError if one cannot be read."""
    digest, num_bytes = hashlib.sha256(), 0
    for one in [path] if path.is_file() else [file.path for file in data_files(path, takes=EVERYTHING)]:
        with open_regular(one) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                num_bytes += len(chunk)
    return DataMark(num_bytes=num_bytes, sha256=digest.hexdigest())


def _mark_if_readable(path: Path | None) -> DataMark | None:
    """The mark of a file; None where it cannot be read: the caller says so if it needs it."""
    try:
        return None if path is None else data_mark(path)
    except (OSError, VlmplanError):
        return None


# -- reading ---------------------------------------------------------------------------------------------------------


def read_record(folder: Path) -> RunRecord | None:
    """The record in the folder of a run; None where there is none. Raises VlmplanError for one that is not sound."""
    path = folder / RECORD_FILE
    if not os.path.lexists(path):
        return None
    top = JsonObject(read_json_object(path), source=str(path))
    if top.raw("schema") != SCHEMA:
        top.refuse("schema", SCHEMA)
    data = top.maybe("data", top.object)
    record = RunRecord(
        options=_options(top.object("options"), folder),
        data=None if data is None else DataMark(num_bytes=data.count("num_bytes"), sha256=data.text("sha256")),
        weights=top.maybe("weights", top.text),
        planned_with=top.maybe("planned_with", top.mapping),
        hostfile=top.maybe("hostfile", lambda key: Path(top.text(key))),
        catalog_files=tuple(map(Path, top.texts("catalog_files"))),
    )
    top.close()
    return record


def _options(section: JsonObject, folder: Path) -> TrainerOptions:
    """Options that an older version did not know have their defaults."""
    kinds = get_type_hints(TrainerOptions)
    known = [item.name for item in fields(TrainerOptions) if item.name not in OF_EACH_START]
    section.close(known)
    values: dict[str, Any] = {name: _value(section, name, kinds[name]) for name in known if name in section}
    return TrainerOptions(output_dir=Path(os.path.abspath(folder)), **values)


def _value(section: JsonObject, name: str, kind: Any) -> Any:
    """A value of the kind that the option has: bool, int, float, str, Path or a tuple of texts, or None."""
    allowed = get_args(kind) or (kind,)
    if section.raw(name) is None and NoneType in allowed:
        return None
    if name == "monitor":
        return section.texts(name)
    readers = {bool: section.flag, int: section.count, float: section.number, str: section.text}
    if Path in allowed:
        return Path(section.text(name))
    return next(read(name) for each, read in readers.items() if each in allowed)


# -- going on --------------------------------------------------------------------------------------------------------


def resumed(record: RunRecord, given: Mapping[str, Any], *, is_begun: bool = True) -> Resumption:
    """The options of the run of ``record`` that goes on, with those that were ``given`` again: those that are not None,
    False or empty. The training data is held against what the run began with.

    ``is_begun``: it has done a step; one that has not may still be given any option and any data.
    """
    values: dict[str, Any] = {item.name: getattr(record.options, item.name) for item in fields(TrainerOptions)}
    problems: list[str] = []
    changes: list[str] = []
    for name, value in given.items():
        if name in OF_EACH_START or (value in (None, False, ()) and not _is_number(value)):
            continue
        before, now = values[name], _absolute(value)
        if now == before:
            continue
        is_moved = name == "adapter" and is_moved_along(before, now, given["output_dir"])
        if name in MAY_CHANGE or is_moved or not is_begun or (name == "train_data" and before is not None):
            values[name] = now
            ends = SCHEDULE_ENDS if name == "max_steps" else ""
            changes.append(f"{said(name, now)} from here on; it was {_before_said(said(name, before))}{ends}")
        else:
            problems.append(refusal(record.options.output_dir, said(name, before), said(name, now)))
    if not is_begun and any(given.get(name) is not None for name in DATA_SOURCES):
        values |= {name: _absolute(given.get(name)) for name in DATA_SOURCES}
    values |= {"output_dir": given["output_dir"], "resume": True}
    options = dataclasses.replace(record.options, **values)
    problems += _data_problems(record, options) if is_begun else ()
    return Resumption(options=options, problems=tuple(problems), changes=tuple(changes))


def is_moved_along(before: Path | None, now: Path | None, folder: Path) -> bool:
    """Whether ``now`` is what ``before`` was until the folder was moved that holds the stages of a curriculum:
    ``folder`` is one of them, and both are what another one left, by the same name.

    >>> is_moved_along(Path("/old/1-align/model"), Path("/new/1-align/model"), Path("/new/2-instruct"))
    True
    """
    if before is None or now is None:
        return False
    return before.parts[-2:] == now.parts[-2:] and now.parents[1:2] == (Path(os.path.abspath(folder)).parent,)


def _before_said(text: str) -> str:
    """What an option was before, by what ``said`` says of it: ``no --max-steps`` was not given."""
    return "not given" if text.startswith("no --") else text


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def said(name: str, value: Any) -> str:
    """An option with its value, as it is given: ``--seed 7``; ``no --adapter`` where it is not."""
    if value in (None, (), False) and not _is_number(value):
        return f"no {flag(name)}"
    if value is True:
        return flag(name)
    if isinstance(value, tuple):
        return " ".join(f"{flag(name)} {part}" for part in cast("tuple[str, ...]", value))
    return f"{flag(name)} {value}"


def refusal(folder: Path, before: str, now: str) -> str:
    """The sentence for what differs and may not."""
    return (
        f"--output-dir {folder} holds a run with {before}, which cannot be resumed with {now}; leave the option out to "
        f"go on as the run began, or give another --output-dir"
    )


def _data_problems(record: RunRecord, options: TrainerOptions) -> Iterator[str]:
    path, before = options.train_data, record.data
    now = None if before is None else _mark_if_readable(path)
    if before is None or now is None or now == before:
        return
    size = counted(before.num_bytes, "byte")
    is_as_long = now.num_bytes == before.num_bytes
    difference = f"other text in the same {size}" if is_as_long else f"{size} then, {now.num_bytes:,} now"
    yield (
        f"--train-data {path} is not what the run in {record.options.output_dir} began with ({difference}); a run goes "
        f"on with the same data: put that back, or give another --output-dir"
    )


def no_record(folder: Path) -> UnavailableError | InputError:
    """What to raise where nothing is known of the run in ``folder`` and the options to go on with were not given."""
    if not folder.is_dir():
        return InputError(f"--resume: --output-dir {folder} does not exist, so there is no run to go on with")
    return UnavailableError(
        f"--resume: {folder} has no {RECORD_FILE}, which says what its run was started with (0.1.0 wrote none); repeat "
        f"the options of its first start, which are in its command.txt if vlmplan launch started it"
    )
