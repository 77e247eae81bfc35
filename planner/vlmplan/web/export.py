"""The page as files that any server can hand out: the planner itself runs in the reader's browser, by Pyodide.

Pyodide is CPython for WebAssembly. Its npm package is not part of vlmplan (10 MB, MPL-2.0): the user names the folder
that npm made of it, and it is taken only if its files are those that this version was tried with. The planner needs
click, rich and PyYAML besides, which are Python alone, and come from this installation. Where there is Node, Pyodide
compiles all of this once, so that no reader's browser has to.
"""

import hashlib
import importlib.util
import io
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vlmplan.child_process import empty_folder, last_words
from vlmplan.compiled_catalog import COMPILED_CATALOG, compiled_text
from vlmplan.errors import InputError, UnavailableError
from vlmplan.files import SHIPPED_CATALOG, refuse_existing, shipped_catalog_path, write_atomically
from vlmplan.plain_text import one_line
from vlmplan.web.bytecode import ZIP_DATE
from vlmplan.web.files import page_files

PYODIDE = "314.0.7"
"""The version of the npm package ``pyodide``."""
CHECKSUMS: Mapping[str, str] = {
    "pyodide.mjs": "6f1d60f7bf529beb300f0f47983c921d3982363640ba20af0e38efdddbc66109",
    "pyodide.asm.mjs": "f7cdc8ece80678ceb712f8e65ebe6d3a83203a180c399865f49612a051693635",
    "pyodide.asm.wasm": "cc36e3cab04fdfc9a63ff13eb52eae2b911bf46c025cc7b281f394bd3de1d5e6",
    "python_stdlib.zip": "fa1957e5777068fc4f7437f96d860ae2fbe9c19732ba06c84e004ec16dd7dd7a",
    "pyodide-lock.json": "5dc2fc119108bc148c7457dc86e7675b5c87e1cafd420b9c34c1eaef7b36c010",
}
"""SHA-256 of the files of that package that a worker loads."""
NEEDED = ("click", "rich", "yaml")
"""What the planner imports of others to answer."""
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
"""As that of the server, with WebAssembly and a worker. Source: https://www.w3.org/TR/CSP3/."""
HEAD = f"""<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="planner" content="worker">"""
PLANNER = "planner.zip"
PACKAGE = Path(__file__).parents[1]
ARCHIVES = (PLANNER, "pyodide/python_stdlib.zip")
COMPILER = ("bytecode.mjs", "bytecode.py")
COMPILE_SECONDS = 300
"""More than ten times what it takes on two cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written. ``not_compiled``: why readers' browsers have to compile the planner; None where they do not."""

    num_bytes: int
    not_compiled: str | None


def export_page(folder: Path, pyodide: Path, *, force: bool) -> Exported:
    """Write the page to ``folder``, with the npm package in ``pyodide``.

    Raises UnavailableError where the package is not there, InputError where it is another version or where a file
    exists and ``force`` is off.
    """
    contents, not_compiled = exported_files(pyodide), None
    refuse_existing([folder / name for name in contents], force=force)
    try:
        contents |= _compiled(contents)
    except UnavailableError as error:
        not_compiled = str(error)
    for name, content in contents.items():
        write_atomically(folder / name, content, force=force)
    return Exported(num_bytes=sum(map(len, contents.values())), not_compiled=not_compiled)


def exported_files(pyodide: Path) -> dict[str, bytes]:
    """What each file of the exported page holds, by its path."""
    runtime = {f"pyodide/{name}": content for name, content in _runtime(pyodide)}
    page = dict(page_files())
    text = page["index.html"].decode("utf-8")
    head = '<meta charset="utf-8">'
    assert text.count(head) == 1
    page["index.html"] = text.replace(head, HEAD).encode("utf-8")
    return {**page, PLANNER: _planner(), **runtime}


def _runtime(folder: Path) -> Iterator[tuple[str, bytes]]:
    for name, checksum in CHECKSUMS.items():
        try:
            content = (folder / name).read_bytes()
        except OSError:
            raise UnavailableError(
                f"{folder / name} is missing; npm install pyodide@{PYODIDE} makes node_modules/pyodide, which "
                f"--pyodide names from elsewhere"
            ) from None
        if hashlib.sha256(content).hexdigest() != checksum:
            raise InputError(f"{folder / name} is not that of pyodide {PYODIDE}, with which this page works")
        yield name, content


def _compiled(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """The archives of Python, compiled by the Pyodide among ``contents``, whose files were looked at.

    Raises UnavailableError where there is no Node, or where it does not do this.
    """
    node = shutil.which("node")
    if node is None:
        raise UnavailableError("node is not on the PATH")
    with empty_folder() as folder:
        own = {name: (Path(__file__).parent / name).read_bytes() for name in COMPILER}
        given = {name: content for name, content in contents.items() if name == PLANNER or name.startswith("pyodide/")}
        for name, content in {**own, **given}.items():
            write_atomically(folder / name, content)
        try:
            done = subprocess.run(  # noqa: S603 - files of ours, and those whose checksums are right
                [node, COMPILER[0], str(folder)],
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMPILE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(f"node did not compile it: {one_line(str(error))}") from None
        if done.returncode:
            raise UnavailableError(f"node did not compile it: {one_line(last_words(done))}")
        return {name: (folder / name).read_bytes() for name in ARCHIVES}


@cache
def _planner() -> bytes:
    """vlmplan and what it needs, as an archive that Python imports from once it is unpacked."""
    catalog = shipped_catalog_path(PACKAGE).read_text(encoding="utf-8")
    texts = {
        f"vlmplan/{SHIPPED_CATALOG}": catalog.encode("utf-8"),
        f"vlmplan/{COMPILED_CATALOG.relative_to(PACKAGE).as_posix()}": compiled_text(catalog).encode("ascii"),
    }
    for folder in (PACKAGE, *map(_folder_of, NEEDED)):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".json", ".txt") and "static" not in path.parts:
                texts.setdefault(path.relative_to(folder.parent).as_posix(), path.read_bytes())
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(texts.items()):
            archive.writestr(zipfile.ZipInfo(name, ZIP_DATE), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
