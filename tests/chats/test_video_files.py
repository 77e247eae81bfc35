"""The length and the size of a video by its header alone, and nothing guessed where it does not say them."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from video_headers import avi_header, mp4_header
from vlmplan.chats.video_files import video_header
from vlmplan.errors import InputError


def read(folder: Path, content: bytes) -> tuple[int, int, int, float]:
    path = folder / "a.mp4"
    path.write_bytes(content)
    found = video_header(path, name="the video")
    return found.width, found.height, found.num_frames, found.seconds


@pytest.mark.parametrize("wide", [False, True])
def test_an_mp4_says_it_in_its_tables(wide: bool, tmp_path: Path):
    found = read(tmp_path, mp4_header(640, 360, 243, delta=512, scale=12800, wide=wide))
    assert found == (640, 360, 243, 243 * 512 / 12800)


@pytest.mark.parametrize("wide", [False, True])
def test_an_mp4_says_by_its_matrix_how_it_is_turned(wide: bool, tmp_path: Path):
    path = tmp_path / "a.mp4"
    turns: list[int] = []
    for turn in (None, (1, 0), (0, 1), (-1, 0), (0, -1)):
        path.write_bytes(mp4_header(64, 48, 9, wide=wide, turn=turn))
        turns.append(video_header(path, name="the video").quarter_turns)
    assert turns == [0, 0, 1, 2, 3]


def test_an_avi_says_it_in_its_stream_header(tmp_path: Path):
    assert read(tmp_path, avi_header(320, 240, 270, scale=12, rate=359)) == (320, 240, 270, 270 * 12 / 359)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "of no container that is known"),
        (b"\x1a\x45\xdf\xa3" + bytes(60), "it is WebM or Matroska"),
        (mp4_header(64, 64, 0), "no number of frames"),
        (mp4_header(0, 64, 9), "which is no video's"),
        (mp4_header(64, 64, 9, scale=0), "no number of frames"),
        (mp4_header(64, 64, 9, delta=0), "does not say in its header how long it lasts"),
        (mp4_header(64, 64, 9)[:200], "cannot be read as a video"),
        (b"\x00\x00\x00\x08ftyp" + b"\xff\xff\xff\xffmoov", "more than 64 MiB"),
        (b"\x00\x00\x00\x08ftyp" + b"\x00\x00\x00\x04free", "no moov box"),
        (avi_header(64, 64, 9, scale=1, rate=0), "does not say in its header how long it lasts"),
        (avi_header(64, 64, 9, scale=1, rate=1)[:40], "no video stream"),
    ],
)
def test_what_does_not_say_it_is_refused_with_a_sentence(content: bytes, sentence: str, tmp_path: Path):
    with pytest.raises(InputError, match="the video") as error:
        read(tmp_path, content)
    assert sentence in str(error.value)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 400), st.binary(max_size=8), st.booleans())
def test_no_damage_is_more_than_a_sentence(tmp_path_factory, at: int, damage: bytes, is_avi: bool):
    whole = avi_header(64, 48, 9, scale=1, rate=25) if is_avi else mp4_header(64, 48, 9)
    folder = tmp_path_factory.mktemp("damaged")
    with suppress(InputError):  # and nothing else
        width, height, num_frames, seconds = read(folder, whole[:at] + damage + whole[at + len(damage) :])
        assert min(width, height, num_frames) > 0
        assert seconds > 0
