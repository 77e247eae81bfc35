"""Options by their keywords, and as the words of a command line that mean given values."""

from collections.abc import Mapping
from keyword import iskeyword
from typing import Any, cast

import click

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
            words += [word for item in items for word in (on, str(item))]
    return words
