"""Synthetic chats: coloured squares and their names, and silence. Nothing to learn but which colour comes when it is
asked."""

import io
import random
import wave
from dataclasses import replace
from functools import cache

from vlmplan.chats.samples import ImagePart, Sample, SoundPart, TextPart, Turn

SILENCE_RATE = 16_000
"""Values a second of silences."""

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


def dummy_samples(
    count: int,
    *,
    num_images: int,
    image_size: tuple[int, int],
    seed: int,
    num_sounds: int = 0,
    sound_seconds: float = 0.0,
    asks: bool = True,
) -> list[Sample]:
    """``count`` chats with ``num_images`` images of ``image_size`` (width, height) and ``num_sounds`` silences of
    ``sound_seconds`` each; the same for the same seed.

    The assistant names the colours of the images in order; without images, the colours that the user names, sorted.
    ``asks``: the user says something too.
    """
    drawn = random.Random(seed)
    silence = SoundPart(source=silent_wav(sound_seconds), seconds=sound_seconds)
    sounds = [silence] * num_sounds
    samples = [_sample(index, drawn, num_images, image_size, sounds) for index in range(count)]
    return samples if asks else [_without_question(sample) for sample in samples]


def _sample(
    index: int, drawn: random.Random, num_images: int, image_size: tuple[int, int], sounds: list[SoundPart]
) -> Sample:
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
        Turn(role="user", content=(*sounds, *question)),
        Turn(role="assistant", content=(TextPart(text=", ".join(answer)),)),
    )
    return Sample(source=f"dummy data:{index + 1}", turns=turns)


def _without_question(sample: Sample) -> Sample:
    """``sample`` with nothing in the user's turn but what he shows."""
    user, assistant = sample.turns
    shown = tuple(part for part in user.content if not isinstance(part, TextPart))
    return replace(sample, turns=(replace(user, content=shown), assistant))


@cache
def silent_wav(seconds: float) -> bytes:
    """A WAV of so many seconds of nothing."""
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setparams((1, 2, SILENCE_RATE, 0, "NONE", "not compressed"))
        made.writeframes(bytes(2 * round(seconds * SILENCE_RATE)))
    return file.getvalue()


@cache
def coloured_png(colour: tuple[int, int, int], size: tuple[int, int]) -> bytes:
    """A PNG of one colour."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, format="PNG")
    return file.getvalue()
