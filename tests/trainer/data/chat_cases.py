"""Chats, images and files of them in one line, for tests."""

import base64
import io
import json
from pathlib import Path
from typing import Any

from PIL import Image

from vlmplan_trainer.data.chats import ImagePart, Sample, TextPart, Turn
from vlmplan_trainer.data.dummy import coloured_png
from vlmplan_trainer.data.encode import IGNORED_LABEL, Encoded, Encoder

ANSWER = {"role": "assistant", "content": "A cat."}


def png(width: int = 8, height: int = 8, colour: Any = "red", mode: str = "RGB", form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height), colour).save(file, format=form)
    return file.getvalue()


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


def chat(*turns: tuple[str, str], sizes: tuple[tuple[int, int], ...] = (), source: str = "some.jsonl:1") -> Sample:
    """A sample of (role, text), images of ``sizes`` in front of the user's first text."""
    images = [ImagePart(source=coloured_png((9, 9, 9), size), width=size[0], height=size[1]) for size in sizes]
    made = []
    for role, said in turns:
        shown, images = (images, []) if role == "user" else ([], images)
        made.append(Turn(role=role, content=(*shown, TextPart(text=said))))
    return Sample(source=source, turns=tuple(made))


def question(said: str = "What is it?", answer: str = "A cat.", **more: Any) -> Sample:
    return chat(("user", said), ("assistant", answer), **more)


def learned(encoder: Encoder, encoded: Encoded) -> str:
    """The text that labels are on."""
    [labels] = encoded["labels"]
    return encoder.tokenizer.decode(labels[labels != IGNORED_LABEL])
