"""Rehearse one rank of a plan: ``python -m vlmplan_trainer.rehearse``, a request on standard input, the answer on
standard output.

The request is ``{"plan": plan.json, "samples": {...}, "rank": 0, "num_steps": 3, ...}``; the answer that of
``run.rehearse`` or ``{"error": sentence}``. Progress goes to standard error, a phase a line.
"""

import json
import os
import sys
import warnings
from typing import Any

from vlmplan.errors import VlmplanError


def main() -> int:
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print must not spoil the answer
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # nothing is compiled, so that no compiler need be imported
    request = json.load(sys.stdin)
    warnings.filterwarnings("ignore")
    try:
        answer = _rehearsed(request)
    except VlmplanError as error:
        answer = {"error": str(error)}
    with answer_to:
        json.dump(answer, answer_to)
    answer_to.close()
    sys.stderr.flush()
    os._exit(0)  # process groups of DeepSpeed are slow to fall


def _rehearsed(request: dict[str, Any]) -> dict[str, Any]:
    from transformers.utils import logging

    from vlmplan.plan import plan_from_json
    from vlmplan_trainer.rehearse.batch import ImageSpec, Samples
    from vlmplan_trainer.rehearse.run import Request, rehearse

    logging.set_verbosity_error()
    samples = dict(request.pop("samples"))
    image = samples.pop("image")
    sequences = samples.pop("sequences", None)
    samples["sequences"] = None if sequences is None else tuple(sequences)
    plan = plan_from_json(request.pop("plan"))
    capability = tuple(request.pop("compute_capability"))
    return rehearse(
        Request(
            plan=plan,
            samples=Samples(**samples, image=None if image is None else ImageSpec(**image)),
            compute_capability=capability,
            say=_say,
            **request,
        )
    )


def _say(text: str) -> None:
    sys.stderr.write(f"PHASE {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
