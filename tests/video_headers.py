"""Headers of videos without a frame: MP4 and AVI."""

import struct


def mp4_header(
    width: int,
    height: int,
    num_frames: int,
    *,
    delta: int = 512,
    scale: int = 12800,
    wide: bool = False,
    turn: tuple[int, int] | None = None,
) -> bytes:
    """A video track after one of sound, as ffmpeg writes them; ``wide``: 64-bit sizes and times; ``turn``: cosine and
    sine of the angle by which it is to be shown."""

    def box(kind: bytes, *parts: bytes) -> bytes:
        content = b"".join(parts)
        return struct.pack(">I4s", 8 + len(content), kind) + content

    length = delta * num_frames
    times = (
        struct.pack(">IQQIQ", 1 << 24, 0, 0, scale, length) if wide else struct.pack(">IIIII", 0, 0, 0, scale, length)
    )
    entry = box(b"avc1", bytes(6) + struct.pack(">H", 1), bytes(16), struct.pack(">HH", width, height), bytes(50))
    table = box(
        b"stbl",
        box(b"stsd", struct.pack(">II", 0, 1), entry),
        box(b"stts", struct.pack(">IIII", 0, 1, num_frames, delta)),
        box(b"stsz", struct.pack(">III", 0, 0, num_frames)),
    )
    media = (box(b"mdhd", times), box(b"hdlr", bytes(8) + b"vide" + bytes(12)), box(b"minf", box(b"vmhd"), table))
    sound = box(b"trak", box(b"mdia", box(b"hdlr", bytes(8) + b"soun" + bytes(12))))
    track_header = b"" if turn is None else box(b"tkhd", bytes([wide]) + bytes(51 if wide else 39), _matrix(*turn))
    moov = box(b"moov", box(b"mvhd", bytes(100)), sound, box(b"trak", track_header, box(b"mdia", *media)))
    data = struct.pack(">I4sQ", 1, b"mdat", 16 + 5) + bytes(5) if wide else box(b"mdat", bytes(5))
    return box(b"ftyp", b"isom") + data + moov


def _matrix(cosine: int, sine: int) -> bytes:
    """Rows of (a, b, u), (c, d, v), (x, y, w): 16.16 fixed point, and 2.30 in the last column."""
    one = 1 << 16
    return struct.pack(">9i", cosine * one, sine * one, 0, -sine * one, cosine * one, 0, 0, 0, 1 << 30)


def avi_header(width: int, height: int, num_frames: int, *, scale: int, rate: int) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack("<4sI", name, len(content)) + content

    head = b"vidsMJPG" + bytes(12) + struct.pack("<IIII", scale, rate, 0, num_frames) + bytes(24)
    stream = b"strl" + chunk(b"strh", head) + chunk(b"strf", struct.pack("<Iii", 40, width, height) + bytes(28))
    whole = b"AVI " + chunk(b"LIST", b"hdrl" + chunk(b"avih", bytes(56)) + chunk(b"LIST", stream))
    return chunk(b"RIFF", whole)
