"""An archive of Python files as one of what they are compiled to, by the Python that runs this and for it alone.

Python compiles a file when it is first imported; in a reader's browser, where nothing is kept, that would be at every
visit. So Pyodide itself runs this file when a page is exported: what it uses is of Python's library.
"""

import io
import py_compile
import tempfile
import zipfile
from pathlib import Path

ZIP_DATE = (1980, 1, 1, 0, 0, 0)
"""Of every file in the archive, so that equal files are an equal archive."""


def compiled_archive(archive: bytes, *, keeps_docstrings: bool) -> bytes:
    """The archive with ``NAME.pyc`` in the place of every ``NAME.py``, which Python imports without looking for a
    source.

    Docstrings are a fifth of it. Without them assertions are gone too, as under ``python -OO``.
    Source: https://docs.python.org/3/library/py_compile.html.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as given, zipfile.ZipFile(made, "w") as written:
        for name in sorted(given.namelist()):
            content = given.read(name)
            if name.endswith(".py"):
                name, content = f"{name}c", _compiled(name, content, 0 if keeps_docstrings else 2)
            written.writestr(zipfile.ZipInfo(name, ZIP_DATE), content, zipfile.ZIP_DEFLATED, 9)
    return made.getvalue()


def _compiled(name: str, source: bytes, optimization: int) -> bytes:
    """What Python keeps of a file; it is not compared with a source when it is read."""
    with tempfile.TemporaryDirectory() as folder:
        file, target = Path(folder, "source.py"), Path(folder, "source.pyc")
        file.write_bytes(source)
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(file), str(target), name, doraise=True, optimize=optimization, invalidation_mode=mode)
        return target.read_bytes()
