"""A chat as the text that a model's chat template makes of it, in jinja's sandbox.

The environment is that of transformers 5.23 (``_cached_compile_jinja_template`` in ``utils/chat_template_utils.py``):
blocks trimmed, ``{% generation %}`` and loop controls known, ``tojson`` without escapes for HTML. A template comes with
a model: it is text that the sandbox runs, and sees nothing but the chat.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from vlmplan.chats.learnt import Span, tags_generation
from vlmplan.errors import InputError, MissingPackageError

MISSING = "counting tokens with a chat template needs jinja2 3.1.6 or later: pip install 'vlmplan[data]'"
LEAST_JINJA = (3, 1, 6)
"""The sandbox of earlier ones can be left."""


BEGIN, END = "\u2063\ue000vlmplan\u2063", "\u2063\ue001vlmplan\u2063"
"""What stands in a text where a tag is, which no chat holds."""


class ChatRenderer:
    """A template, compiled. ``values`` are what it may name besides: special tokens."""

    def __init__(self, template: str, values: Mapping[str, str], *, source: str) -> None:
        """Raises InputError for a template that is none, MissingPackageError without jinja2."""
        from jinja2.exceptions import TemplateError

        try:
            self._template = environment().from_string(template)
        except TemplateError as error:
            raise InputError(f"the chat template of {source} is none: {_reason(error)}") from None
        self._values = dict(values)
        self._tagged = environment(notes_tags=True).from_string(template) if tags_generation(template) else None

    @property
    def has_tags(self) -> bool:
        """Whether the template tags what is generated."""
        return self._tagged is not None

    @property
    def end_token(self) -> str:
        """What ends a text; nothing where no token does."""
        return self._values.get("eos_token", "")

    def text(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, is_prompt: bool = False
    ) -> str:
        """With the beginning of an answer behind the messages if it ``is_prompt``. Raises InputError for a chat that
        the template refuses."""
        return self._rendered(self._template, messages, tools, is_prompt=is_prompt)

    def tagged(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[str, list[Span]]:
        """The text, and the characters of it between generation tags. Raises what ``text`` does."""
        spans: list[Span] = []
        text = ""
        for index, piece in enumerate(self._rendered(self._tagged, messages, tools).split(BEGIN)):
            said, _, after = piece.partition(END) if index else ("", "", piece)
            if index:
                spans.append((len(text), len(text) + len(said)))
            text += said + after
        return text, spans

    def _rendered(
        self,
        template: Any,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        is_prompt: bool = False,
    ) -> str:
        try:
            return template.render(
                messages=messages, tools=tools or None, documents=None, add_generation_prompt=is_prompt, **self._values
            )
        except Exception as error:  # a template raises what it likes, and jinja the rest
            raise InputError(f"the model's chat template refuses the chat: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@cache
def environment(*, notes_tags: bool = False) -> Any:
    """jinja's sandbox as transformers sets it up; what a template tags as generated stands between BEGIN and END if it
    ``notes_tags``. Raises MissingPackageError without jinja2."""
    try:
        import jinja2
        from jinja2 import ext, nodes
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingPackageError(MISSING) from None
    if tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdigit()) < LEAST_JINJA:
        raise MissingPackageError(MISSING)

    class Generation(ext.Extension):
        """``{% generation %}`` marks what is learnt; the text is the same."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            if notes_tags:
                marks = [nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (BEGIN, END)]
                body = [marks[0], *body, marks[1]]
            return nodes.Scope(body, lineno=line)

    made: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _as_json
    made.globals.update(raise_exception=_raise, strftime_now=_now, dict=_Dict(), namespace=_namespace(jinja2))
    return made


class _Dict:
    """``dict`` without what leads from the class to others."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _namespace(jinja2: Any) -> type:
    class Namespace(jinja2.utils.Namespace):
        """A namespace without names that begin with an underscore, which lead out of the sandbox."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            self, *given = args
            values = dict(*given, **kwargs)
            for name in values:
                _refuse_private(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __setitem__(self, name: str, value: Any) -> None:
            _refuse_private(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

    return Namespace


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise InputError(f"a chat template cannot keep {name!r} in a namespace")


def _raise(message: str) -> None:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)


def _as_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
