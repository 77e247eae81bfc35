"""The page as files: the planner in it is whole, and Pyodide is the version that it was tried with."""

import hashlib
import importlib
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cli_calls import call
from vlmplan.cli.web_answer import answer
from vlmplan.web import export
from vlmplan.web.bytecode import compiled_archive
from vlmplan.web.files import page_files

pytestmark = pytest.mark.usefixtures("isolated")
SETUP = {"model": "gpt2", "gpu": "t4:2", "zero_stage": "2"}


@pytest.fixture
def pyodide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with files by the names of Pyodide's, which are taken for it."""
    folder = tmp_path / "pyodide"
    folder.mkdir()
    for name in export.CHECKSUMS:
        (folder / name).write_text(name)
    sums = {name: hashlib.sha256(name.encode()).hexdigest() for name in export.CHECKSUMS}
    monkeypatch.setattr(export, "CHECKSUMS", sums)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    return folder


@pytest.mark.sweep
def test_the_planner_in_the_archive_answers_by_itself(pyodide: Path, tmp_path: Path):
    """Without this installation and its packages: what is not in the archive is not there."""
    (tmp_path / "planner.zip").write_bytes(export.exported_files(pyodide)["planner.zip"])
    zipfile.ZipFile(tmp_path / "planner.zip").extractall(tmp_path / "planner")
    code = (
        "import json, sys; sys.path.insert(0, 'planner')\n"
        "from vlmplan.cli.web_answer import answer\n"
        f"print(json.dumps([answer({{'ask': ask, 'options': {SETUP!r}}}) for ask in ('form', 'estimate')]))\n"
        "files = [str(getattr(one, '__file__', '')) for one in sys.modules.values()]\n"
        "print(json.dumps([file for file in files if 'site-packages' in file]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    answers, strangers = map(json.loads, done.stdout.splitlines())
    assert answers == [answer({"ask": ask, "options": SETUP}) for ask in ("form", "estimate")]
    assert strangers == []


def test_everything_is_written_and_overwritten_only_if_asked(pyodide: Path):
    assert "for any server of files" in call("web", "--export", "site", "--pyodide", str(pyodide)).out
    written = {path.relative_to("site").as_posix() for path in Path("site").rglob("*") if path.is_file()}
    assert written == {*page_files(), "planner.zip", *(f"pyodide/{name}" for name in export.CHECKSUMS)}
    assert "exists already; --force overwrites it" in call("web", "--export", "site", "--pyodide", str(pyodide)).err
    assert call("web", "--export", "site", "--pyodide", str(pyodide), "--force").code == 0


@pytest.mark.parametrize("keeps_docstrings", [True, False])
def test_a_compiled_archive_is_imported_without_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_docstrings: bool
):
    given = io.BytesIO()
    with zipfile.ZipFile(given, "w") as archive:
        archive.writestr("compiled_once/__init__.py", '"""Says what is known."""\nfrom compiled_once.part import seen')
        archive.writestr("compiled_once/part.py", "seen = 6 * 7")
        archive.writestr("compiled_once/data.json", "{}")
    made = tmp_path / "made.zip"
    made.write_bytes(compiled_archive(given.getvalue(), keeps_docstrings=keeps_docstrings))
    names = zipfile.ZipFile(made).namelist()
    assert names == ["compiled_once/__init__.pyc", "compiled_once/data.json", "compiled_once/part.pyc"]
    monkeypatch.syspath_prepend(str(made))
    found = importlib.import_module("compiled_once")
    assert found.seen == 42
    assert found.__doc__ == ("Says what is known." if keeps_docstrings else None)
    for name in ("compiled_once", "compiled_once.part"):
        del sys.modules[name]


def test_a_page_that_was_not_compiled_says_why(pyodide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pyodide here is files without Pyodide in them."""
    assert call("web", "--export", "a", "--pyodide", str(pyodide)).out.endswith("second: node is not on the PATH\n")
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\necho there is no such module >&2\nexit 1\n")
    node.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(node))
    said = call("web", "--export", "b", "--pyodide", str(pyodide)).out
    assert said.endswith("node did not compile it: there is no such module\n")
    assert Path("a/planner.zip").read_bytes() == Path("b/planner.zip").read_bytes()


def test_the_exported_page_says_what_it_may_do_before_it_does_anything(pyodide: Path):
    text = export.exported_files(pyodide)["index.html"].decode()
    policy = text.index('http-equiv="Content-Security-Policy"')
    assert policy < min(text.index("<script"), text.index("<link"))
    assert re.search(r"script-src 'self' 'wasm-unsafe-eval';", text)
    assert "unsafe-inline" not in text


def test_a_missing_package_is_said_with_how_to_get_it():
    assert "npm install pyodide@314.0.7" in call("web", "--export", "site").err
    assert not Path("site").exists()


def test_another_version_is_refused(pyodide: Path):
    (pyodide / "pyodide.asm.wasm").write_text("another")
    assert "pyodide.asm.wasm is not that of pyodide" in call("web", "--export", "site", "--pyodide", str(pyodide)).err
    assert not Path("site").exists()
