"""The wheel that goes with a task: what an index would have given, made of what is installed."""

import base64
import csv
import hashlib
import io
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import vlmplan
from vlmplan.emit.wheel import wheel_bytes, wheel_name
from vlmplan.errors import UnavailableError
from vlmplan.files import shipped_catalog_path
from vlmplan.versions import VLMPLAN_VERSION

FOLDER = Path(vlmplan.__file__).parent


@pytest.fixture(scope="module")
def wheel() -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(wheel_bytes()))


@pytest.mark.sweep
def test_the_same_installation_gives_the_same_wheel():
    assert wheel_bytes() == wheel_bytes()


def test_every_file_of_both_packages_is_in_it(wheel: zipfile.ZipFile):
    names = set(wheel.namelist())
    sources = {path.relative_to(FOLDER.parent).as_posix() for path in FOLDER.rglob("*.py")}
    assert sources <= names
    assert {"vlmplan/py.typed", "vlmplan_trainer/__main__.py", "vlmplan/data/gpu_catalog.jsonl"} <= names
    assert wheel.read("vlmplan/gpu_catalog.yaml") == shipped_catalog_path(FOLDER).read_bytes()
    assert not [name for name in names if "__pycache__" in name or name.startswith(("tests", "/"))]


def test_its_record_has_the_digest_and_size_of_every_file(wheel: zipfile.ZipFile):
    record = f"vlmplan-{VLMPLAN_VERSION}.dist-info/RECORD"
    rows = list(csv.reader(io.StringIO(wheel.read(record).decode())))
    assert sorted(row[0] for row in rows) == sorted(wheel.namelist())
    for name, digest, size in rows:
        if name != record:
            content = wheel.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={expected}", len(content))


def test_it_says_what_the_installation_says_of_itself(wheel: zipfile.ZipFile):
    folder = f"vlmplan-{VLMPLAN_VERSION}.dist-info"
    installed = metadata.distribution("vlmplan")
    assert wheel.read(f"{folder}/METADATA").decode() == installed.read_text("METADATA")
    assert "vlmplan = vlmplan.cli:main" in wheel.read(f"{folder}/entry_points.txt").decode()


@pytest.mark.sweep
def test_pip_installs_it_without_an_index_and_it_runs(tmp_path: Path):
    """Its own dependencies are those of this interpreter: an empty environment has none of them."""
    path = tmp_path / wheel_name()
    path.write_bytes(wheel_bytes())
    target = tmp_path / "empty"
    venv.create(target, with_pip=False, symlinks=True)
    python = target / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(path)]
    subprocess.run(install, check=True, capture_output=True)
    site = next(target.glob("lib/python*/site-packages"))
    beside = [str(Path(metadata.distribution(name).locate_file("")).resolve()) for name in ("click", "rich")]
    (site / "dependencies.pth").write_text("\n".join(dict.fromkeys(beside)) + "\n")
    known = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [str(target / "bin" / "vlmplan"), "--version"], env=known, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert VLMPLAN_VERSION in done.stdout
    question = "import vlmplan, vlmplan_trainer; print(vlmplan.__file__); print(vlmplan_trainer.__file__)"
    asked = subprocess.run([str(python), "-c", question], env=known, capture_output=True, text=True, cwd=tmp_path)
    assert [Path(line).is_relative_to(target) for line in asked.stdout.splitlines()] == [True, True], asked
    estimate = [str(target / "bin" / "vlmplan"), "gpus", "--min-memory", "200"]
    assert subprocess.run(estimate, env=known, capture_output=True, text=True, cwd=tmp_path).returncode == 0


def test_without_an_installation_there_is_no_wheel(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("vlmplan.emit.wheel.metadata.distribution", missing)
    with pytest.raises(UnavailableError, match="without having been installed"):
        wheel_bytes()


def test_a_wheel_of_another_version_is_not_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vlmplan.emit.wheel.VLMPLAN_VERSION", "9.9.9")
    with pytest.raises(UnavailableError, match=r"is installed, 9\.9\.9 is running"):
        wheel_bytes()
