"""Several rehearsals, in one process that imports the libraries once and forks for each (``vlmplan_trainer``)."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from vlmplan.errors import UnavailableError, VlmplanError
from vlmplan.files.json_reader import JsonDict, JsonObject
from vlmplan.plan import Plan
from vlmplan.rehearsal.process import COMMAND, SOURCE, answer_of, missing_packages, rehearsed_of, run_rehearsal
from vlmplan.rehearsal.result import Rehearsed

MOST_AT_ONCE = 4
"""Each takes a core and up to about a gigabyte. A choice."""
FORKING = "linux"
"""Where a process may fork that has imported torch."""


class Asked(NamedTuple):
    """A request of ``request_json`` for its plan."""

    request: JsonDict
    plan: Plan


def run_together(asked: Sequence[Asked], say: Callable[[str], None]) -> list[Rehearsed | VlmplanError]:
    """What happened in each rehearsal, or why it cannot be told; ``say`` gets which of how many begins.

    Those of tasks, and those that ended without an answer (where host memory is short), run by themselves.
    """
    answers = _answers_together(asked, say)
    found: list[Rehearsed | VlmplanError] = []
    for place, one in enumerate(asked):
        try:
            answer = answers.get(place)
            if answer is None:
                say(f"{place + 1} of {len(asked)}")
                found.append(run_rehearsal(*one, say=lambda phase: None))
            else:
                found.append(rehearsed_of(answer, one.request))
        except VlmplanError as error:
            found.append(error)
    return found


def _answers_together(asked: Sequence[Asked], say: Callable[[str], None]) -> Mapping[int, JsonObject]:
    """The answers that there are, by their places."""
    is_forking = sys.platform == FORKING
    places = [n for n, one in enumerate(asked) if one.plan.recipe.task is None and not missing_packages(one.plan)]
    if not is_forking or len(places) < 2:
        return {}
    most_at_once = min(MOST_AT_ONCE, len(os.sched_getaffinity(0)))
    request = {"requests": [asked[place].request for place in places], "most_at_once": most_at_once}
    with suppress(UnavailableError):
        answer = JsonObject(answer_of([sys.executable, *COMMAND], json.dumps(request), say), source=SOURCE)
        rows = answer.array("answers")
        return {
            place: JsonObject(row, source=SOURCE) for place, row in zip(places, rows, strict=True) if row is not None
        }
    return {}
