"""How long a sound is, without decoding it, and one sentence for what is none."""

import importlib
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from small_sounds import wav, write_sound
from vlmplan.chats import sound_files
from vlmplan.chats.sound_files import sound_seconds
from vlmplan.errors import InputError, MissingPackageError


@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (44_100, 2), (8_000, 1)])
def test_a_wav_says_it_in_its_header(rate: int, channels: int, tmp_path: Path):
    path = tmp_path / "a.wav"
    path.write_bytes(wav(1.25, rate=rate, channels=channels))
    assert sound_seconds(path, name="the sound") == sound_seconds(path.read_bytes(), name="the sound") == 1.25


@pytest.mark.parametrize(
    ("name", "codec", "off"),
    [("a.flac", "flac", 0), ("a.ogg", "libopus", 0.02), ("a.mp3", "libmp3lame", 0.1), ("a.m4a", "aac", 0.1)],
)
def test_other_containers_say_it_through_pyav(name: str, codec: str, off: float, tmp_path: Path):
    """Codecs of frames may fill the last one up, and say so or not."""
    path = write_sound(tmp_path / name, 2.5, codec=codec)
    assert sound_seconds(path, name="the sound") == pytest.approx(2.5, abs=off)


def test_a_wav_of_floats_and_one_from_a_pipe_are_read_through_pyav(tmp_path: Path):
    pytest.importorskip("av")
    whole = wav(0.5)
    endless = whole[:4] + b"\xff\xff\xff\xff" + whole[8:40] + b"\xff\xff\xff\xff" + whole[44:]
    floats = whole[:20] + struct.pack("<HHIIHH", 3, 1, 16_000, 64_000, 4, 32) + whole[36:]
    assert sound_seconds(endless, name="the sound") == pytest.approx(0.5, abs=1e-3)
    assert sound_seconds(floats, name="the sound") == pytest.approx(0.25, abs=1e-3)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "of no container that is known"),
        (b"#EXTM3U\nother.wav\n", "of no container that is known"),
        (wav(0), "it does not say how long"),
        (b"fLaC" + bytes(30), "the sound cannot be read"),
    ],
)
def test_what_is_no_sound_is_one_sentence(content: bytes, sentence: str):
    pytest.importorskip("av")
    with pytest.raises(InputError, match="the sound") as caught:
        sound_seconds(content, name="the sound")
    assert sentence in str(caught.value) or "above 0" in str(caught.value)


@pytest.mark.parametrize("codec", ["flac", "libopus", "libmp3lame", "aac"])
def test_a_file_that_is_cut_off_anywhere_has_a_length_or_one_sentence(codec: str, tmp_path: Path):
    suffix = {"flac": "flac", "libopus": "ogg", "libmp3lame": "mp3", "aac": "m4a"}[codec]
    whole = write_sound(tmp_path / f"a.{suffix}", 2.5, codec=codec).read_bytes()
    for sixteenth in range(1, 16):
        with suppress(InputError):
            assert sound_seconds(whole[: len(whole) * sixteenth // 16], name="the sound") > 0


def test_without_pyav_other_files_are_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(sound_files.importlib, "import_module", missing)
    assert sound_seconds(wav(0.5), name="the sound") == 0.5
    with pytest.raises(MissingPackageError, match=r"pip install 'vlmplan\[audio\]'"):
        sound_seconds(b"fLaC" + bytes(60), name="the sound")
    monkeypatch.undo()
    assert importlib.import_module("wave")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 60), st.binary(max_size=8))
def test_no_damage_is_more_than_a_sentence(at: int, damage: bytes):
    whole = wav(0.01)
    with suppress(InputError, MissingPackageError):  # and nothing else
        assert sound_seconds(whole[:at] + damage + whole[at + len(damage) :], name="the sound") > 0
