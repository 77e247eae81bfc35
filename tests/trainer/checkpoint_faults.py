"""Faults for checkpoints: a flipped bit, and code to be run by whoever loads it."""

import os
from dataclasses import replace
from pathlib import Path

import torch

from vlmplan.run.training import MANIFEST
from vlmplan_trainer.saving.manifest import read_manifest, synced_marks

FLIPPED = 0x10


def flip(path: Path, at: float = 0.5) -> None:
    """Flip a bit of the byte that is that part into the file."""
    with path.open("r+b") as file:
        offset = int(path.stat().st_size * at)
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ FLIPPED]))


class Hostile:
    """Makes a folder where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self._mark),)


def poisoned(place: Path, name: str, mark: Path) -> None:
    """Put something that makes a folder ``mark`` into a file of a checkpoint, and right sums into its manifest."""
    content = torch.load(place / name, weights_only=False)
    torch.save({**content, "more": Hostile(mark)}, place / name)
    manifest = read_manifest(place)
    text = replace(manifest, files=synced_marks(place, list(manifest.files))).text()
    (place / MANIFEST).write_text(text)
