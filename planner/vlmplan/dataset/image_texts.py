"""What processors write into a text around the token of an image, which decides what the text's own tokens are.

transformers 5.23: ``Gemma3Processor`` and ``Gemma3nProcessor``, ``Idefics2Processor``, ``Blip2Processor`` and
``InstructBlipProcessor``, ``Molmo2Processor``. Counted here is the text with one token for each image, less what is
known by the image's size: that token and what the processor writes around it.
"""

import re
from collections.abc import Mapping
from enum import Enum

from vlmplan.errors import InputError

FENCE = "<fake_token_around_image>"


class ImageTexts(Enum):
    """How a processor writes images."""

    AS_THEY_STAND = "in place of the template's token"
    APART = "with an empty line before and behind each"
    FENCED = "between two tokens that neighbours share"
    BEFORE = "before the text"
    BEGUN = "in place of the template's token, behind a token that begins every text"


IMAGE_TEXTS: Mapping[str, ImageTexts] = {
    **dict.fromkeys(("gemma3", "gemma3n"), ImageTexts.APART),
    "idefics2": ImageTexts.FENCED,
    **dict.fromkeys(("blip-2", "instructblip"), ImageTexts.BEFORE),
    "molmo2": ImageTexts.BEGUN,
}
"""By model_type."""
NUM_AROUND: Mapping[ImageTexts, int] = {ImageTexts.APART: 2, ImageTexts.FENCED: 2}
"""Tokens that are written around an image by itself: ``full_image_sequence`` of Gemma's, whose empty lines are tokens
together with line breaks of the text around, and the two of Idefics2 (``gemma3_shape``, ``idefics2_shape``)."""


def refuse_own_tokens(text: str, kind: ImageTexts, special_tokens: Mapping[str, str]) -> None:
    """Raise InputError for a text with a token that the processor takes for its own: Idefics2's takes one away where
    two meet."""
    fence = _fence(special_tokens)
    if kind is ImageTexts.FENCED and fence in text:
        raise InputError(f"the text has {fence}, which the processor writes around images; a text must not hold that "
                         f"token")  # fmt: skip


def beginning(text: str, kind: ImageTexts, special_tokens: Mapping[str, str]) -> str:
    """What the processor writes before ``text``: ``Molmo2Processor.__call__`` begins every text that does not.

    >>> beginning("Hello", ImageTexts.BEGUN, {"eos_token": "<end>"}), beginning("Hello", ImageTexts.APART, {})
    ('<end>', '')
    """
    if kind is not ImageTexts.BEGUN:
        return ""
    token = special_tokens.get("bos_token") or special_tokens.get("eos_token", "")
    return "" if text.startswith(token) else token


def with_images(text: str, kind: ImageTexts, token: str, special_tokens: Mapping[str, str]) -> str:
    """``text`` with what is written around images, each of which stays one ``token``."""
    if kind is ImageTexts.APART:
        return text.replace(token, f"\n\n{token}\n\n")
    if kind is not ImageTexts.FENCED:
        return text
    fence = _fence(special_tokens)
    written = text.replace(token, f"{fence}{token}{fence}").replace(fence * 2, fence)
    return re.sub(rf"{re.escape(fence)}(?=[^\s<])", f"{fence} ", written)


def _fence(special_tokens: Mapping[str, str]) -> str:
    return special_tokens.get("image_boundary_token", FENCE)
