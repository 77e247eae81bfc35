"""Samples in one line, for tests, and what is learned of them."""

from typing import Any

from vlmplan.chats.samples import ImagePart, Sample, TextPart, Turn
from vlmplan_trainer.data.dummy import coloured_png
from vlmplan_trainer.data.encode import IGNORED_LABEL, Encoded, Encoder


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
