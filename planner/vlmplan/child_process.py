"""Python that is started on code of ours runs in an empty folder, so that no file of the user's is imported instead.

``python -m`` and ``python -c`` put the working directory first on the path of modules
(https://docs.python.org/3/library/sys.html#sys.path): a ``random.py`` there would be run in place of Python's.
"""

import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def empty_folder(inside: Path | None = None) -> Generator[Path]:
    """A new folder that only this user can write, ``inside`` another one or where the system has such; gone after."""
    with tempfile.TemporaryDirectory(prefix="vlmplan-", dir=inside, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of this process with ``more``, for one in another folder: the places of PYTHONPATH are absolute.

    An empty place there is the working directory, which nobody asks for on purpose, and is left out.
    """
    environment = {**os.environ, **(more or {})}
    places = [place for place in environment.pop("PYTHONPATH", "").split(os.pathsep) if place]
    return environment | ({"PYTHONPATH": os.pathsep.join(map(os.path.abspath, places))} if places else {})
