"""Everything vlmplan raises on purpose. A leaf: imports nothing of vlmplan.

    VlmplanError                exit code 1: something the user can mend
    ├── InputError              a value that is not allowed: names the key, the value and what is allowed
    │   └── UnknownNameError    a name that is not known: names the nearest known ones
    ├── MissingPackageError     an optional package is needed: says what to install
    ├── UnavailableError        a file, network, driver or device that is not there
    └── DoesNotFitError         exit code 3: nothing fits

The message of each is one clear sentence for the user; a traceback never reaches the terminal.
Mistakes of our own raise ``AssertionError``.
"""

from collections.abc import Iterable

EXIT_DOES_NOT_FIT = 3
"""Exit code where memory is short, or nothing fits."""
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the number of SIGINT."""
MAX_NAME_CHARACTERS = 100
"""Of a name in an error; a longer one resembles no known one."""


class VlmplanError(Exception):
    """Base of all errors that the user can mend."""

    exit_code = 1


class InputError(VlmplanError):
    """A value that is not allowed."""


class UnknownNameError(InputError):
    """A name that is not among the known ones.

    >>> str(UnknownNameError("GPU", "a100-80", ["a100-sxm4-80gb", "t4"]))
    "unknown GPU 'a100-80'; did you mean 'a100-sxm4-80gb'?"
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], hint: str = "", *, num_known: int | None = None
    ) -> None:
        """``num_known``: how many are said to be known, where not all of ``known`` can be used."""
        self.kind: str = kind
        self.name: str = name
        names = list(dict.fromkeys(known))
        near = nearest(name, names)
        if near:
            text = f"did you mean {' or '.join(repr(match) for match in near)}?"
        elif len(names) <= 12:
            text = f"known: {', '.join(names)}"
        else:
            text = f"{len(names) if num_known is None else num_known} are known"
        shown = repr(name if len(name) <= MAX_NAME_CHARACTERS else name[: MAX_NAME_CHARACTERS - 3] + "...")
        super().__init__(f"unknown {kind} {shown}; {text}" + (f" ({hint})" if hint else ""))


class MissingPackageError(VlmplanError):
    """An optional package is needed for this."""


class UnavailableError(VlmplanError):
    """A file, network, driver or device that is not there."""


class DoesNotFitError(VlmplanError):
    """Raised where nothing fits the hardware or the limits."""

    exit_code = EXIT_DOES_NOT_FIT


def require_within(name: str, value: float | None, *, least: float, most: float) -> None:
    """Raise InputError where ``value``, that of the option or key ``name``, is below ``least``, above ``most`` or no
    number at all; None is what nobody gave.

    >>> require_within("--epochs", 0, least=1, most=9)
    Traceback (most recent call last):
    vlmplan.errors.InputError: --epochs is 0; 1 or more is needed
    """
    if value is not None and not least <= value <= most:
        allowed = f"at most {most:,} is allowed" if value > most else f"{least:,} or more is needed"
        raise InputError(f"{name} is {_written(value)}; {allowed}")


def require_positive(name: str, value: float | None, *, most: float) -> None:
    """``require_within`` for what is more than 0."""
    if value is not None and not 0 < value <= most:
        allowed = f"at most {most:,} is allowed" if value > most else "more than 0 is needed"
        raise InputError(f"{name} is {_written(value)}; {allowed}")


def _written(value: float) -> str:
    """A number as people write it, whole ones of any size with all digits."""
    return str(value) if isinstance(value, int) else f"{value:.15g}"


LEAST_BEGUN = 8
"""Characters of a known name that a longer one has to begin with to be a variant of it. A choice."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that ``name`` most likely meant, best first, at most three; may be empty."""
    from difflib import get_close_matches

    if len(name) > MAX_NAME_CHARACTERS:
        return []
    folded = {candidate.casefold(): candidate for candidate in known}
    wanted = name.casefold()
    contained = sorted((c for c in folded if wanted in c or c in wanted), key=lambda c: (abs(len(c) - len(wanted)), c))
    begun = [c for c in contained if len(c) >= LEAST_BEGUN and wanted.startswith(c)]
    close = get_close_matches(wanted, folded, n=3, cutoff=0.6)
    return [folded[key] for key in dict.fromkeys([*begun[:1], *(close + contained if close else contained)])][:3]
