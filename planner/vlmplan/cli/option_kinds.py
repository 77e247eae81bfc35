"""Kinds of options, and how a command gets them. Values are checked where they are used; here they are only parsed."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import click

from vlmplan.cli.strict_command import StrictCommand
from vlmplan.errors import InputError
from vlmplan.units import MAX_AMOUNT, Choice

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]
ANSWER = "Answer"
"""The heading of options that have none: what an answer is made with, and how it is shown."""
EVERYDAY = {
    "Model and samples": "--plan --model --config --for --data --seq-len --images-per-sample --image-size "
    "--num-samples --epochs --global-batch",
    "Checkpoints": "",
    "Machines": "--gpu --num-nodes --host-ram --inter-node-gbit",
    "What is trained": "--method --lora-rank --lora-targets --train-embeddings --train-vision --train-projector "
    "--train-language",
    "Precision and optimizer": "--precision --optimizer",
    "Engine": "--zero-stage --ds-config --fsdp --offload-optimizer --offload-params --hpz",
    "Batches, activations and loss": "--micro-batch --grad-accum --activation-checkpointing "
    "--vision-activation-checkpointing --attention --loss",
    "Evaluation": "",
    "Preferences and rewards": "--task",
}
"""What ``--help`` shows below these headings; below others it shows all options, and ``--help-all`` does everywhere."""
_SHOWS_ALL = "vlmplan.shows_all_options"
_HEADINGS: WeakKeyDictionary[click.Parameter, str] = WeakKeyDictionary()


class FilePath(click.Path):
    """A path that is not empty, as ``--out "$FOLDER"`` is where the variable is not set: that would mean ``.``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("a path cannot be empty", param, ctx)
        try:
            return super().convert(value, param, ctx)
        except ValueError:  # which os.stat makes of NUL and of half a surrogate pair
            self.fail(f"{value!r} has a character that no path has", param, ctx)


WHOLE_IS = "a whole number, written in digits alone, such as 8192"
NUMBER_IS = "a number, written without its unit, such as 24 or 0.5"
PORT_IS = "a port, a whole number from 0 to 65535"


def _plainly(
    convert: Callable[..., Any],
    allowed: str,
    value: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> Any:
    """What click makes of a number; of what is none, as 8k, 24GB and $2, the refusal says how one is written."""
    try:
        return convert(value, param, ctx)
    except click.BadParameter as error:
        if "is not a valid" not in error.message:
            raise
        raise click.BadParameter(f"{value!r} is not {allowed}", ctx=ctx, param=param) from None


class Whole(click.types.IntParamType):
    """A whole number."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _plainly(super().convert, WHOLE_IS, value, param, ctx)


class Real(click.types.FloatParamType):
    """A number."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _plainly(super().convert, NUMBER_IS, value, param, ctx)


class Port(click.IntRange):
    """A port of this machine; 0 is one that is free."""

    name = "port"

    def __init__(self) -> None:
        super().__init__(0, 65535)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise click.BadParameter(f"{value!r} is not {PORT_IS}", ctx=ctx, param=param) from None


class Number(click.FloatRange):
    """A number within limits."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _plainly(super().convert, NUMBER_IS, value, param, ctx)


class Amount(Real):
    """A number of 0 or more that is neither infinite nor none at all, as ``nan`` is. The help says nothing of it: that
    an amount has no sign and an end is said to whom it concerns."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not 0 <= number <= MAX_AMOUNT:
            self.fail(f"{value!r} is not a number from 0 to {MAX_AMOUNT:,.15g}", param, ctx)
        return number


FILE = FilePath(path_type=Path)
AMOUNT = Amount()
WHOLE = Whole()
REAL = Real()


def check_order(terms: Mapping[str, Any], least: str, most: str) -> None:
    """Raise InputError where the option ``least`` is more than the option ``most``, so that nothing is between them."""
    if None not in (terms[least], terms[most]) and terms[least] > terms[most]:
        low, high = (f"--{name.replace('_', '-')} {terms[name]:,.15g}" for name in (least, most))
        raise InputError(f"{low} is more than {high}, so nothing is between them")


def switch(name: str, on: str, off: str, help_text: str) -> Decorator:
    """An option of two flags, on and off; None where neither is given."""
    return click.option(f"--{on}/--{off}", name, default=None, help=help_text)


class _FamiliarChoice(click.Choice[str]):
    """Says of a value that other programs have which option means it here."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            from vlmplan.cli.familiar_options import familiar_word

            words = None if ctx is None else familiar_word(str(value), ctx)
            if words is None:
                raise
            self.fail(f"{error.message.rstrip('.')}; {words} says that here", param, ctx)


def one_of(choices: Sequence[str]) -> click.Choice[str]:
    """One of these words, in capitals or not, as the field writes them: LoRA, BF16."""
    return _FamiliarChoice(choices, case_sensitive=False)


def choice(
    flag: str, choices: Sequence[str] | type[Choice], help_text: str, *, metavar: str | None = None
) -> Decorator:
    """An option whose value is one of ``choices``, or of an enumeration's values; None where it is not given.
    ``metavar`` stands for them in the help where they are too many for a line."""
    texts = [member.value for member in choices] if isinstance(choices, type) else choices
    return click.option(flag, type=one_of(texts), metavar=metavar, help=help_text)


def count(flag: str, help_text: str) -> Decorator:
    """An option whose value is a whole number; None where it is not given."""
    return click.option(flag, type=WHOLE, metavar="N", help=help_text)


def under(heading: str, *decorators: Decorator) -> tuple[Decorator, ...]:
    """Options that stand below ``heading`` in the help of a ``SectionedCommand``."""
    return tuple(partial(_added_under, heading, decorator) for decorator in decorators)


def _added_under(heading: str, decorator: Decorator, command: Any) -> Any:
    command = decorator(command)
    _HEADINGS[command.__click_params__[-1]] = heading
    return command


def _help_all(num_more: int) -> click.Option:
    """The option that shows as many more."""
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all_options,
        help=f"Show all options, {num_more} more, and exit.",
    )


def _show_all_options(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class SectionedCommand(StrictCommand):
    """A command of many options: its help has them below headings, those of the answer at the end, and leaves out what
    few need unless ``--help-all`` asks for it."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        hidden = sum(not _is_everyday(param) for param in self.params)
        return [*super().get_params(ctx), _help_all(hidden)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None and (ctx.meta.get(_SHOWS_ALL) or _is_everyday(parameter)):
                sections.setdefault(_HEADINGS.get(parameter, ANSWER), []).append(record)
        last = sections.pop(ANSWER)  # --help is there
        for heading, records in (sections | {ANSWER: last}).items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _is_everyday(parameter: click.Parameter) -> bool:
    shown = EVERYDAY.get(_HEADINGS.get(parameter, ANSWER))
    return shown is None or parameter.opts[0] in shown.split()


def options(*groups: Sequence[Decorator] | Decorator) -> Callable[[Command], Command]:
    """A decorator that adds options in the order given."""
    flat: list[Decorator] = []
    for group in groups:
        flat += [group] if callable(group) else group

    def decorate(command: Command) -> Command:
        for option in reversed(flat):
            command = option(command)
        return command

    return decorate
