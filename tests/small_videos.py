"""Little videos that PyAV writes, each frame of a colour of its own."""

from pathlib import Path
from typing import Any

import pytest

BITS_PER_SECOND = 8_000_000
"""So many that a frame keeps its colour."""


def shade(index: int, num_frames: int) -> int:
    """Of grey, 0 to 255, in which frame ``index`` is."""
    return round(255 * index / max(1, num_frames - 1))


def write_video(
    path: Path, *, num_frames: int = 30, fps: int = 10, size: tuple[int, int] = (96, 64), codec: str = "mpeg4"
) -> Path:
    """A video of ``size`` (width, height), from black to white; in the container that the name of ``path`` says."""
    av: Any = pytest.importorskip("av")
    numpy = pytest.importorskip("numpy")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.bit_rate = BITS_PER_SECOND
        for index in range(num_frames):
            pixels = numpy.full((size[1], size[0], 3), shade(index, num_frames), dtype=numpy.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path
