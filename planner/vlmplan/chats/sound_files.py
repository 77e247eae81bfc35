"""How long a sound is: WAV by its header, of other files by what PyAV says of the container. Nothing is decoded."""

import importlib
import io
import wave
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from vlmplan.errors import InputError, MissingPackageError
from vlmplan.files import open_regular

MAX_SECONDS = 7_200
"""Of a sound that is read: two hours, 461 MB of float32 at 16,000 values a second. A choice."""
READ = "WAV, FLAC, MP3, AAC, Ogg, MP4, AIFF and Matroska are read"
BEGINNINGS = (
    (b"RIFF", "wav"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"FORM", "aiff"),
    (b"\x1a\x45\xdf\xa3", "matroska"),
)
"""How files begin, and what ffmpeg calls their containers. Named, so that no playlist is tried, which could lead to
other files."""


def missing_pyav(sounds: str) -> MissingPackageError:
    """What is said where PyAV is not there, which these ``sounds`` need."""
    return MissingPackageError(f"reading {sounds} needs the package av: pip install 'vlmplan[audio]'")


def sound_seconds(source: Path | bytes, *, name: str) -> float:
    """Seconds of a file, or of its content. Raises InputError, naming ``name``, for what cannot be read as sound, and
    MissingPackageError where PyAV is needed and not there."""
    try:
        with opened_sound(source) as file:
            found = _wave_seconds(file) or _container_seconds(file)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise InputError(f"{name} cannot be read: {reason}") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} cannot be read as sound ({' '.join(str(error).split())}); {READ}") from None
    if not 0 < found <= MAX_SECONDS:
        raise InputError(f"{name} lasts {found:g} s; above 0 and at most {MAX_SECONDS:,} is read")
    return found


@contextmanager
def opened_sound(source: Path | bytes) -> Generator[BinaryIO]:
    if isinstance(source, bytes):
        yield io.BytesIO(source)
        return
    with open_regular(source) as file:
        yield file


def _wave_seconds(file: BinaryIO) -> float | None:
    """The seconds of PCM as ``wave`` reads it; None for anything else, and where the header says more than the file
    has."""
    try:
        with wave.open(file) as found:
            seconds = found.getnframes() / found.getframerate()
            num_bytes = found.getnframes() * found.getnchannels() * found.getsampwidth()
    except (wave.Error, EOFError, RuntimeError, ZeroDivisionError):  # RuntimeError: chunks longer than the file
        return None
    finally:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
    return seconds if num_bytes <= size else None


def _container_seconds(file: BinaryIO) -> float:
    with opened_container(file) as container:
        [stream] = container.streams.audio[:1]
        if stream.duration is not None:
            return float(stream.duration * stream.time_base)
        if container.duration is not None:
            return container.duration / 1_000_000
    raise ValueError("it does not say how long it lasts")


@contextmanager
def opened_container(file: BinaryIO) -> Generator[Any]:
    """PyAV's, with a stream of sound. Raises ValueError for what is none."""
    name = _container_format(file.read(12))
    file.seek(0)
    try:
        av: Any = importlib.import_module("av")
    except ImportError:
        raise missing_pyav("sounds that are no plain WAV") from None
    try:
        opened = av.open(file, format=name)
    except av.FFmpegError as error:  # of which not all are OSErrors or ValueErrors: that of a FLAC file cut in two
        raise ValueError(error.strerror or str(error)) from None
    with opened as container:
        if not container.streams.audio:
            raise ValueError("it has no sound")
        yield container


def _container_format(start: bytes) -> str:
    if start[4:8] == b"ftyp":
        return "mov"
    if start[:1] == b"\xff" and len(start) > 1 and start[1] & 0xE0 == 0xE0:  # where a frame begins; no layer is AAC
        return "mp3" if start[1] & 0x06 else "aac"
    name = next((name for beginning, name in BEGINNINGS if start.startswith(beginning)), None)
    if name is None:
        raise ValueError("its first bytes are of no container that is known")
    return name
