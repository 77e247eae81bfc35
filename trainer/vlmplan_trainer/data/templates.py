"""A sample as the text of the model's chat template, and the places in it that the assistant says.

Two ways to find them, both exact. A template with ``{% generation %}`` tags says it itself. For any other, the
beginning of the chat up to the assistant's turn, rendered with the generation prompt, has to be the beginning of the
whole text: there the turn starts, and it ends where the beginning of the chat with the turn ends. What the assistant
says includes the token that ends its turn and not the blanks after it.

Of a prompt and its completion, what follows the prompt is learnt, as TRL does it (``tokenize_fn`` in
``trl/trainer/sft_trainer.py``): of messages, all that the template writes after the prompt with the generation prompt;
of texts, the completion and the token that ends a text, without a template.
"""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmplan.chats.frame_texts import SMOLVLM_TEMPLATE
from vlmplan.chats.samplers import Sampler
from vlmplan.chats.samples import ImagePart, Sample, SoundPart, TextPart, Turn, VideoPart
from vlmplan.chats.tools import Said, refuse_unwritten
from vlmplan.errors import InputError

TYPES: Mapping[type, str] = {ImagePart: "image", VideoPart: "video", SoundPart: "audio"}
"""What templates call what is shown."""
GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
STAND_IN = "vlmplan\u2063stands\u2063in"
"""A text that no chat holds and no template takes apart."""

MAX_CHARACTERS = 4 * 2**20
"""Of a sample's text: a context of a million tokens. The tokenizer takes some hundred bytes for each."""
MAX_TURNS = 1000
"""Of a chat whose template has no generation tags: for each answer all turns before it are rendered again, so that time
grows with the square."""

_LOCK = threading.Lock()
"""transformers notes the places of generation tags on the compiled template, which all threads share."""

Span = tuple[int, int]


class TemplateError(InputError):
    """The template cannot be used at all, whatever the sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """``spans`` are the characters of ``text`` that are learnt, in order. ``is_plain``: no template wrote it."""

    text: str
    spans: tuple[Span, ...]
    is_plain: bool = False


class ChatTemplate:
    """The chat template of a processor or a tokenizer.

    A processor is given the parts of a turn one by one, a tokenizer their text. A model without a template can learn
    prompts and completions that are plain texts.
    """

    def __init__(self, processor: Any, *, needs_none: bool = False) -> None:
        """``needs_none``: images need no place in a text, so that exchanges need no template where there is none."""
        self._needs_none = needs_none
        tokenizer = getattr(processor, "tokenizer", processor)
        self._takes_parts = tokenizer is not processor
        self.owner = type(processor).__name__
        self._template = _template_of(processor) or _template_of(tokenizer)
        is_smolvlm = type(getattr(processor, "video_processor", None)).__name__ == Sampler.SMOLVLM.value
        self._of_videos = SMOLVLM_TEMPLATE if is_smolvlm else self._template
        self._values: Mapping[str, Any] = tokenizer.special_tokens_map

    @property
    def is_there(self) -> bool:
        return self._template is not None

    def rendered(self, sample: Sample) -> Rendered:
        """The text of a sample. Raises InputError naming the sample, or TemplateError where no turn can be found."""
        self._refuse_what_cannot_be_written(sample)
        if self.is_plain(sample):
            return self._plain(sample)
        self._refuse_unwritten_tools(sample)
        if sample.num_prompt_turns is not None:
            return self._completion(sample, sample.num_prompt_turns)
        if GENERATION_TAG.search(self._template_for(sample) or "") is None:
            text = self._text(sample, sample.turns)
            return Rendered(text=text, spans=self._found_spans(sample, text))
        text, spans = self._render(sample, sample.turns, notes_places=True)
        num_answers = sum(turn.role == "assistant" for turn in sample.turns)
        if len(spans) < num_answers:
            raise TemplateError(
                f"{sample.source}: the chat template of the model's {self.owner} tags {len(spans)} of the "
                f"{num_answers} turns of the assistant as generated; every one is needed"
            )
        return Rendered(text=text, spans=tuple((start, end) for start, end in spans))

    def prompt(self, sample: Sample) -> str:
        """The text of a sample that has no answer yet, up to where one begins. Raises what ``rendered`` does."""
        self._refuse_what_cannot_be_written(sample)
        return sample.turns[0].text if self.is_plain(sample) else self._text(sample, sample.turns, is_prompt=True)

    def is_plain(self, sample: Sample) -> bool:
        """Whether prompt and completion are read one after the other, as they stand."""
        return sample.is_plain or (self._needs_none and self._template is None and sample.is_exchange)

    def _template_for(self, sample: Sample) -> str | None:
        """The template of chats with videos where one shows some."""
        return self._of_videos if sample.videos else self._template

    def _refuse_what_cannot_be_written(self, sample: Sample) -> None:
        num_characters = sum(turn.num_characters for turn in sample.turns) + sum(map(len, sample.tools))
        if num_characters > MAX_CHARACTERS:
            raise InputError(
                f"{sample.source}: the sample has {num_characters:,} characters of text; at most {MAX_CHARACTERS:,} "
                f"are encoded"
            )
        if self._template_for(sample) is None and not self.is_plain(sample):
            raise TemplateError(
                f"the model's {self.owner} has no chat template; a model tuned for chat is needed, or samples with "
                "prompt and completion as texts"
            )

    def _refuse_unwritten_tools(self, sample: Sample) -> None:
        said = self._said(sample, sample.turns)
        if not said.has_tools:
            return
        try:
            refuse_unwritten(said, lambda changed: self._written(sample, changed)[0])
        except InputError as error:
            raise InputError(f"{sample.source}: {str(error).removeprefix(f'{sample.source}: ')}") from None

    def _plain(self, sample: Sample) -> Rendered:
        prompt, completion = (turn.text for turn in sample.turns)
        end = self._values.get("eos_token") or ""
        text = prompt + (completion if completion.endswith(end) else completion + end)
        return Rendered(text=text, spans=((len(prompt), len(text)),), is_plain=True)

    def _completion(self, sample: Sample, num_prompt_turns: int) -> Rendered:
        text = self._text(sample, sample.turns)
        prompt = self._text(sample, sample.turns[:num_prompt_turns], is_prompt=True)
        if not text.startswith(prompt) or len(text) == len(prompt):
            raise TemplateError(
                f"{sample.source}: the completion cannot be found in what the chat template of the model's "
                f"{self.owner} makes of prompt and completion, because it writes the prompt in another way than the "
                "whole; messages in place of prompt and completion may do"
            )
        return Rendered(text=text, spans=((len(prompt), len(text)),))

    def _found_spans(self, sample: Sample, text: str) -> tuple[Span, ...]:
        if len(sample.turns) > MAX_TURNS:
            raise InputError(
                f"{sample.source}: the chat has {len(sample.turns):,} turns; at most {MAX_TURNS:,} can be told apart "
                f"where the model's chat template has no generation tags"
            )
        answers = [index for index, turn in enumerate(sample.turns) if turn.role == "assistant"]
        spans = []
        for index in answers:
            prompt = self._text(sample, sample.turns[:index], is_prompt=True)
            end = self._end(sample, text, index)
            if (
                not text.startswith(prompt)
                or end is None
                or _last_word(sample.turns[index]) not in text[len(prompt) : end]
            ):
                raise TemplateError(
                    f"{sample.source}: turn {index + 1}, the assistant's, cannot be found in what the chat template of "
                    f"the model's {self.owner} makes of the chat, because it writes the beginning of a chat in another "
                    "way than the whole; a template with {% generation %} tags is needed"
                )
            spans.append((len(prompt), end))
        return tuple(spans)

    def _end(self, sample: Sample, text: str, index: int) -> int | None:
        """The end of turn ``index`` in ``text``, blanks left out."""
        through = self._text(sample, sample.turns[: index + 1])
        if text.startswith(through):
            return len(through.rstrip())
        return self._end_by_stand_in(sample, text, index)

    def _end_by_stand_in(self, sample: Sample, text: str, index: int) -> int | None:
        """The end for templates that write the last turn in another way (Qwen3: with its thoughts).

        Another content in its place leaves what follows it as it is; of that, the turn has what follows the content
        where the turn is the last.
        """
        turns = list(sample.turns)
        turns[index] = _stand_in(turns[index])
        _, _, after = self._text(sample, tuple(turns)).partition(STAND_IN)
        _, _, tail = self._text(sample, tuple(turns[: index + 1])).partition(STAND_IN)
        tail = tail.rstrip()
        if not after or not text.endswith(after) or not after.startswith(tail):
            return None
        return len(text) - len(after) + len(tail)

    def _text(self, sample: Sample, turns: tuple[Turn, ...], *, is_prompt: bool = False) -> str:
        return self._render(sample, turns, is_prompt=is_prompt)[0]

    def _render(
        self, sample: Sample, turns: tuple[Turn, ...], *, is_prompt: bool = False, notes_places: bool = False
    ) -> tuple[str, list[Span]]:
        return self._written(sample, self._said(sample, turns), is_prompt=is_prompt, notes_places=notes_places)

    def _said(self, sample: Sample, turns: tuple[Turn, ...]) -> Said:
        return Said([turn.message(self._content(turn)) for turn in turns], sample.tools)

    def _written(
        self, sample: Sample, said: Said, *, is_prompt: bool = False, notes_places: bool = False
    ) -> tuple[str, list[Span]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            with _LOCK:
                rendered: Any = render_jinja_template(
                    [said.messages],
                    tools=said.tools or None,
                    chat_template=self._template_for(sample),
                    return_assistant_tokens_mask=notes_places,
                    add_generation_prompt=is_prompt,
                    **self._values,
                )
        except Exception as error:  # a template raises what it likes, and jinja the rest
            reason = " ".join(str(error).split())
            raise InputError(f"{sample.source}: the model's chat template refuses the chat: {reason}") from None
        texts, places = rendered
        return texts[0], places[0] if places else []

    def _content(self, turn: Turn) -> str | list[dict[str, str]]:
        if not self._takes_parts:
            return turn.text
        return [
            {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": TYPES[type(part)]}
            for part in turn.content
        ]


def _template_of(owner: Any) -> str | None:
    template = getattr(owner, "chat_template", None)
    return template.get("default") if isinstance(template, dict) else template


def _last_word(turn: Turn) -> str:
    """Of what it says, or the name of the last tool that it calls: templates may take thoughts away from what stands
    before."""
    words = turn.text.split()
    if words or turn.more is None:
        return words[-1]
    return str(turn.more.values["tool_calls"][-1]["function"]["name"])


def _stand_in(turn: Turn) -> Turn:
    return Turn(role=turn.role, content=(TextPart(text=STAND_IN),))
