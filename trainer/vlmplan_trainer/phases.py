"""What a run is doing before its first step and after its last: one short line when each part begins, from rank 0.

    12.4 s  building qwen2_vl, reading its weights from org/name

The seconds are those since ``vlmplan launch`` started the run, or else since this process began.
"""

import os
import sys
import time

from vlmplan.run.training import STARTED

_BEGUN = time.time()


def seconds_so_far() -> float:
    """Seconds since the run was started."""
    try:
        begun = float(os.environ.get(STARTED, _BEGUN))
    except ValueError:
        begun = _BEGUN
    return max(0.0, time.time() - begun)


def rank_here() -> int:
    """This process's rank. One that is alone is the first, whatever a shell that another launcher started says."""
    return int(os.environ.get("RANK", "0")) if os.environ.get("WORLD_SIZE", "1") != "1" else 0


def is_first() -> bool:
    """Whether this rank speaks for all."""
    return rank_here() == 0


def say_phase(text: str) -> None:
    """Say what begins now; nothing from other ranks than the first."""
    if is_first():
        sys.stdout.write(f"{seconds_so_far():7.1f} s  {text}\n")
        sys.stdout.flush()


def say_building(source: str, *, random_weights: bool) -> None:
    """Say that the model is built, and where its weights come from: ``source``, or nowhere."""
    weights = "drawing its weights" if random_weights else f"reading its weights from {source}"
    say_phase(f"building the model, {weights}")
