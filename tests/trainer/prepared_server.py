"""Forks programs from a process that has imported all libraries; ``prepared.py`` starts it and asks it.

Reads one JSON object a line: {file, arguments, environment, num_ranks, folder}. The folder has the program's standard
input and gets what it writes. Answers each with a line: its exit status.
"""

import gc
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import imported  # noqa: F401
import torch.multiprocessing

STREAMS = (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY | os.O_CREAT), ("stderr", os.O_WRONLY | os.O_CREAT))


def run_program(request: dict[str, Any]) -> None:
    file = request["file"]
    sys.argv = [file, *request["arguments"]]
    sys.path.insert(0, str(Path(file).parent))
    runpy.run_path(file, run_name="__main__")


def run_rank(rank: int, request: dict[str, Any]) -> None:
    """The program, told what a launcher tells each rank besides MASTER_ADDR and MASTER_PORT."""
    num_ranks = str(request["num_ranks"])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=num_ranks, LOCAL_WORLD_SIZE=num_ranks)
    run_program(request)


def run_request(request: dict[str, Any]) -> None:
    """In a child: the program, or all ranks of it. Does not come back."""
    status = 1
    try:
        for number, (name, flags) in enumerate(STREAMS):
            os.dup2(os.open(Path(request["folder"]) / name, flags), number)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        os.environ.clear()
        os.environ.update(request["environment"])
        if request["num_ranks"] == 1:
            run_program(request)
        else:
            torch.multiprocessing.start_processes(
                run_rank, (request,), nprocs=request["num_ranks"], start_method="fork"
            )
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    gc.collect()
    gc.freeze()  # a collector that looks at what was imported writes to every page of it, and so copies it
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not spoil the answers
    for line in sys.stdin:
        child = os.fork()
        if not child:
            run_request(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    main()
