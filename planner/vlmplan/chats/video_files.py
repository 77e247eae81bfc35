"""How long and how large a video is, by its container's header alone: MP4 and MOV (ISO/IEC 14496-12) and AVI.

No frame is decoded. Boxes are passed over by their sizes, ``moov`` and ``hdrl`` are read up to a limit, and whatever
they do not say is not guessed.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from vlmplan.errors import InputError
from vlmplan.files import open_regular

MAX_HEADER_BYTES = 64 * 2**20
"""Of ``moov``: hours of video have some MiB of tables."""
MAX_BOXES = 10_000
"""That are passed over in a file, or in a box. A choice."""
MAX_SIDE, MAX_FRAMES = 16_384, 10**9
MATROSKA = b"\x1a\x45\xdf\xa3"
READ = "the headers of MP4, MOV and AVI are read"


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoHeader:
    """``num_frames`` of ``width`` x ``height`` pixels that last ``seconds``, as they are stored. They are looked at
    after so many ``quarter_turns`` clockwise, as phones have it that are held upright. ``is_listed``: it is a list of
    images, which were chosen before."""

    width: int
    height: int
    num_frames: int
    seconds: float
    quarter_turns: int = 0
    is_listed: bool = False

    @property
    def shown_size(self) -> tuple[int, int]:
        """Width and height as it is looked at."""
        return (self.height, self.width) if self.quarter_turns % 2 else (self.width, self.height)

    @property
    def fps(self) -> float:
        return self.num_frames / self.seconds

    def within(self, max_pixels: int | None) -> "VideoHeader":
        """The video with frames of no more than so many pixels, and of the same shape."""
        pixels = self.width * self.height
        if max_pixels is None or pixels <= max_pixels:
            return self
        factor = math.sqrt(max_pixels / pixels)
        return replace(self, width=max(1, int(self.width * factor)), height=max(1, int(self.height * factor)))


def video_header(path: Path, *, name: str) -> VideoHeader:
    """Raises InputError, naming ``name``, where the header cannot be read or does not say it."""
    try:
        with open_regular(path) as file:
            found = _header(file)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from None
    except (struct.error, ValueError, IndexError) as error:
        raise InputError(f"{name} cannot be read as a video ({error}); {READ}") from None
    if not (0 < found.width <= MAX_SIDE and 0 < found.height <= MAX_SIDE and 0 < found.num_frames <= MAX_FRAMES):
        raise InputError(
            f"{name} says {found.num_frames} frames of {found.width}x{found.height} in its header, which is no video's"
        )
    if not 0 < found.seconds < 10**7:
        raise InputError(f"{name} does not say in its header how long it lasts")
    return found


def _header(file: BinaryIO) -> VideoHeader:
    start = file.read(12)
    if start.startswith(MATROSKA):
        raise ValueError("it is WebM or Matroska")
    if start[:4] == b"RIFF" and start[8:12] == b"AVI ":
        return _of_avi(file)
    if start[4:8] not in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide"):
        raise ValueError("its first bytes are of no container that is known")
    file.seek(0)
    return _of_moov(_moov(file))


# -- MP4, MOV --------------------------------------------------------------------------------------------------------


def _moov(file: BinaryIO) -> bytes:
    """The content of the box that describes the tracks, wherever in the file it is."""
    for _ in range(MAX_BOXES):
        start = file.read(8)
        if len(start) < 8:
            break
        size, kind = struct.unpack(">I4s", start)
        taken = 8
        if size == 1:
            [size] = struct.unpack(">Q", file.read(8))
            taken = 16
        if kind == b"moov":
            if size - taken > MAX_HEADER_BYTES:
                raise ValueError(f"its header has more than {MAX_HEADER_BYTES // 2**20} MiB")
            return file.read(size - taken) if size else file.read(MAX_HEADER_BYTES)
        if size < taken:  # 0: up to the end of the file
            break
        file.seek(size - taken, 1)
    raise ValueError("it has no moov box, or is cut off before it")


def _boxes(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of the boxes side by side in ``content``."""
    at = 0
    for _ in range(MAX_BOXES):
        if at + 8 > len(content):
            return
        size, kind = struct.unpack_from(">I4s", content, at)
        taken = 8
        if size == 1:
            [size] = struct.unpack_from(">Q", content, at + 8)
            taken = 16
        end = len(content) if size == 0 else at + size
        if end < at + taken or end > len(content):
            return
        yield kind, content[at + taken : end]
        at = end


def _inside(content: bytes, *kinds: bytes) -> bytes:
    """The content of the first box of these kinds, each inside the one before."""
    for kind in kinds:
        content = next((inner for found, inner in _boxes(content) if found == kind), b"")
    return content


def _of_moov(moov: bytes) -> VideoHeader:
    for kind, track in _boxes(moov):
        media = _inside(track, b"mdia") if kind == b"trak" else b""
        if _inside(media, b"hdlr")[8:12] == b"vide":
            return replace(_of_media(media), quarter_turns=_quarter_turns(_inside(track, b"tkhd")))
    raise ValueError("it has no video track")


def _quarter_turns(header: bytes) -> int:
    """Quarter turns by the first row of the matrix in ``tkhd``; 0 for one that turns by another angle, as where there
    is none."""
    place = 52 if header[:1] == b"\x01" else 40
    if len(header) < place + 8:
        return 0
    [cosine, sine] = struct.unpack_from(">ii", header, place)
    return {(0, 1): 1, (-1, 0): 2, (0, -1): 3}.get((_sign(cosine), _sign(sine)), 0)


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def _of_media(media: bytes) -> VideoHeader:
    """``stsd`` has the size, ``stsz`` the number of frames, ``stts`` how long each is in units of ``mdhd``, of which
    ffmpeg takes the whole where that is less (``mov_read_stts`` in ``libavformat/mov.c``)."""
    header, table = _inside(media, b"mdhd"), _inside(media, b"minf", b"stbl")
    place, form = (20, ">IQ") if header[:1] == b"\x01" else (12, ">II")
    scale, whole = struct.unpack_from(form, header, place)
    entry = _inside(table, b"stsd")[8:]
    width, height = struct.unpack_from(">HH", entry, 32)
    sizes = _inside(table, b"stsz") or _inside(table, b"stz2")
    [num_frames] = struct.unpack_from(">I", sizes, 8)
    times = _inside(table, b"stts")
    [count] = struct.unpack_from(">I", times, 4)
    length = sum(number * each for number, each in struct.iter_unpack(">II", times[8 : 8 + 8 * count]))
    if not num_frames or not scale:
        raise ValueError("its header has no number of frames, as where it is stored in fragments")
    return VideoHeader(width=width, height=height, num_frames=num_frames, seconds=min(length, whole or length) / scale)


# -- AVI -------------------------------------------------------------------------------------------------------------


def _of_avi(file: BinaryIO) -> VideoHeader:
    """``strh`` of the video stream has frames and rate, ``strf`` the size."""
    kind, size, name = struct.unpack("<4sI4s", file.read(12))
    if kind != b"LIST" or name != b"hdrl" or size > MAX_HEADER_BYTES:
        raise ValueError("its header list does not come first")
    for found, stream in _chunks(file.read(size - 4)):
        if found != b"strl":
            continue
        parts = dict(_chunks(stream))
        head, form = parts.get(b"strh", b""), parts.get(b"strf", b"")
        if head[:4] == b"vids":
            scale, rate, _, length = struct.unpack_from("<IIII", head, 20)
            width, height = struct.unpack_from("<ii", form, 4)
            seconds = length * scale / rate if rate else 0.0
            return VideoHeader(width=width, height=abs(height), num_frames=length, seconds=seconds)
    raise ValueError("it has no video stream")


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and content of chunks side by side; of a list the list's own name."""
    at = 0
    for _ in range(MAX_BOXES):
        if at + 8 > len(content):
            return
        name, size = struct.unpack_from("<4sI", content, at)
        inner = content[at + 8 : at + 8 + size]
        yield (inner[:4], inner[4:]) if name == b"LIST" else (name, inner)
        at += 8 + size + size % 2
