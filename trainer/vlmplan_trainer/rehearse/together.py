"""Several rehearsals, each in a fork of a process that has imported the libraries once.

A rehearsal tells torch and DeepSpeed of its device for good, so that two need two processes; most of what the shorter
ones take is importing. Nothing has been computed and no thread of torch runs when the process forks.
"""

import gc
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import IO, Any, NoReturn

from vlmplan_trainer.answering import Answering, say_phase_begins


def answers_of_forks(
    requests: Sequence[dict[str, Any]], answer: Callable[[Answering], NoReturn], *, most_at_once: int
) -> list[dict[str, Any] | None]:
    """The answer to each request by ``answer`` in a fork of this process, ``most_at_once`` at a time; None where a
    fork ended without one. Says which begins."""
    _import_libraries(requests)
    gc.freeze()  # forks share what is here as long as the collector does not write to it
    running: dict[int, tuple[int, IO[str]]] = {}
    answers: list[dict[str, Any] | None] = [None] * len(requests)
    for place, request in enumerate(requests):
        if len(running) >= most_at_once:
            _take_one(running, answers)
        say_phase_begins(f"{place + 1} of {len(requests)}")
        file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 closed where it is read
        process = os.fork()
        if not process:
            _answer_in_fork(Answering(request, file), answer)
        running[process] = place, file
    while running:
        _take_one(running, answers)
    return answers


def _answer_in_fork(answering: Answering, answer: Callable[[Answering], NoReturn]) -> NoReturn:
    """A fork never comes back to what its parent was doing."""
    try:
        answer(answering)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def _take_one(running: dict[int, tuple[int, IO[str]]], answers: list[dict[str, Any] | None]) -> None:
    """Wait for a fork to end, and keep its answer."""
    process, status = os.wait()
    place, file = running.pop(process)
    with file:
        file.seek(0)
        text = file.read()
    if not status:
        answers[place] = json.loads(text)


def _import_libraries(requests: Sequence[dict[str, Any]]) -> None:
    """What rehearsing one of these would import first. A fork says what is wrong where this cannot be."""
    os.environ["DS_ACCELERATOR"] = "cpu"  # as ``run.rehearse`` has it
    import vlmplan_trainer.rehearse.run  # noqa: F401 for what it imports
    from vlmplan_trainer.probe import configuration, model_class

    recipes = [request["plan"]["recipe"] for request in requests]
    packages = ["peft"] if any(recipe["method"] != "full" for recipe in recipes) else []
    packages += ["deepspeed"] if all(request["plan"]["ds_config"] is not None for request in requests) else []
    for package in packages:
        with suppress(ImportError):
            import_module(package)
    with suppress(Exception):
        model_class(configuration(dict(requests[0]["plan"]["workload"]["model"]["config"])))
