"""Checkpoints that are whole or not there: written beside their place, listed file by file, then renamed.

A folder ``step-00000042`` counts only with its ``complete.json`` (``manifest``), whose files must all be there, as they
were written. A process that is killed while it writes leaves a folder with another name, which the next run removes.
What is promised of them, and the test of each promise: ``docs/checkpoints.md``.
"""

import contextlib
import os
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vlmplan.errors import InputError, UnavailableError, VlmplanError
from vlmplan.run.training import CHECKPOINTS, MANIFEST
from vlmplan.units import counted, gib_text
from vlmplan_trainer.engines import Engine
from vlmplan_trainer.loop import Position
from vlmplan_trainer.out_of_memory import is_out_of_memory
from vlmplan_trainer.ranks import of_all_ranks
from vlmplan_trainer.saving.manifest import (
    Manifest,
    content_problem,
    file_names,
    flush,
    folder_name,
    read_manifest,
    size_problem,
    synced_marks,
)
from vlmplan_trainer.saving.random_state import load_random_state, save_random_state
from vlmplan_trainer.saving.safe_loading import data_only, refuse_paths

UNFINISHED, UNIVERSAL, DAMAGED = ".unfinished", ".universal", ".damaged"
LONGEST_REASON = 300
PASSING = (UNFINISHED, DAMAGED)
"""Ends of names of folders that the next checkpoint removes."""


# -- writing ---------------------------------------------------------------------------------------------------------


def save_checkpoint(
    engine: Engine, output_dir: Path, position: Position, *, keep_last: int, run: Mapping[str, Any]
) -> Path:
    """Write a checkpoint of every rank, publish it, and remove all but the newest ``keep_last``.

    ``run`` says what must be equal when the run goes on. Raises UnavailableError where it cannot be written; what was
    there before is there still.
    """

    def write(folder: Path) -> None:
        engine.save(folder)
        save_random_state(folder / f"random-{engine.rank}.pt", engine.device)

    return published(engine, output_dir, position, write, keep_last=keep_last, run=run)


class Ranks(Protocol):
    """Who writes a checkpoint together; an engine is one."""

    @property
    def rank(self) -> int: ...

    @property
    def num_ranks(self) -> int: ...

    def barrier(self) -> None: ...


def published(
    ranks: Ranks,
    output_dir: Path,
    position: Position,
    write: Callable[[Path], None],
    *,
    keep_last: int,
    run: Mapping[str, Any],
) -> Path:
    """A checkpoint published as ``save_checkpoint`` does; ``write`` fills the folder, on every rank."""
    place = output_dir / CHECKPOINTS / folder_name(position.step)
    writing = place.with_name(place.name + UNFINISHED)
    with _named_failures(place):
        if ranks.rank == 0:
            shutil.rmtree(writing, ignore_errors=True)
            writing.parent.mkdir(exist_ok=True)  # not its parents: a run whose folder was moved away makes no other
            writing.mkdir()
        ranks.barrier()
        write(writing)
        ranks.barrier()
        share = file_names(writing)[ranks.rank :: ranks.num_ranks]
        files = {name: mark for marks in of_all_ranks(synced_marks(writing, share)) for name, mark in marks.items()}
        if ranks.rank == 0:
            manifest = Manifest(position=position, run=run, num_ranks=ranks.num_ranks, files=files)
            _publish(writing, place, manifest)
            _remove_old(output_dir, keep_last)
        ranks.barrier()
    return place


@contextlib.contextmanager
def _named_failures(place: Path) -> Iterator[None]:
    """Within, a failure to write says where, why and what is left. torch's own writer says "unexpected pos 64 vs 0" of
    a disk that is full (``caffe2/serialize/inline_container.cc`` 2.13)."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError):
            why = error.strerror or str(error)
        elif "inline_container" in str(error) or "PytorchStreamWriter" in str(error):
            why = "its file system takes no more"
        else:
            raise
        try:
            free = f"; {gib_text(shutil.disk_usage(place.parent).free)} are free there"
        except OSError:
            free = ""
        before = whole_checkpoints(place.parents[1])
        left = f"{before[-1].name} is whole, and --resume goes on from it" if before else "there is none before it"
        raise UnavailableError(f"the checkpoint {place} cannot be written: {why}{free}; {left}") from None


def _publish(writing: Path, place: Path, manifest: Manifest) -> None:
    path = writing / MANIFEST
    path.write_text(manifest.text(), encoding="utf-8")
    flush(path)
    for folder, _, _ in os.walk(writing):
        flush(Path(folder))
    if place.exists():
        shutil.rmtree(place)
    os.replace(writing, place)
    flush(place.parent)


def _remove_old(output_dir: Path, keep_last: int) -> None:
    for old in whole_checkpoints(output_dir)[:-keep_last]:
        (old / MANIFEST).unlink()  # from here on nobody trusts it
        shutil.rmtree(old)
    for folder in (output_dir / CHECKPOINTS).iterdir():
        if folder.suffix in PASSING:
            shutil.rmtree(folder)


def whole_checkpoints(output_dir: Path) -> list[Path]:
    """Checkpoints that were written to their end and have all of their files in their sizes, oldest first."""
    return [place for place in _published(output_dir) if size_problem(place) is None]


def _published(output_dir: Path) -> list[Path]:
    """Folders with the name of a checkpoint, oldest first, whatever they hold."""
    found = sorted((output_dir / CHECKPOINTS).glob("step-*"))
    return [place for place in found if place.name.removeprefix("step-").isdecimal()]


# -- going on --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """The checkpoint to go on from; ``notes`` say what is wrong with newer ones."""

    place: Path
    manifest: Manifest
    notes: tuple[str, ...] = ()


def newest_checkpoint(output_dir: Path, rank: int = 0, num_ranks: int = 1) -> FoundCheckpoint:
    """The newest checkpoint whose files are all as they were written; ranks share the reading, and agree.

    Newer ones that are damaged get another name, so that nothing takes them for whole. Raises InputError, naming what
    is damaged, if there is none.
    """
    published = of_all_ranks(_published(output_dir) if rank == 0 else None)[0]
    damaged: list[tuple[Path, str]] = []
    for place in reversed(published):
        problem = _problem(place, rank, num_ranks)
        if problem is None:
            notes = tuple(_named(place, damaged, is_first=rank == 0))
            return FoundCheckpoint(place=place, manifest=read_manifest(place), notes=notes)
        damaged.append((place, problem))
    folder = output_dir / CHECKPOINTS
    if not damaged:
        raise InputError(f"--resume: {folder} holds no whole checkpoint; leave --resume out to start anew")
    found = "; ".join(f"{place.name}: {problem}" for place, problem in damaged)
    raise InputError(
        f"--resume: no checkpoint in {folder} is whole ({found}); bring one back from a copy, or start anew in another "
        f"--output-dir"
    )


def _problem(place: Path, rank: int, num_ranks: int) -> str | None:
    """What is wrong with a checkpoint, the same on every rank."""
    problem = size_problem(place)
    if not any(of_all_ranks(problem)):
        manifest = read_manifest(place)
        problem = content_problem(place, manifest, list(manifest.files)[rank::num_ranks])
    return next((found for found in of_all_ranks(problem) if found is not None), None)


def _named(place: Path, damaged: list[tuple[Path, str]], *, is_first: bool) -> Iterator[str]:
    """Give the damaged checkpoints another name; what is said of each, and of the steps that are lost with them."""
    for other, problem in damaged:
        kept = other.with_name(other.name + DAMAGED)
        if is_first:
            shutil.rmtree(kept, ignore_errors=True)
            other.rename(kept)
        yield f"the checkpoint {other.name} is damaged ({problem}); it is {kept.name} until another one is written"
    if damaged:
        first = int(place.name.removeprefix("step-"))
        num_lost = int(damaged[0][0].name.removeprefix("step-")) - first
        yield f"{place.name} is whole; {counted(num_lost, 'step')} after step {first} are trained again"


def universal_form(place: Path, engine_folder: str, *, is_first: bool) -> Path:
    """The checkpoint in DeepSpeed's universal form, which any number of ranks can read; rank 0 makes it once.

    Source: ``deepspeed/checkpoint/ds_to_universal.py`` (0.19.8). ``inject_missing_state``: the form's own notes on
    the model, which only Megatron writes.
    """
    universal = place.with_name(place.name + UNIVERSAL)
    if is_first:
        from deepspeed.checkpoint.ds_to_universal import main as convert

        shutil.rmtree(universal, ignore_errors=True)
        arguments = {
            "input_folder": str(place / engine_folder),
            "output_folder": str(universal / engine_folder),
            "num_extract_workers": 1,
            "num_merge_workers": 1,
            "keep_temp_folder": False,
            "strict": True,
            "inject_missing_state": True,
        }
        with data_only(place):
            refuse_paths(place / engine_folder)
            convert(Namespace(**arguments))
    return universal


def load_checkpoint(engine: Engine, found: FoundCheckpoint, *, universal: Path | None = None) -> Position:
    """Weights, optimizer and position, the tensors from the ``universal`` form of it if there is one.

    Raises InputError for a checkpoint that is whole and holds what this run cannot use.
    """
    try:
        with data_only(found.place):
            engine.load(found.place if universal is None else universal)
            random = found.place / f"random-{engine.rank}.pt"
            if random.exists():
                load_random_state(random, engine.device)
    except VlmplanError:
        raise
    except Exception as error:  # DeepSpeed and torch raise anything at all for what they do not expect
        if isinstance(error, (RuntimeError, MemoryError)) and is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__
        raise InputError(f"--resume: {found.place} cannot be loaded into this run: {reason}") from None
    return found.manifest.position


def check_run(found: FoundCheckpoint, run: Mapping[str, Any]) -> None:
    """Raise InputError, on every rank, where rank 0 knows that the checkpoint is of another run than ``run``."""
    said = found.manifest.run
    differing = [
        f"{key} {said[key]}, this one has {value}" for key, value in run.items() if said.get(key, value) != value
    ]
    problem = of_all_ranks(differing[0] if differing else None)[0]
    if problem is not None:
        raise InputError(f"--resume: {found.place} is of a run with {problem}")
