"""What of a chat's text is learnt, by the places that the model's chat template gives to the turns of the assistant.

Two ways to find them, both exact. A template with ``{% generation %}`` tags says it itself. For any other, the
beginning of the chat up to the assistant's turn, rendered with the generation prompt, has to be the beginning of the
whole text: there the turn starts, and it ends where the beginning of the chat with the turn ends. Where a template
writes earlier turns in another way than the last (Qwen3 drops their thoughts, gpt-oss ends them with another token),
another content in place of the turn's leaves what stands around it as it is; and where it asks for a last answer in
another way (with ``<think>``), a turn starts where the text leaves what would ask for it. What the assistant says
includes the token that ends its turn and not the blanks after it.

A turn that is not to be learnt is not looked for. What a template tags of it stands between the turns beside it.

Of a prompt and its completion, what follows the prompt is learnt, as TRL does it (``tokenize_fn`` in
``trl/trainer/sft_trainer.py``): of messages, all that the template writes after the prompt with the generation prompt;
of texts, the completion and the token that ends a text, without a template.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from vlmplan.chats.samples import Sample, TextPart, Turn
from vlmplan.errors import InputError

OPEN, CLOSE = "<think>", "</think>"
"""Around thoughts in a content."""
STAND_IN = "vlmplan\u2063stands\u2063in"
"""A text that no chat holds and no template takes apart."""
GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
MAX_TURNS = 1000
"""Of a chat whose template has no generation tags: for each answer all turns before it are rendered again, so that time
grows with the square."""

Span = tuple[int, int]


class TemplateError(InputError):
    """The template cannot be used at all, whatever the sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """``spans`` are the characters of ``text`` that are learnt, in order. ``is_plain``: no template wrote it."""

    text: str
    spans: tuple[Span, ...]
    is_plain: bool = False


class Writer(Protocol):
    """A chat template at work on one sample, whose tools it knows. ``owner`` names what has it, ``end_token`` is what
    ends a text, ``has_tags`` says that it tags what is generated."""

    @property
    def owner(self) -> str: ...

    @property
    def end_token(self) -> str: ...

    @property
    def has_tags(self) -> bool: ...

    def text(self, turns: Sequence[Turn], *, is_prompt: bool = False) -> str:
        """The text of ``turns``, with the beginning of an answer behind them if it ``is_prompt``."""
        ...

    def tagged(self, turns: Sequence[Turn]) -> tuple[str, Sequence[Span]]:
        """The text, and what of it stands between tags, in order."""
        ...


def tags_generation(template: str) -> bool:
    """Whether a template says what is generated."""
    return GENERATION_TAG.search(template) is not None


def plain_text(sample: Sample, special_tokens: Mapping[str, str]) -> Rendered:
    """A prompt and its completion one behind the other."""
    prompt, completion = (turn.text for turn in sample.turns)
    end = special_tokens.get("eos_token") or ""
    text = prompt + (completion if completion.endswith(end) else completion + end)
    return Rendered(text=text, spans=((len(prompt), len(text)),), is_plain=True)


def learnt_text(sample: Sample, writer: Writer) -> Rendered:
    """The text of a sample and what of it is learnt. Raises TemplateError where that cannot be found, and what
    ``writer`` raises."""
    if sample.num_prompt_turns is not None:
        return _completion(sample, writer, sample.num_prompt_turns)
    if writer.has_tags:
        return _tagged(sample, writer)
    text = writer.text(sample.turns)
    return Rendered(text=text, spans=_found_spans(sample, writer, text))


def _tagged(sample: Sample, writer: Writer) -> Rendered:
    text, spans = writer.tagged(sample.turns)
    answers = [index for index, turn in enumerate(sample.turns) if turn.role == "assistant"]
    if len(spans) < len(answers):
        raise TemplateError(
            f"{sample.source}: the chat template of the model's {writer.owner} tags {len(spans)} of the "
            f"{len(answers)} turns of the assistant as generated; every one is needed"
        )
    apart = [_between(sample, writer, text, index) for index in answers if not sample.turns[index].is_learnt]
    kept = [span for span in spans if not any(first <= span[0] < last for first, last in apart)]
    return Rendered(text=text, spans=tuple((start, end) for start, end in kept))


def _between(sample: Sample, writer: Writer, text: str, index: int) -> Span:
    """From the content of the turn before turn ``index`` to that of the turn behind it."""
    beside = [place for place in (index - 1, index + 1) if place < len(sample.turns)]
    before = [around(sample, writer, place)[0] for place in beside]
    if any(sample.turns[place].role == "assistant" for place in beside) or not all(
        one and text.startswith(one) for one in before
    ):
        raise InputError(
            f"{sample.source}: turn {index + 1}, which is not to be learnt, cannot be told from the turns beside it in "
            f"what the chat template of the model's {writer.owner} makes of the chat"
        )
    return len(before[0]), len(before[1]) if len(before) > 1 else len(text)


def _completion(sample: Sample, writer: Writer, num_prompt_turns: int) -> Rendered:
    text = writer.text(sample.turns)
    prompt = writer.text(sample.turns[:num_prompt_turns], is_prompt=True)
    if not text.startswith(prompt) or len(text) == len(prompt):
        raise TemplateError(
            f"{sample.source}: the completion cannot be found in what the chat template of the model's "
            f"{writer.owner} makes of prompt and completion, because it writes the prompt in another way than the "
            "whole; messages in place of prompt and completion may do"
        )
    return Rendered(text=text, spans=((len(prompt), len(text)),))


def _found_spans(sample: Sample, writer: Writer, text: str) -> tuple[Span, ...]:
    if len(sample.turns) > MAX_TURNS:
        raise InputError(
            f"{sample.source}: the chat has {len(sample.turns):,} turns; at most {MAX_TURNS:,} can be told apart "
            f"where the model's chat template has no generation tags"
        )
    spans: list[Span] = []
    for index in (index for index, turn in enumerate(sample.turns) if turn.role == "assistant" and turn.is_learnt):
        start, end = _start(sample, writer, text, index), _end(sample, writer, text, index)
        if start is None or end is None or _last_word(sample.turns[index]) not in text[start:end]:
            raise TemplateError(
                f"{sample.source}: turn {index + 1}, the assistant's, cannot be found in what the chat template of "
                f"the model's {writer.owner} makes of the chat, because it writes the beginning of a chat in another "
                "way than the whole; a template with {% generation %} tags is needed"
            )
        spans.append((start, end))
    return tuple(spans)


def _start(sample: Sample, writer: Writer, text: str, index: int) -> int | None:
    """The start of turn ``index`` in ``text``, behind what the template writes before any answer."""
    prompt = writer.text(sample.turns[:index], is_prompt=True)
    if text.startswith(prompt):
        return len(prompt)
    asking, before = _generation_prompt(sample, writer, index), around(sample, writer, index)[0]
    begun = _common_beginning(prompt, before)
    if text.startswith(begun) and len(begun) > len(prompt) - len(asking):
        return len(begun)
    is_found = before and text.startswith(before) and any(before.endswith(one) for one in _beginnings(asking))
    return len(before) if is_found else None


def _end(sample: Sample, writer: Writer, text: str, index: int) -> int | None:
    """The end of turn ``index`` in ``text``, blanks left out."""
    through = writer.text(sample.turns[: index + 1])
    if text.startswith(through):
        return len(through.rstrip())
    asking, generation_prompt = _asking_again(sample, writer, index), _generation_prompt(sample, writer, index)
    through = asking.removesuffix(generation_prompt)
    if generation_prompt and through != asking and text.startswith(through):
        return len(through.rstrip())
    after, tail = around(sample, writer, index)[1], around(sample, writer, index, is_last=True)[1].rstrip()
    if not after or not text.endswith(after) or not after.startswith(tail):
        return None
    return len(text) - len(after) + len(tail)


def _generation_prompt(sample: Sample, writer: Writer, index: int) -> str:
    """What the template writes to ask for turn ``index``; nothing where that cannot be told."""
    prompt, before = writer.text(sample.turns[:index], is_prompt=True), writer.text(sample.turns[:index])
    asked = next((one for one in (before, before.removesuffix(writer.end_token)) if prompt.startswith(one)), prompt)
    return prompt[len(asked) :]


def _asking_again(sample: Sample, writer: Writer, index: int) -> str:
    """The chat with turn ``index`` and the generation prompt behind it; nothing where the template refuses that."""
    try:
        return writer.text(sample.turns[: index + 1], is_prompt=True)
    except InputError:
        return ""


def around(sample: Sample, writer: Writer, index: int, *, is_last: bool = False) -> tuple[str, str]:
    """What the template writes before and behind the content of turn ``index``, in the whole chat or, where it
    ``is_last``, in the chat up to it."""
    turns = [*sample.turns]
    turns[index] = replace(turns[index], content=(TextPart(text=STAND_IN),), more=None)
    before, found, after = writer.text(turns[: index + 1] if is_last else turns).partition(STAND_IN)
    return (before, after) if found else ("", "")


def _common_beginning(first: str, second: str) -> str:
    """
    >>> _common_beginning("assistant: <think>", "assistant: 4")
    'assistant: '
    """
    num_alike = next((place for place, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    return min(first, second, key=len) if num_alike is None else first[:num_alike]


def _beginnings(text: str) -> Iterator[str]:
    """All that ``text`` begins with, the longest first."""
    return (text[:end] for end in range(len(text), 0, -1))


def _last_word(turn: Turn) -> str:
    """Of what it says, or the name of the last tool that it calls: templates may take thoughts away from what stands
    before."""
    words = turn.text.rpartition(CLOSE)[2].split() or turn.text.split()
    if words or turn.more is None:
        return words[-1]
    return str(turn.more.values["tool_calls"][-1]["function"]["name"])
