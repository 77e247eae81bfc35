"""Checkpoints that are whole or not there: written beside their place, listed file by file, then renamed.

A folder ``step-00000042`` counts only with its ``complete.json``, whose files must all be there in their sizes. A
process that is killed while it writes leaves a folder with another name, which the next run removes.
"""

import json
import os
import shutil
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vlmplan.errors import InputError
from vlmplan.training import CHECKPOINTS, MANIFEST
from vlmplan_trainer.engines import Engine
from vlmplan_trainer.loop import Position

UNFINISHED = ".unfinished"
UNIVERSAL = ".universal"


def save_checkpoint(
    engine: Engine, output_dir: Path, position: Position, *, keep_last: int, run: dict[str, Any]
) -> Path:
    """Write a checkpoint of every rank, publish it, and remove all but the newest ``keep_last``.

    ``run`` says what must be equal when the run goes on (samples, epochs, seed).
    """
    place = output_dir / CHECKPOINTS / f"step-{position.step:08d}"
    writing = place.with_name(place.name + UNFINISHED)
    if engine.rank == 0:
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
    engine.barrier()
    state = {"position": asdict(position), "run": run}
    engine.save(writing, state)
    torch.save(torch.get_rng_state(), writing / f"random-{engine.rank}.pt")
    engine.barrier()
    if engine.rank == 0:
        _publish(writing, place, state | {"num_ranks": engine.num_ranks})
        _remove_old(output_dir, keep_last)
    engine.barrier()
    return place


def _publish(writing: Path, place: Path, state: dict[str, Any]) -> None:
    files = {str(file.relative_to(writing)): file.stat().st_size for file in writing.rglob("*") if file.is_file()}
    for name in files:
        _flush(writing / name)
    manifest = writing / MANIFEST
    manifest.write_text(json.dumps(state | {"files": files}, indent=1))
    _flush(manifest)
    if place.exists():
        shutil.rmtree(place)
    os.replace(writing, place)
    _flush(place.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_old(output_dir: Path, keep_last: int) -> None:
    for old in whole_checkpoints(output_dir)[:-keep_last]:
        (old / MANIFEST).unlink()  # from here on nobody trusts it
        shutil.rmtree(old)
    for unfinished in (output_dir / CHECKPOINTS).glob(f"*{UNFINISHED}"):
        shutil.rmtree(unfinished)


def whole_checkpoints(output_dir: Path) -> list[Path]:
    """Checkpoints that were written to their end, oldest first."""
    found = sorted((output_dir / CHECKPOINTS).glob("step-*"))
    return [place for place in found if not place.name.endswith(UNFINISHED) and is_whole(place)]


def is_whole(place: Path) -> bool:
    """Whether every file that the manifest names is there in its size."""
    try:
        files = json.loads((place / MANIFEST).read_text())["files"]
        return all((place / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def newest_checkpoint(output_dir: Path) -> Path:
    """The checkpoint to go on from. Raises InputError if there is none."""
    whole = whole_checkpoints(output_dir)
    if not whole:
        folder = output_dir / CHECKPOINTS
        raise InputError(f"--resume: {folder} holds no whole checkpoint; leave --resume out to start anew")
    return whole[-1]


def manifest_of(place: Path) -> dict[str, Any]:
    return json.loads((place / MANIFEST).read_text())


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
        convert(Namespace(**arguments))
    return universal


def load_checkpoint(engine: Engine, place: Path, run: dict[str, Any], *, universal: Path | None = None) -> Position:
    """Weights, optimizer and position, the tensors from the ``universal`` form of it if there is one.

    Raises InputError if the run is another one.
    """
    said = manifest_of(place)["run"]
    for key, value in run.items():
        if said.get(key) != value:
            raise InputError(f"--resume: {place} is of a run with {key} {said.get(key)}, this one has {value}")
    state = engine.load(place if universal is None else universal)
    random = place / f"random-{engine.rank}.pt"
    if random.exists():
        torch.set_rng_state(torch.load(random, weights_only=True))
    return Position(**state["position"])
