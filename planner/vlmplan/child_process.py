"""Python that is started on code of ours runs in an empty folder, so that no file of the user's is imported instead.

``python -m`` and ``python -c`` put the working directory first on the path of modules
(https://docs.python.org/3/library/sys.html#sys.path): a ``random.py`` there would be run in place of Python's.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def empty_folder(inside: Path | None = None) -> Generator[Path]:
    """A new folder that only this user can write, ``inside`` another one or where the system has such; gone after."""
    with tempfile.TemporaryDirectory(prefix="vlmplan-", dir=inside, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of this process with ``more``, for one in another folder: the places of PYTHONPATH are absolute.

    An empty entry there means the working directory; it is rarely meant, and left out.
    """
    environment = {**os.environ, **(more or {})}
    places = [place for place in environment.pop("PYTHONPATH", "").split(os.pathsep) if place]
    return environment | ({"PYTHONPATH": os.pathsep.join(map(os.path.abspath, places))} if places else {})


def run_python(
    words: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """This interpreter on ``words`` in an empty folder, with what it printed; ``environment`` is added to this one's.

    Raises subprocess.TimeoutExpired after ``timeout`` seconds.
    """
    with empty_folder() as elsewhere:
        return subprocess.run(  # noqa: S603 - this interpreter, a list of words
            [sys.executable, *words],
            env=child_environment(environment),
            cwd=elsewhere,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The last line on standard error, which says what went wrong; without any, the exit code."""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
