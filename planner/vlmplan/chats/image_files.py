"""Images from files and from base64, and where other files of a sample are. The header comes before the pixels, so
that no small file can fill the memory.

Only the formats in ``FORMATS`` are tried: others that Pillow knows start programs (EPS) or are no photographs.
"""

import base64
import binascii
import io
import math
import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vlmplan.chats.references import Reference
from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MAX_PIXELS = 89_478_485
"""The size at which Pillow warns of a decompression bomb: 256 MiB of RGB."""
MAX_TRIED_PIXELS = 1 << 28
"""Pixels of a file of samples that are decoded before training, the first ones. A choice: one second of JPEG, eight of
PNG (measured on one core: 230 and 35 million pixels a second). Every rank has to find the same, so no clock decides."""
MIN_BASE64_LENGTH = 64
"""A shorter text that names no file is a mistaken path: the smallest PNG has 67 bytes."""
ORIENTATION_TAG = 0x0112
TURNED = (5, 6, 7, 8)
"""EXIF orientations that swap width and height."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
FILE_URI = re.compile(r"\Afile://(localhost(?=/))?", re.IGNORECASE)
"""Before an absolute path, as Qwen's examples have it."""
DATA_URI = re.compile(r"data:[^,]*,", re.IGNORECASE)
BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """An image or a sound in base64 inside a file of samples: the file, the sample's place in it, and which of its
    images, or of its sounds.

    The bytes stay in the file until a batch needs them.
    """

    file: Path
    offset: int
    num_bytes: int
    index: int


Source = Path | bytes | Embedded


def base64_bytes(reference: Reference) -> bytes | None:
    """The bytes of a reference that is base64; None if it is a path. Raises InputError for base64 that is broken."""
    uri = DATA_URI.match(reference.text)
    if uri is None and not reference.is_base64:
        return None
    if uri is not None and not uri.group().lower().endswith(";base64,"):
        raise InputError(f"the {reference.kind} {shown(reference.text)} is a data: URI that is not base64")
    return decoded_base64(reference.text[uri.end() if uri else 0 :], kind=reference.kind)


def decoded_base64(text: str, *, kind: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"the {kind} {shown(text)} is not base64: {error}") from None


def located(reference: Reference, folders: tuple[Path, ...]) -> Path | bytes:
    """The file that a reference names, looked for in ``folders`` in turn, or the bytes that it holds."""
    data = base64_bytes(reference)
    if data is not None:
        return data
    text, kind = FILE_URI.sub("", reference.text, count=1), reference.kind
    if URL.match(text):
        raise InputError(
            f"the {kind} {shown(text)} is a URL; {kind}s are read from files or base64, never from the net"
        )
    path = _file_in(folders, text)
    if path is not None:
        return path
    if len(text) >= MIN_BASE64_LENGTH and BASE64.fullmatch(text):
        return decoded_base64(text, kind=kind)
    raise _no_file(kind, text, folders)


def located_file(reference: Reference, folders: tuple[Path, ...], *, kind: str) -> Path:
    """The file that a reference names, looked for in ``folders`` in turn."""
    text = FILE_URI.sub("", reference.text, count=1)
    if URL.match(text):
        raise InputError(f"the {kind} {shown(text)} is a URL; {kind}s are read from files, never from the net")
    path = _file_in(folders, text)
    if path is None:
        raise _no_file(kind, text, folders)
    return path


def _file_in(folders: tuple[Path, ...], name: str) -> Path | None:
    for folder in folders:
        path = folder / name
        try:
            if path.is_file():
                return path
        except (OSError, ValueError):  # a name that is too long, or with a zero byte
            continue
    return None


def _no_file(kind: str, name: str, folders: tuple[Path, ...]) -> InputError:
    return InputError(f"the {kind} {shown(name)} is no file in {' or '.join(str(folder) for folder in folders)}")


class PixelBudget:
    """How many more pixels are decoded only to see whether they can be."""

    def __init__(self, num_pixels: int = MAX_TRIED_PIXELS) -> None:
        self._left = num_pixels

    def takes(self, size: tuple[int, int]) -> bool:
        """Whether an image of this size is decoded; then its pixels are gone from the budget."""
        self._left -= math.prod(size)
        return self._left >= 0


def checked_size(source: Path | bytes, *, name: str, budget: PixelBudget | None = None) -> tuple[int, int]:
    """Width and height of an image as it is looked at, from its header; within ``budget`` it is decoded too.

    Raises InputError, naming ``name``, if it cannot be read or has more than ``MAX_PIXELS``.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a size that is refused anyway
        with opened_lazily(source, name) as image:
            # PNG's own getexif decodes all pixels; what stands before them is enough.
            is_turned = Image.Image.getexif(image).get(ORIENTATION_TAG) in TURNED
            if budget is not None and budget.takes(image.size):
                image.load()
    width, height = image.size
    return (height, width) if is_turned else (width, height)


@contextmanager
def opened_lazily(source: Path | bytes, name: str) -> Generator["Image"]:
    """The image, not decoded yet. Whatever goes wrong with it inside is an InputError that names it."""
    from PIL import Image

    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        image: Image.Image = Image.open(file, formats=FORMATS)
        with image:
            if math.prod(image.size) > MAX_PIXELS:
                raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels")
            yield image
    except Image.DecompressionBombError as error:
        raise InputError(f"{name} is larger than the {MAX_PIXELS:,} pixels that are read ({_reason(error)})") from None
    except Exception as error:  # Pillow raises anything at all for a broken file
        raise InputError(f"{name} cannot be read as an image ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return f"it is none of {', '.join(FORMATS)}"
    return " ".join(str(error).split()) or type(error).__name__
