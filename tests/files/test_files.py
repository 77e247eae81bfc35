"""Files are written whole or not at all, and never over another one that nobody gave up."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from vlmplan.errors import InputError, UnavailableError
from vlmplan.files import (
    EXECUTABLE,
    MAX_TEXT_BYTES,
    READABLE,
    open_regular,
    refuse_existing,
    refuse_unwritable,
    remove_half_written,
    text_of,
    write_atomically,
)


def test_text_is_written_as_utf_8_with_plain_line_ends(tmp_path: Path):
    write_atomically(tmp_path / "file", "Ψ\nΦ\n")
    assert (tmp_path / "file").read_bytes() == "Ψ\nΦ\n".encode()


def test_folders_on_the_way_are_made(tmp_path: Path):
    write_atomically(tmp_path / "one" / "two" / "file", "x")
    assert (tmp_path / "one" / "two" / "file").read_text() == "x"


def test_existing_file_is_kept_unless_it_was_given_up(tmp_path: Path):
    path = tmp_path / "file"
    write_atomically(path, "first")
    with pytest.raises(InputError, match="file exists already; --force overwrites it"):
        write_atomically(path, "second")
    assert path.read_text() == "first"
    write_atomically(path, "second", force=True)
    assert path.read_text() == "second"


def test_link_to_nothing_counts_as_existing(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="exists already"):
        refuse_existing([tmp_path / "link"], force=False)


@pytest.mark.parametrize("force", [False, True])
def test_folder_in_the_place_of_a_file_is_never_overwritten(tmp_path: Path, force: bool):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder is a folder"):
        write_atomically(tmp_path / "folder", "x", force=force)


def test_first_of_several_existing_paths_is_named(tmp_path: Path):
    paths = [tmp_path / name for name in ("a", "b", "c")]
    paths[1].touch()
    paths[2].touch()
    with pytest.raises(InputError, match="b exists already"):
        refuse_existing(paths, force=False)
    refuse_existing(paths, force=True)


def test_nothing_is_left_behind_beside_the_file(tmp_path: Path):
    write_atomically(tmp_path / "file", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_nothing_is_left_behind_of_what_cannot_be_written(tmp_path: Path):
    lone_surrogate = "\udc80"
    write_atomically(tmp_path / "file", "first")
    with pytest.raises(InputError):
        write_atomically(tmp_path / "file", lone_surrogate, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "first"


def test_place_that_is_no_folder_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "inside", "x")


def test_looking_whether_a_file_can_be_written_leaves_nothing_behind(tmp_path: Path):
    refuse_unwritable(tmp_path / "file")
    refuse_unwritable(tmp_path / "new" / "folder" / "file")
    with pytest.raises(UnavailableError, match="cannot be written"):
        refuse_unwritable(tmp_path / ("x" * 255))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
@pytest.mark.parametrize("mode", [EXECUTABLE, READABLE])
def test_umask_takes_from_the_mode(tmp_path: Path, mode: int):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", "x", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode & ~0o027


# Reading


def entries(folder: Path) -> dict[str, Path]:
    """What is no regular file, by kind."""
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/zero")
    return {"a pipe": folder / "pipe", "a device": folder / "link"}


@pytest.mark.skipif(os.name == "nt", reason="pipes and devices in the file system")
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str):
    path = entries(tmp_path)[kind]
    with pytest.raises(UnavailableError, match=f"it is {kind}, and only regular files are read"):
        text_of(path, name="the file")
    with pytest.raises(OSError, match=kind):
        open_regular(path)


def test_folder_is_no_text(tmp_path: Path):
    with pytest.raises(UnavailableError, match="cannot be read: Is a directory"):
        text_of(tmp_path, name="the file")


def test_text_is_read_up_to_a_size_that_is_said(tmp_path: Path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(MAX_TEXT_BYTES)
    assert len(text_of(path, name="the file")) == MAX_TEXT_BYTES
    with path.open("wb") as file:
        file.truncate(2**40)  # of which nothing takes room
    with pytest.raises(InputError, match="the file has more than 16 MiB"):
        text_of(path, name="the file")


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path: Path):
    (tmp_path / f".file.{os.getpid()}.tmp").touch()
    write_atomically(tmp_path / "file", "x")
    assert (tmp_path / "file").read_text() == "x"


def test_what_a_writer_leaves_where_it_is_killed_is_removed_and_nothing_else(tmp_path: Path):
    write = (
        "from pathlib import Path; from vlmplan.files import write_atomically; import os, signal\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"write_atomically(Path({str(tmp_path / 'report.json')!r}), 'x')"
    )
    (tmp_path / ".mine.tmp").touch()
    assert subprocess.run([sys.executable, "-c", write], check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    remove_half_written(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".mine.tmp"]
