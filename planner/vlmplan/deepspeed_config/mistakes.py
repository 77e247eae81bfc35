"""Every mistake of a file in one message, instead of one at a try."""

from collections.abc import Generator
from contextlib import contextmanager

from vlmplan.errors import InputError


class Mistakes:
    """What is wrong with the file ``source``, as it is found."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._found: list[InputError] = []

    def add(self, sentence: str) -> None:
        self._found.append(InputError(f"{self.source}: {sentence}"))

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keep what goes wrong inside, and go on."""
        try:
            yield
        except InputError as error:
            self._found.append(error)

    def report(self) -> None:
        """Raise InputError if anything is wrong: the mistake itself, or all of them in one sentence."""
        if not self._found:
            return
        if len(self._found) == 1:
            raise self._found[0]
        sentences = (str(error).removeprefix(f"{self.source}: ") for error in self._found)
        listed = "; ".join(f"({number}) {sentence}" for number, sentence in enumerate(sentences, start=1))
        raise InputError(f"{self.source} has {len(self._found)} mistakes: {listed}")
