"""What the weights in a model's folder are known again by, wherever the folder is: names and sizes of their files, and
a part of their bytes. All of them would take minutes of a large model; what trains a model changes weights everywhere.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from vlmplan.files import open_regular
from vlmplan.models.stored_weights import WEIGHT_FILES

BLOCK_BYTES = 4096
NUM_BLOCKS = 1024
"""Read of all files together, evenly spread, beside the first and the last block of each. A choice: 4 MiB."""


def weights_mark(folder: Path) -> str | None:
    """None where there are no weights, or they cannot be read."""
    try:
        sizes = {path: path.stat().st_size for pattern in WEIGHT_FILES for path in sorted(folder.glob(pattern))}
        digest = hashlib.sha256()
        for path, size in sizes.items():
            digest.update(f"{path.name}\0{size}\0".encode())
            with open_regular(path) as file:
                for place in _places(size, sum(sizes.values())):
                    file.seek(place)
                    digest.update(file.read(BLOCK_BYTES))
    except OSError:
        return None
    return digest.hexdigest() if sizes else None


def _places(size: int, total: int) -> Iterator[int]:
    """Where blocks of a file of ``size`` begin."""
    step = max(BLOCK_BYTES, total // NUM_BLOCKS)
    yield from range(0, size, step)
    yield max(0, size - BLOCK_BYTES)
