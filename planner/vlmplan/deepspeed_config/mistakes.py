"""Every mistake of a file in one message, instead of one at a try."""

from collections.abc import Generator
from contextlib import contextmanager

from vlmplan.errors import InputError

MAX_MISTAKES = 30
"""So many are named together. Whoever has more has given another file: to look for what each unknown key may have meant
takes a millisecond, and a file may have 100,000."""


class TooManyMistakesError(InputError):
    """There are more mistakes than are named."""


class Mistakes:
    """What is wrong with the file ``source``, as it is found. Raises TooManyMistakesError at once where it is much."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._found: list[InputError] = []

    def add(self, sentence: str) -> None:
        self._keep(InputError(f"{self.source}: {sentence}"))

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keep what goes wrong inside, and go on."""
        try:
            yield
        except TooManyMistakesError:
            raise
        except InputError as error:
            self._keep(error)

    def report(self) -> None:
        """Raise InputError if anything is wrong: the mistake itself, or all of them in one sentence."""
        if not self._found:
            return
        if len(self._found) == 1:
            raise self._found[0]
        raise InputError(f"{self.source} has {len(self._found)} mistakes: {self._listed}")

    @property
    def _listed(self) -> str:
        sentences = (
            str(error).removeprefix(f"{self.source}: ").removesuffix(f" (in {self.source})") for error in self._found
        )
        return "; ".join(f"({number}) {sentence}" for number, sentence in enumerate(sentences, start=1))

    def _keep(self, error: InputError) -> None:
        if any(str(known) == str(error) for known in self._found):
            return  # a value that is asked for twice
        self._found.append(error)
        if len(self._found) > MAX_MISTAKES:
            self._found.pop()
            raise TooManyMistakesError(f"{self.source} has more than {MAX_MISTAKES} mistakes: {self._listed}")
