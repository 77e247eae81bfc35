"""A chat through the model's template with what of it is learnt, as the trainer finds it (``learnt_by``)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vlmplan.chats.learnt import Rendered, Span, TemplateError
from vlmplan.chats.samples import Sample, Turn
from vlmplan.chats.thoughts import refuse_unwritten_thoughts
from vlmplan.chats.tools import Said, refuse_unwritten
from vlmplan.data_rules import LearntRule
from vlmplan.dataset.learnt_by import learnt_by
from vlmplan.dataset.rendering import ChatRenderer


@dataclass(frozen=True, slots=True)
class _Writer:
    """``renderer`` at work on one sample, as ``learnt_text`` takes it. ``content`` is what it gets of a turn."""

    renderer: ChatRenderer
    sample: Sample
    content: Callable[[Turn], Any]

    @property
    def owner(self) -> str:
        return "tokenizer"

    @property
    def end_token(self) -> str:
        return self.renderer.end_token

    @property
    def has_tags(self) -> bool:
        return self.renderer.has_tags

    def said(self, turns: Sequence[Turn]) -> Said:
        return Said([turn.message(self.content(turn)) for turn in turns], self.sample.tools)

    def text(self, turns: Sequence[Turn], *, is_prompt: bool = False) -> str:
        said = self.said(turns)
        return self.renderer.text(said.messages, said.tools, is_prompt=is_prompt)

    def tagged(self, turns: Sequence[Turn]) -> tuple[str, list[Span]]:
        said = self.said(turns)
        return self.renderer.tagged(said.messages, said.tools)


def rendered_chat(
    renderer: ChatRenderer,
    sample: Sample,
    content: Callable[[Turn], Any],
    *,
    may_lose_thoughts: bool,
    learns: LearntRule,
) -> tuple[str, Rendered | None]:
    """The text of a chat, and what of it is learnt; None where that cannot be found. Raises InputError for what the
    template refuses or leaves out, but for thoughts where ``may_lose_thoughts``."""
    writer = _Writer(renderer, sample, content)
    refuse_unwritten(writer.said(sample.turns), lambda changed: renderer.text(changed.messages, changed.tools))
    if not may_lose_thoughts:
        refuse_unwritten_thoughts(sample, writer)
    try:
        rendered = learnt_by(learns, sample, writer)
    except TemplateError:
        rendered = None
    return (writer.text(sample.turns) if rendered is None else rendered.text), rendered
