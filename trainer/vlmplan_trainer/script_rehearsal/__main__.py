"""Rehearse one rank of a script: ``python -m vlmplan_trainer.script_rehearsal``, a request on standard input, the
answer on standard output.

The request is ``{"words": ["python", "train.py"], "world": {"rank": 0, "gpus_per_node": 8, "num_nodes": 1},
"num_steps": 3, "card": {...} or null, "folder": a temporary one, "cwd": "...", "assumptions": [[file, line, value]],
...}``; the answer that of ``run.rehearse_script`` or ``{"error": sentence}``. Progress and what the script prints go to
standard error.
"""

import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

from vlmplan_trainer.answering import Answering, say_phase_begins

KIB = 1024
SECONDS_BETWEEN_LOOKS = 1.0


def main() -> int:
    answering = Answering()
    limit = answering.request.pop("host_limit_bytes", None)
    if limit is not None:
        threading.Thread(target=_watch_memory, args=(limit, answering.end), daemon=True).start()
    answer = answering.answer(_rehearsed)
    answering.end(answer | {"host_rss_bytes": _peak_rss_bytes()})
    return 0


def _peak_rss_bytes() -> int:
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * KIB


def _watch_memory(limit: int, end: Any) -> None:
    while _peak_rss_bytes() <= limit:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    end({"error": f"it took more than {limit / 2**30:.1f} GiB of this machine's memory; give --max-rehearsal-ram"})


def _rehearsed(request: dict[str, Any]) -> dict[str, Any]:
    from vlmplan_trainer.script_rehearsal.launchers import World, rank_variables, understood
    from vlmplan_trainer.script_rehearsal.side_effects import set_environment

    folder = Path(request["folder"])
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # nothing is compiled, so that no compiler need be imported
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a card that is there is not asked
    os.environ["DS_ACCELERATOR"] = "cpu"  # what DeepSpeed finds by itself when it is imported
    set_environment(folder, allows_network=request["allows_network"])
    os.chdir(request["cwd"])
    world = World(**request["world"])
    launch = understood(request["words"], world)
    os.environ.update(rank_variables(world) | launch.environment)
    from vlmplan_trainer.script_rehearsal.queries import card_from_json
    from vlmplan_trainer.script_rehearsal.run import ScriptRequest, rehearse_script

    index = world.rank % world.gpus_per_node
    return rehearse_script(
        ScriptRequest(
            launch=launch,
            understood=lambda words: understood(words, world),
            rank=world.rank,
            num_ranks=world.num_ranks,
            num_steps=request["num_steps"],
            card=card_from_json(request["card"], index=index, count=world.gpus_per_node),
            folder=folder,
            assumptions=request["assumptions"],
            allows_network=request["allows_network"],
            allows_programs=request.get("allows_programs", False),
            longest=request["longest"],
            say=say_phase_begins,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
