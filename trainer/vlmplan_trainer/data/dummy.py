"""Synthetic image chats: coloured squares and their names. Nothing to learn but which colour comes when it is asked."""

import io
import random
from functools import cache

from vlmplan.chats.samples import ImagePart, Sample, TextPart, Turn

COLOURS = {
    "black": (0, 0, 0),
    "blue": (0, 0, 255),
    "cyan": (0, 255, 255),
    "green": (0, 128, 0),
    "magenta": (255, 0, 255),
    "red": (255, 0, 0),
    "white": (255, 255, 255),
    "yellow": (255, 255, 0),
}


def dummy_samples(count: int, *, num_images: int, image_size: tuple[int, int], seed: int) -> list[Sample]:
    """``count`` chats with ``num_images`` images of ``image_size`` (width, height) each; the same for the same seed.

    The assistant names the colours of the images in order; without images, the colours that the user names, sorted.
    """
    drawn = random.Random(seed)
    return [_sample(index, drawn, num_images, image_size) for index in range(count)]


def _sample(index: int, drawn: random.Random, num_images: int, image_size: tuple[int, int]) -> Sample:
    names = drawn.choices(list(COLOURS), k=num_images or 3)
    if num_images:
        width, height = image_size
        shown = [
            ImagePart(source=coloured_png(COLOURS[name], image_size), width=width, height=height) for name in names
        ]
        question, answer = [*shown, TextPart(text="Which colours are these?")], names
    else:
        question, answer = [TextPart(text=f"Sort these colours: {', '.join(names)}")], sorted(names)
    turns = (
        Turn(role="user", content=tuple(question)),
        Turn(role="assistant", content=(TextPart(text=", ".join(answer)),)),
    )
    return Sample(source=f"dummy data:{index + 1}", turns=turns)


@cache
def coloured_png(colour: tuple[int, int, int], size: tuple[int, int]) -> bytes:
    """A PNG of one colour."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, format="PNG")
    return file.getvalue()
