"""What is wrong with a setup, told with the file of another trainer that means it."""

import re
from collections.abc import Generator
from contextlib import contextmanager

from vlmplan.errors import InputError
from vlmplan.recipe.settings import option_name
from vlmplan.request.record import Request


@contextmanager
def told_with_its_file(request: Request) -> Generator[None]:
    """Within, an InputError that names an option which nobody gave, but which the request's file means, begins with
    the file: the option is how its keys are read."""
    try:
        yield
    except InputError as error:
        sentence = str(error)
        if not _is_of_its_file(sentence, request):
            raise
        assert request.configured is not None
        raise InputError(f"{request.configured.path}: {sentence}") from None


def _is_of_its_file(sentence: str, request: Request) -> bool:
    configured = request.configured
    if configured is None or sentence.startswith(str(configured.path)):
        return False
    own = configured.own or Request()
    meant = [option_name(name) for name in configured.config.options if own.option(name) is None]
    return any(re.search(rf"{option}(?![\w-])", sentence) for option in meant)
