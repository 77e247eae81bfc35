"""Train what a plan says: ``python -m vlmplan_trainer --plan FILE --train-data FILE --output-dir DIR``."""

import os
import sys
from collections.abc import Sequence

from vlmplan.errors import VlmplanError
from vlmplan_trainer.options import started
from vlmplan_trainer.phases import say_phase

EXIT_MENDABLE, EXIT_INTERRUPTED = 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run to the end, and return the exit code. What the user can mend is one sentence on standard error."""
    try:
        options, plan = started(arguments)
        say_phase(f"loading torch, transformers{' and DeepSpeed' if plan.ds_config is not None else ''}")
        from transformers.utils import logging

        from vlmplan_trainer.run import run

        logging.disable_progress_bar()  # of reading weights: one from every rank

        return run(plan, options)
    except VlmplanError as error:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"vlmplan_trainer: {error}\n")
        return EXIT_MENDABLE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
