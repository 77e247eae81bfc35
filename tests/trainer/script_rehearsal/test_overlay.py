"""What a script does to files, it finds done, and the files themselves are as they were."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from vlmplan_trainer.script_rehearsal.overlay import Overlay, files_elsewhere
from vlmplan_trainer.script_rehearsal.side_effects import Notes


def _appends() -> None:
    with open("old.txt", "a", encoding="utf-8") as file:
        file.write(" and new")
    assert Path("old.txt").read_text() == "old and new"


def _locks_in_a_new_folder() -> None:
    """As filelock and datasets do: ``os.statvfs`` of the folder, then ``os.open`` of the lock."""
    os.makedirs("cache/locks")
    assert os.statvfs("cache/locks").f_namemax > 0
    os.close(os.open("cache/locks/a.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL))
    with pytest.raises(FileExistsError):
        os.open("cache/locks/a.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    assert Path("cache/locks/a.lock").stat().st_size == 0


def _moves_a_whole_data_set() -> None:
    os.makedirs("data.incomplete")
    Path("data.incomplete/part").write_bytes(b"rows")
    shutil.move("data.incomplete", "data")
    assert not os.path.exists("data.incomplete")
    assert Path("data/part").read_bytes() == b"rows"


def _removes_and_writes_beside() -> None:
    os.remove("folder/first")
    Path("folder/third").touch()
    assert sorted(os.listdir("folder")) == ["second", "third"]
    assert sorted(entry.name for entry in os.scandir("folder")) == ["second", "third"]
    with pytest.raises(FileNotFoundError):
        Path("folder/first").read_text()


def _begins_with_an_empty_folder() -> None:
    shutil.rmtree("folder")
    assert not Path("folder").exists()
    os.mkdir("folder")
    assert os.listdir("folder") == []


def _renames_what_was_there() -> None:
    os.replace("folder/first", "old.txt")
    assert Path("old.txt").read_text() == "1"
    assert os.listdir("folder") == ["second"]


def _removes_what_it_made() -> None:
    with tempfile.TemporaryDirectory(dir=".") as made:
        Path(made, "a").mkdir()
        Path(made, "a", "b").touch()
    assert not os.path.exists(made)
    with pytest.raises(OSError, match="not empty"):
        os.rmdir("folder")
    with pytest.raises(FileExistsError):
        os.mkdir("folder")
    with pytest.raises(FileNotFoundError):
        os.mkdir("nowhere/deeper")


@pytest.mark.parametrize(
    "act",
    [
        _appends,
        _locks_in_a_new_folder,
        _moves_a_whole_data_set,
        _removes_and_writes_beside,
        _begins_with_an_empty_folder,
        _renames_what_was_there,
        _removes_what_it_made,
    ],
)
def test_a_script_finds_what_it_did_and_files_are_as_they_were(
    act: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    work, elsewhere, notes = tmp_path / "work", tmp_path / "elsewhere", Notes()
    (work / "folder").mkdir(parents=True)
    elsewhere.mkdir()
    before = {"old.txt": "old", "folder/first": "1", "folder/second": "2"}
    for name, text in before.items():
        (work / name).write_text(text)
    monkeypatch.chdir(work)
    with files_elsewhere(Overlay(elsewhere, notes)):
        act()
    assert {str(path.relative_to(work)): path.read_text() for path in work.rglob("*") if path.is_file()} == before
    assert [path.name for path in work.rglob("*") if path.is_dir()] == ["folder"]
    assert any("temporary folder" in sentence for sentence in notes.sentences)
