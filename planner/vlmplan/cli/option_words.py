"""Options by their keywords, and as the words of a command line that mean given values."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

if TYPE_CHECKING:
    from vlmplan.request import OptionValue, Request

ClickValues = dict[str, Any]
"""What click parsed, by the names of options; those that were given come first, in their order."""


def argument_name(option: click.Option) -> str:
    """The keyword of an option, that of its first flag: ``--seq-len`` is ``seq_len``, ``--for`` is ``for_``."""
    name = option.opts[0].removeprefix("--").replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def options_of(command: click.Command) -> dict[str, click.Option]:
    """A command's options by their keywords."""
    return {argument_name(option): option for option in command.params if isinstance(option, click.Option)}


def words_of(command: click.Command, values: Mapping[str, Any]) -> list[str]:
    """The words that make ``command`` parse ``values``, in their order; what is None is left out."""
    known = {option.name: option for option in command.params if isinstance(option, click.Option)}
    words: list[str] = []
    for name, value in values.items():
        if value is None:
            continue
        option = known[name]
        on, off = option.opts[0], option.secondary_opts[:1]
        if isinstance(value, bool):
            words += [on] if value else off
        else:
            items = cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)
            words += [word for item in items for word in (on, _word(item))]
    return words


def given_flags(command: click.Command, values: Mapping[str, Any]) -> list[str]:
    """The options of ``command`` that give these values, without them, by their names; what is None is not given."""
    return sorted(words[0] for name, value in values.items() if (words := words_of(command, {name: value})))


def _word(value: Any) -> str:
    """A value as people write it: a whole number without its zero behind the point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def command_text(
    command: click.Command, catalog_files: tuple[Path, ...], *, order: Sequence[str] = (), lengths: str | None = None
) -> "Callable[[Request], str]":
    """What makes a command line of a request: the command's name, its options, those of ``order`` first, the
    ``--sample-lengths`` of an estimate, and the catalogs that were read."""

    def text(request: "Request") -> str:
        values = given_options(command, request, order)
        values |= {"lengths": lengths} if lengths is not None else {}
        values |= {"catalog_files": catalog_files} if catalog_files else {}
        return shlex.join(["vlmplan", str(command.name), *words_of(command, values)])

    return text


def given_options(command: click.Command, request: "Request", order: Sequence[str] = ()) -> "dict[str, OptionValue]":
    """The options that ``command`` has to be given for the request. One that it does not have follows from others, as
    the trainer of a ``--task`` does."""
    defaults = {option.name: option.default for option in command.params}
    known = {name: value for name, value in request.options().items() if value is not None}
    names = dict.fromkeys([*(name for name in order if name in known), *known])
    return {name: known[name] for name in names if name in defaults and known[name] != defaults[name]}
