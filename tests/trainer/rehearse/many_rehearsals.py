"""Several rehearsals, each in a process of its own that begins with all libraries imported: importing takes longer than
rehearsing a tiny model. A JSON list of requests on standard input, that of their answers on standard output.
"""

import json
import os
import sys
import traceback

import imported  # noqa: F401
import torch


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    json.dump([json.loads(forked(request)) for request in json.load(sys.stdin)], answers)


def forked(request: object) -> str:
    """The answer of ``python -m vlmplan_trainer.rehearse``."""
    from vlmplan_trainer.rehearse import __main__ as rehearse

    request_at, request_to = os.pipe()
    answer_at, answer_to = os.pipe()
    child = os.fork()
    if not child:
        os.close(request_to)
        os.dup2(answer_to, 1)
        sys.stdin = os.fdopen(request_at)
        try:
            rehearse.main()  # does not come back
        finally:
            traceback.print_exc()
            os._exit(1)
    os.close(request_at)
    os.close(answer_to)
    with os.fdopen(request_to, "w") as to:
        json.dump(request, to)
    with os.fdopen(answer_at) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if status or not text:
        raise RuntimeError(f"a rehearsal ended with {status}")
    return text


if __name__ == "__main__":
    main()
