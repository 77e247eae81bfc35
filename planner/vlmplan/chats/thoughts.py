"""Thoughts of the assistant, which stand beside the content of its turns: whether a chat template writes them.

Templates of models that think leave the thoughts of earlier turns out, as the model gets its own back when it is asked
again (Qwen3: all before the user's last question). So is it here in turns that are context alone; one that is learnt
would teach to answer without a thought.
"""

from dataclasses import replace

from vlmplan.chats.learnt import Writer
from vlmplan.chats.samples import Sample, Turn
from vlmplan.chats.tools import THOUGHT, OfMessage
from vlmplan.errors import InputError


def refuse_unwritten_thoughts(sample: Sample, writer: Writer) -> None:
    """Raise InputError where the template leaves thoughts out of a turn that is learnt, or has no place for them."""
    marks = {
        index: f"thought{index}of{index}" for index, turn in enumerate(sample.turns) if turn.more and turn.more.thoughts
    }
    if not marks:
        return
    turns = [_thinking(turn, marks[index]) if index in marks else turn for index, turn in enumerate(sample.turns)]
    text = writer.text(turns)
    for index, mark in marks.items():
        if mark in text:
            continue
        is_read = mark in writer.text(turns[: index + 1])
        if not is_read:
            raise InputError(
                f"{sample.source}: turn {index + 1} has thoughts ({THOUGHT}), and the model's chat template leaves "
                f"them out; a model whose template writes them is needed, or thoughts in the content (<think>)"
            )
        if sample.turns[index].is_learnt and index >= (sample.num_prompt_turns or 0):
            raise InputError(
                f"{sample.source}: turn {index + 1} has thoughts ({THOUGHT}), which the model's chat template writes "
                f'in the last turns of a chat alone; give it "loss": false, or make a sample of each answer'
            )


def _thinking(turn: Turn, thoughts: str) -> Turn:
    assert turn.more is not None
    return replace(turn, more=OfMessage.of(turn.more.values | {THOUGHT: thoughts}))
