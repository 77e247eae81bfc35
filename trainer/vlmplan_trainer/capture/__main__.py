"""Capture what a model does with images: ``python -m vlmplan_trainer.capture``, a request on standard input
(``run.captured``), the answer on standard output, ``{"error": sentence}`` where there is none."""

import os
import sys
import warnings
from typing import Any

from vlmplan_trainer.answering import Answering


def main() -> int:
    answering = Answering()
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # nothing is compiled, so that no compiler need be imported
    warnings.filterwarnings("ignore")
    answering.end(answering.answer(_captured))
    return 0


def _captured(request: dict[str, Any]) -> dict[str, Any]:
    from transformers.utils import logging

    from vlmplan_trainer.capture.run import captured

    logging.set_verbosity_error()
    return captured(request)


if __name__ == "__main__":
    sys.exit(main())
