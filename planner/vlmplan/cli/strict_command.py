"""Commands that refuse a second value of an option that takes one, where click would take the last and say nothing."""

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click


class StrictCommand(click.Command):
    """A command whose options are given once, but for those that say that they are repeatable."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``args`` as click does; UsageError where an option that takes one value is given two that differ."""
        given = list(args)
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            _refuse_second_values(self.get_params(ctx), ctx, given)
        return rest


def _refuse_second_values(params: Sequence[click.Parameter], ctx: click.Context, words: Sequence[str]) -> None:
    single = [param for param in params if isinstance(param, click.Option) and not param.multiple]
    option_of = {flag: option for option in single for flag in (*option.opts, *option.secondary_opts)}
    times = Counter(option_of.get(word.partition("=")[0]) for word in words)
    if all(option is None or count == 1 for option, count in times.items()):
        return
    values = _values_of_each(params, ctx, words)
    for option in single:
        found = [_written(option, value) for value in values.get(str(option.name), ())]
        if len(set(found)) > 1:
            raise click.UsageError(
                f"{option.opts[0]} is given {len(found)} times ({', '.join(found)}); once is allowed here", ctx
            )


def _values_of_each(params: Sequence[click.Parameter], ctx: click.Context, words: Sequence[str]) -> dict[str, Any]:
    """All values of every option in ``words``, by click's name, as click's own parser finds them."""
    twins = [copy.copy(param) for param in params]
    for twin in twins:
        if isinstance(twin, click.Option):
            twin.multiple = True
    return click.Command(None, params=twins, add_help_option=False).make_parser(ctx).parse_args(list(words))[0]


def _written(option: click.Option, value: object) -> str:
    """A value as the command line has it: of two flags, the one that was given."""
    if option.secondary_opts:
        return option.opts[0] if value else option.secondary_opts[0]
    return str(value)
