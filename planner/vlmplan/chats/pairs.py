"""A sample as what an encoder is given and what a decoder is to write, for models that have both.

The answer is the last turn, the assistant's, or the completion; the prompt is all that was said before, a turn a line,
without a chat template: models with an encoder and a decoder have none.
"""

from typing import NamedTuple

from vlmplan.chats.samples import Sample
from vlmplan.chats.tools import NEITHER, THOUGHT
from vlmplan.errors import InputError
from vlmplan.units import counted


class Pair(NamedTuple):
    """Texts."""

    prompt: str
    answer: str


def pair_of(sample: Sample) -> Pair:
    """Prompt and answer. Raises InputError for a chat that ends with no answer to something."""
    *before, last = sample.turns
    if sample.tools or any((turn.more and turn.more.calls) or turn.role == "tool" for turn in sample.turns):
        raise InputError(f"{sample.source}: {NEITHER}")
    if any(turn.more and turn.more.thoughts for turn in sample.turns):
        raise InputError(f"{sample.source}: a turn has thoughts ({THOUGHT}), which a chat template alone writes")
    if last.role != "assistant" or not before:
        raise InputError(
            f"{sample.source}: a model with an encoder and a decoder learns the last turn, the assistant's, from what "
            f"comes before it; the sample has no such turns"
        )
    _refuse_unlearnt(sample)
    return Pair(prompt="\n".join(turn.text for turn in before), answer=last.text)


def speech_of(sample: Sample) -> Pair:
    """What is said in the sound of a sample, with an empty prompt, for a model that hears it and reads nothing. Raises
    InputError for a sample that is no sound and what is said in it."""
    *before, last = sample.turns
    if last.role != "assistant" or len(sample.sounds) != 1:
        raise InputError(
            f"{sample.source}: the model learns to write what is said in one sound, the last turn, the assistant's; "
            f"the sample has {counted(len(sample.sounds), 'sound')}"
        )
    _refuse_unlearnt(sample)
    said = next((turn for turn in before if turn.text.strip()), None)
    if said is not None:
        raise InputError(
            f"{sample.source}: a turn of the {said.role} has text, and the model reads none: it hears the sound alone, "
            f"so leave the text out"
        )
    return Pair(prompt="", answer=last.text)


def _refuse_unlearnt(sample: Sample) -> None:
    if not sample.turns[-1].is_learnt:
        raise InputError(f"{sample.source}: the last turn is not to be learnt, and the model learns no other")
