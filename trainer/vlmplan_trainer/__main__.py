"""Train what a plan says: ``python -m vlmplan_trainer --plan FILE --train-data FILE --output-dir DIR``."""

import os
import re
import sys
import time
from collections.abc import Sequence

from vlmplan.errors import VlmplanError
from vlmplan.launch.finished import merges_only
from vlmplan_trainer.options import started
from vlmplan_trainer.phases import is_first, rank_here, say_phase

EXIT_MENDABLE, EXIT_INTERRUPTED = 1, 130
OTHERS_SECONDS = 10.0
"""How long another rank than the first waits before it says why it fails: of what all find, the first speaks, and
launchers end the others a second after it has ended (``deepspeed/launcher/launch.py`` 0.19.8). With torch and DeepSpeed
in it a process takes up to 4 seconds to end after its last words (measured on two busy cores)."""
LOST_RANK = re.compile(
    r"Connection (closed|reset) by|Connection was likely closed|Broken pipe|Socket Timeout|remote process exited"
    r"|Timed out waiting"
)
"""What gloo, NCCL and torch's store say where another rank is gone (``torch.distributed`` 2.13)."""
QUIET_REDUCER = ("TORCH_CPP_LOG_LEVEL", "ERROR")
"""Without it the reducer of ``DistributedDataParallel`` warns on every rank that no weight went unused in a first step
(``search_unused_parameters`` in ``reducer.cpp``, torch 2.13), which says nothing of later ones."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run to the end, and return the exit code. What the user can mend is one sentence on standard error."""
    try:
        options, plan = started(arguments)
        if plan.has_ranks and plan.ds_config is None:
            os.environ.setdefault(*QUIET_REDUCER)
        say_phase(f"loading torch, transformers{' and DeepSpeed' if plan.ds_config is not None else ''}")
        from transformers.utils import logging

        if merges_only(plan, options):
            from vlmplan_trainer.merging import merge_afterwards as run
        elif plan.recipe.task is None:
            from vlmplan_trainer.run import run
        else:
            from vlmplan_trainer.trl_training.run import run

        from vlmplan_trainer.starting import leave_ranks

        logging.disable_progress_bar()  # of reading weights: one from every rank

        code = run(plan, options)
        leave_ranks()
        return code
    except VlmplanError as error:
        _say_failure(str(error))
        return EXIT_MENDABLE
    except RuntimeError as error:
        if not LOST_RANK.search(str(error)):
            raise
        _say_failure("another rank has ended, so this one ends too; what that one said is the reason")
        return EXIT_MENDABLE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _say_failure(sentence: str) -> None:
    """Say on standard error why the run failed, with the rank where it is not the first."""
    if not is_first():
        time.sleep(OTHERS_SECONDS)
        sentence = f"rank {rank_here()}: {sentence}"
    sys.stderr.write(f"vlmplan_trainer: {sentence}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
