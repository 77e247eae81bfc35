"""What a processor writes of a video's frames beside their tokens: when they are, or their number.

Source: ``replace_video_token`` in transformers 5.23 models/*/processing_*.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from vlmplan.chats.frame_rules import FrameRule
from vlmplan.chats.samplers import GEMMA4_SAMPLERS, LLAVA_SAMPLERS, MINICPMV_SAMPLERS, Sampler
from vlmplan.chats.video_files import VideoHeader

IMAGE_TOKEN, VIDEO_TAG = "<image>", "<video>"
"""What SmolVLM's processor calls the token of a frame, and the text that stands for a video, which is no token."""
SMOLVLM_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% elif line['type'] == 'video' %}{{ '<video>' }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""``DEFAULT_CHAT_TEMPLATE`` of ``processing_smolvlm.py``, which chats with a video are written by, whatever template
the checkpoint has: ``apply_chat_template`` of that processor."""
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
UNITS = ((10**6, "million"), (1000, "thousand"), (100, "hundred"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTexts:
    """What stands between the tokens of a video's frames: ``texts``, each between special tokens or at an end of all,
    and ``num_special`` such tokens."""

    texts: tuple[str, ...] = ()
    num_special: int = 0


def frame_texts(
    rule: FrameRule, indices: Sequence[int], header: VideoHeader, *, num_shown: int | None = None
) -> FrameTexts:
    """What the processor writes of the frames ``indices``; SmolVLM's says how many they are, ``num_shown`` of the
    longest video of the sample. What it, InternVL's, Gemma 4's and MiniCPM-V's write around a frame is an image's own,
    and not among them."""
    if rule.sampler in (Sampler.QWEN2_VL, *LLAVA_SAMPLERS, *MINICPMV_SAMPLERS):
        return FrameTexts()
    if rule.sampler is Sampler.INTERNVL:
        return FrameTexts(
            texts=tuple(f"{'' if place == 0 else chr(10)}Frame{place + 1}: " for place in range(len(indices)))
        )
    seconds = [index / header.fps for index in indices]
    if rule.sampler is Sampler.SMOLVLM:
        return FrameTexts(texts=_of_smolvlm(seconds, header, num_shown or len(indices)))
    if rule.sampler in GEMMA4_SAMPLERS:
        times = [f"{_clock(second)} " for second in seconds]
        return FrameTexts(texts=(times[0], *(f" {time}" for time in times[1:])))
    merged = rule.merged_frames
    seconds += [seconds[-1]] * (-len(seconds) % merged)
    firsts, lasts = seconds[::merged], seconds[merged - 1 :: merged]
    match rule.sampler:
        case Sampler.QWEN3_VL:
            texts = [f"<{(first + last) / 2:.1f} seconds>" for first, last in zip(firsts, lasts, strict=True)]
        case Sampler.GLM46V | Sampler.GLMGA:
            texts = [f"{first:.1f} seconds" for first in firsts]
        case _:
            texts = [f"{int(first)}" for first in firsts]
    return FrameTexts(texts=tuple(texts), num_special=2 * len(texts))


def _of_smolvlm(seconds: Sequence[float], header: VideoHeader, num_shown: int) -> tuple[str, ...]:
    """What comes before each frame, and behind the last."""
    length = timedelta(seconds=int(header.seconds))
    begin = (
        f"You are provided the following series of {number_words(num_shown)} frames from a {length} [H:MM:SS] video.\n"
    )
    times = [f"\nFrame from {_clock(second)}:" for second in seconds]
    return (begin + times[0], *times[1:], "\n\n")


def _clock(seconds: float) -> str:
    return f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"


def number_words(number: int) -> str:
    """A number in English words, as ``num2words`` has it.

    >>> number_words(64), number_words(1101)
    ('sixty-four', 'one thousand, one hundred and one')
    """
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens - 2] + (f"-{ONES[ones]}" if ones else "")
    unit, name = next((unit, name) for unit, name in UNITS if number >= unit)
    head, rest = divmod(number, unit)
    words = f"{number_words(head)} {name}"
    return words + (f"{' and ' if rest < 100 else ', '}{number_words(rest)}" if rest else "")
