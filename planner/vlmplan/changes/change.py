"""One change of a setup, as options of the command line."""

from dataclasses import dataclass, field

from vlmplan.request import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change; ``options`` replace those of the command line, None takes one away.

    ``keeps_results``: the same model comes out, but for rounding.
    """

    name: str
    options: Options = field(hash=False)
    keeps_results: bool = True
    is_larger: bool = False
    """More than a setting: another engine, or memory of the host."""


Levels = tuple[Change, ...]
