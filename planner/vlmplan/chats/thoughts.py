"""Thoughts of the assistant, beside the content of a turn or in it (``<think>``): whether a chat template writes them.

Templates of models that think leave the thoughts of earlier turns out, as the model gets its own back when it is asked
again (Qwen3: all before the user's last question). So is it here in turns that are context alone; one that is learnt
would teach to answer without a thought.
"""

import re
from dataclasses import replace

from vlmplan.chats.learnt import CLOSE, OPEN, Writer
from vlmplan.chats.samples import Sample, TextPart, Turn
from vlmplan.chats.tools import THOUGHT, OfMessage
from vlmplan.errors import InputError

IN_CONTENT = re.compile(rf"{OPEN}(.*?){CLOSE}", re.DOTALL)


def refuse_unwritten_thoughts(sample: Sample, writer: Writer) -> None:
    """Raise InputError where the template leaves thoughts out of a turn that is learnt, or has no place for them."""
    named = {index: name for index, turn in enumerate(sample.turns) if (name := _where(turn)) is not None}
    if not named:
        return
    marks = {index: f"thought{index}of{index}" for index in named}
    turns = [_thinking(turn, marks[index]) if index in marks else turn for index, turn in enumerate(sample.turns)]
    text = writer.text(turns)
    for index, mark in marks.items():
        if mark in text:
            continue
        is_read = mark in writer.text(turns[: index + 1])
        if not is_read:
            raise InputError(
                f"{sample.source}: turn {index + 1} has thoughts ({named[index]}), and the model's chat template "
                f"leaves them out; a model whose template writes them is needed"
                + (f", or thoughts in the content ({OPEN})" if named[index] == THOUGHT else "")
            )
        if sample.turns[index].is_learnt and index >= (sample.num_prompt_turns or 0):
            raise InputError(
                f"{sample.source}: turn {index + 1} has thoughts ({named[index]}), which the model's chat template "
                f'writes in the last turns of a chat alone; give it "loss": false, or make a sample of each answer'
            )


def _where(turn: Turn) -> str | None:
    """The key or the tag of a turn's thoughts; None without any."""
    if turn.more is not None and turn.more.thoughts:
        return THOUGHT
    found = IN_CONTENT.search(turn.text) if turn.role == "assistant" else None
    return OPEN if found is not None and found[1].strip() else None


def _thinking(turn: Turn, thoughts: str) -> Turn:
    if turn.more is not None and turn.more.thoughts:
        return replace(turn, more=OfMessage.of(turn.more.values | {THOUGHT: thoughts}))
    return replace(turn, content=(TextPart(text=IN_CONTENT.sub(f"{OPEN}{thoughts}{CLOSE}", turn.text, count=1)),))
