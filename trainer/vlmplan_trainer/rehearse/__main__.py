"""Rehearse one rank of a plan: ``python -m vlmplan_trainer.rehearse``, a request on standard input, the answer on
standard output.

The request is ``{"plan": plan.json, "samples": {...}, "rank": 0, "num_steps": 3, ...}``; the answer that of
``run.rehearse``, ``{"error": sentence}`` or, behind the request's ``most_operations``, ``{"is_too_long": true}``.
Progress goes to standard error, a phase a line. Several are asked with ``{"requests": [...], "most_at_once": 2}`` and
answered with ``{"answers": [...]}`` in the same order (``together``).
"""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from vlmplan_trainer.answering import Answering, say_phase_begins

TOO_LONG = {"is_too_long": True}


def main() -> int:
    answering = Answering()
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # nothing is compiled, so that no compiler need be imported
    warnings.filterwarnings("ignore")
    requests = answering.request.get("requests")
    if requests is None:
        _answer(answering, say_phase_begins)
    from vlmplan_trainer.rehearse.together import answers_of_forks

    answers = answers_of_forks(
        requests, lambda one: _answer(one, lambda phase: None), most_at_once=answering.request["most_at_once"]
    )
    answering.end({"answers": answers})
    return 0


def _answer(answering: Answering, say: Callable[[str], None]) -> NoReturn:
    """Rehearse what is asked, answer it and end the process."""
    answering.end(answering.answer(lambda request: _rehearsed(request, lambda: answering.end(TOO_LONG), say)))


def _rehearsed(request: dict[str, Any], give_up: Callable[[], None], say: Callable[[str], None]) -> dict[str, Any]:
    from transformers.utils import logging

    from vlmplan.plan import plan_from_json
    from vlmplan_trainer.rehearse.run import Request, rehearse
    from vlmplan_trainer.rehearse.samples import ImageSpec, Samples
    from vlmplan_trainer.rehearse.sounds import AudioSpec

    logging.set_verbosity_error()
    samples = dict(request.pop("samples"))
    image, audio = samples.pop("image"), samples.pop("audio", None)
    sequences = samples.pop("sequences", None)
    samples["sequences"] = None if sequences is None else tuple(sequences)
    plan = plan_from_json(request.pop("plan"))
    capability = tuple(request.pop("compute_capability"))
    asked = Request(
        plan=plan,
        samples=Samples(
            **samples,
            image=None if image is None else ImageSpec(**image),
            audio=None if audio is None else AudioSpec(**audio),
        ),
        compute_capability=capability,
        say=say,
        give_up=give_up,
        **request,
    )
    return rehearse(asked)


if __name__ == "__main__":
    sys.exit(main())
