"""Chats in JSON, images, and files of them in one line, for tests."""

import base64
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

from PIL import Image

ANSWER = {"role": "assistant", "content": "A cat."}


def png(width: int = 8, height: int = 8, colour: Any = "red", mode: str = "RGB", form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height), colour).save(file, format=form)
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    """The first bytes of a PNG of this size, without a pixel."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 9) + b"IDAT"


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def jsonl(folder: Path, *lines: object, name: str = "chats.jsonl") -> Path:
    """A file of ``lines``; what is no text is written as JSON."""
    path = folder / name
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def asked(*content: object, **more: object) -> dict[str, Any]:
    """A sample in the form of messages in which the user says ``content`` and the assistant answers."""
    [said] = content if len(content) == 1 and isinstance(content[0], str) else [list(content)]
    return {"messages": [{"role": "user", "content": said}, ANSWER], **more}


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}
