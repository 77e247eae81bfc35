"""Little sounds: tones in WAV files, and in other containers as PyAV writes them."""

import io
import math
import struct
import wave
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

RATE = 16_000


def tone(num_values: int, *, rate: int = RATE, hertz: float = 440.0, volume: float = 0.3) -> list[int]:
    """A sine in 16 bits."""
    return [round(32767 * volume * math.sin(2 * math.pi * hertz * index / rate)) for index in range(num_values)]


def wav(seconds: float, *, rate: int = RATE, channels: int = 1, hertz: float = 440.0) -> bytes:
    """A tone as the content of a WAV file, the same in all channels."""
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(channels)
        made.setsampwidth(2)
        made.setframerate(rate)
        values = tone(round(seconds * rate), rate=rate, hertz=hertz)
        made.writeframes(b"".join(struct.pack("<h", value) * channels for value in values))
    return file.getvalue()


def write_wav(path: Path, seconds: float, **more: Any) -> Path:
    path.write_bytes(wav(seconds, **more))
    return path


def write_sound(path: Path, seconds: float, *, codec: str, rate: int = RATE) -> Path:
    """A tone in the container that the name of ``path`` says."""
    av: Any = pytest.importorskip("av")
    numpy = pytest.importorskip("numpy")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        values = numpy.array([tone(round(seconds * rate), rate=rate)], dtype=numpy.int16)
        frame = av.AudioFrame.from_ndarray(values, format="s16", layout="mono")
        frame.rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        resampler = av.AudioResampler(
            format=stream.format, layout="mono", rate=rate, frame_size=stream.frame_size or None
        )
        for made in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(stream.encode(made))
        container.mux(stream.encode())
    return path
