"""A sample as the text of the model's chat template, and what of it is learnt, which ``vlmplan.chats.learnt`` finds."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmplan.chats.frame_texts import SMOLVLM_TEMPLATE
from vlmplan.chats.learnt import Rendered, Span, TemplateError, learnt_text, plain_text, tags_generation
from vlmplan.chats.samplers import Sampler
from vlmplan.chats.samples import ImagePart, Sample, SoundPart, TextPart, Turn, VideoPart
from vlmplan.chats.thoughts import refuse_unwritten_thoughts
from vlmplan.chats.tools import Said, refuse_unwritten
from vlmplan.errors import InputError

TYPES: Mapping[type, str] = {ImagePart: "image", VideoPart: "video", SoundPart: "audio"}
"""What templates call what is shown."""
MAX_CHARACTERS = 4 * 2**20
"""Of a sample's text: a context of a million tokens. The tokenizer takes some hundred bytes for each."""
_LOCK = threading.Lock()
"""transformers notes the places of generation tags on the compiled template, which all threads share."""


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

    @property
    def end_token(self) -> str:
        """What ends a text; nothing where no token does."""
        return self._values.get("eos_token") or ""

    def rendered(self, sample: Sample) -> Rendered:
        """The text of a sample. Raises InputError naming the sample, or TemplateError where no turn can be found."""
        self._refuse_what_cannot_be_written(sample)
        if self.is_plain(sample):
            return plain_text(sample, self._values)
        self._refuse_unwritten_tools(sample)
        writer = _Writer(self, sample)
        refuse_unwritten_thoughts(sample, writer)
        return learnt_text(sample, writer)

    def prompt(self, sample: Sample) -> str:
        """The text of a sample that has no answer yet, up to where one begins. Raises what ``rendered`` does."""
        self._refuse_what_cannot_be_written(sample)
        if self.is_plain(sample):
            return sample.turns[0].text
        self._refuse_unwritten_tools(sample)
        refuse_unwritten_thoughts(sample, _Writer(self, sample))
        return self.written(sample, sample.turns, is_prompt=True)[0]

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

    def has_tags(self, sample: Sample) -> bool:
        """Whether the template says what is generated."""
        return tags_generation(self._template_for(sample) or "")

    def written(
        self, sample: Sample, turns: Sequence[Turn], *, is_prompt: bool = False, notes_places: bool = False
    ) -> tuple[str, list[Span]]:
        """The text of ``turns``, and what of it stands between generation tags if it ``notes_places``."""
        return self._written(sample, self._said(sample, turns), is_prompt=is_prompt, notes_places=notes_places)

    def _said(self, sample: Sample, turns: Sequence[Turn]) -> Said:
        return Said([turn.message(self._content(turn)) for turn in turns], sample.tools)

    def _written(
        self, sample: Sample, said: Said, *, is_prompt: bool = False, notes_places: bool = False
    ) -> tuple[str, list[Span]]:
        from jinja2.exceptions import TemplateSyntaxError
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
        except TemplateSyntaxError as error:  # whatever the sample
            raise TemplateError(
                f"the chat template of the model's {self.owner} is no Jinja: line {error.lineno}: {error.message}"
            ) from None
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


@dataclass(frozen=True, slots=True)
class _Writer:
    """``template`` at work on one sample, as ``learnt_text`` takes it."""

    template: ChatTemplate
    sample: Sample

    @property
    def owner(self) -> str:
        return self.template.owner

    @property
    def end_token(self) -> str:
        return self.template.end_token

    @property
    def has_tags(self) -> bool:
        return self.template.has_tags(self.sample)

    def text(self, turns: Sequence[Turn], *, is_prompt: bool = False) -> str:
        return self.template.written(self.sample, turns, is_prompt=is_prompt)[0]

    def tagged(self, turns: Sequence[Turn]) -> tuple[str, list[Span]]:
        return self.template.written(self.sample, turns, notes_places=True)


def _template_of(owner: Any) -> str | None:
    template = getattr(owner, "chat_template", None)
    return template.get("default") if isinstance(template, dict) else template
