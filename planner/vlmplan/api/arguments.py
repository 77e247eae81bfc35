"""What a caller of a function gives, checked, as the values that the command line would have parsed.

Names, defaults and order are those of the command's options, read off the command itself; types are those of its
``TypedDict`` in ``options``.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, get_type_hints

import click

from vlmplan.api.kinds import checked
from vlmplan.api.options import File, Model
from vlmplan.cli.option_words import argument_name, options_of
from vlmplan.errors import InputError, UnknownNameError, VlmplanError
from vlmplan.files.json_reader import json_text, parse_json_object
from vlmplan.models import given_model
from vlmplan.plain_text import printable_sentence
from vlmplan.request import Request, own_request, parse

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def default_of(option: click.Option) -> Any:
    """What the command is called with where the option is not given."""
    if option.multiple:
        return ()
    if isinstance(option.default, bool | int | float | str):
        return option.default
    return False if option.is_flag and not option.secondary_opts else None


def command_values(command: click.Command, kinds: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """What ``command`` would be called with: ``given`` by keywords, of the types in ``kinds``, and its defaults for the
    rest of them; by click's names, those that are given first.

    Raises UnknownNameError for a keyword that is none, InputError for a value of another type.
    """
    known, hints = options_of(command), get_type_hints(kinds)
    for name in given:
        if name not in hints:
            from vlmplan.cli.familiar_options import familiar_argument

            here = familiar_argument(name, hints)
            raise UnknownNameError("argument", name, hints, "" if here is None else f"{here} says that here")
    values = {name: _converted(checked(name, value, hints[name]), known[name]) for name, value in given.items()}
    values |= {name: default_of(option) for name, option in known.items() if name in hints and name not in values}
    return {str(known[name].name): value for name, value in values.items()}


def _converted(value: Any, option: click.Option) -> Any:
    """``value`` as click gives it for ``option``."""
    if value is None:
        return default_of(option)
    if isinstance(value, Mapping):
        source = argument_name(option)
        return parse_json_object(json_text(cast(Mapping[str, Any], value), source=source), source=source)
    is_path = isinstance(option.type, click.Path)
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        if option.multiple:
            return tuple(map(Path, items)) if is_path else items
        return ("x" if option.name in ("image_size", "video_size") else ",").join(map(str, items))
    path = Path(value) if is_path else value
    return (path,) if option.multiple else path


def request_of(model: Model | None, config: File | None, values: Mapping[str, Any]) -> Request:
    """The request of what a command is called with, for a model by name, by path or by its configuration."""
    name, given = None, None
    if isinstance(model, Mapping):
        given = given_model(model)
    elif model is not None:
        name = checked("model", model, Model)
    elif config is None:
        raise InputError("model is missing; give a name, a folder, a configuration as a mapping, or config=FILE")
    path = None if config is None else Path(checked("config", config, File))
    return parse({"model": name, "config": path, **values}, given)


def own_request_of(model: Model | None, values: Mapping[str, Any]) -> Request:
    """The request of what is given beside a configuration."""
    if isinstance(model, Mapping):
        return own_request(values, given_model(model))
    return own_request({"model": None if model is None else checked("model", model, Model), **values})


@contextmanager
def in_words_of_python(command: click.Command) -> Generator[None]:
    """Errors that the user can mend name keywords, where the command line's sentence names ``command``'s options."""
    try:
        yield
    except VlmplanError as error:
        words = _words(command)
        text = FLAG.sub(lambda found: words.get(found[0], found[0]), str(error))
        error.args = (printable_sentence(text),)
        raise


def _words(command: click.Command) -> dict[str, str]:
    """The keyword of each flag, and of one that is a switch its value as well."""
    found: dict[str, str] = {}
    for name, option in options_of(command).items():
        found |= dict.fromkeys(option.opts, f"{name}=True" if option.is_flag else name)
        found |= dict.fromkeys(option.secondary_opts, f"{name}=False")
    return found


__all__ = [
    "argument_name",
    "command_values",
    "default_of",
    "in_words_of_python",
    "options_of",
    "own_request_of",
    "request_of",
]
