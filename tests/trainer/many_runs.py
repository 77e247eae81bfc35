"""Several runs one after the other in the same processes, since importing the libraries takes longer than a tiny run.

Started on every rank with a JSON list of {plan, folder, words, stop_after}. ``stop_after`` is a step after which the
last rank sends itself SIGTERM. PRETEND_FP16: DeepSpeed asks oneDNN for fast fp16 instructions, which few processors
have; torch computes in fp16 on any.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
RANK, NUM_RANKS = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))


def main(jobs_file: str, results_file: str) -> None:
    from gloo_messages import let_go_of_messages
    from gpu_head import HEAD_AS_ON_GPUS, make_head_as_on_gpus

    import vlmplan_trainer.__main__ as trainer
    from vlmplan_trainer import starting

    trained, trainer.OTHERS_SECONDS = trainer.main, 0.0  # nobody ends these ranks
    leave_ranks, starting.leave_ranks = starting.leave_ranks, lambda: None  # they meet once, for all runs

    if "PRETEND_FP16" in os.environ:
        from deepspeed.accelerator import get_accelerator

        get_accelerator().is_fp16_supported = lambda: True
    let_go_of_messages()
    if HEAD_AS_ON_GPUS in os.environ:
        make_head_as_on_gpus()
    results = {}
    for job in json.loads(Path(jobs_file).read_text()):
        if job["stop_after"] is not None and RANK == NUM_RANKS - 1:
            threading.Thread(target=stop, args=(Path(job["folder"]), job["stop_after"]), daemon=True).start()
        try:
            results[job["name"]] = trained(["--plan", job["plan"], "--output-dir", job["folder"], *job["words"]])
        except Exception:
            results[job["name"]] = traceback.format_exc()
        forget_accelerate()
    if RANK == 0:
        Path(results_file).write_text(json.dumps(results))
    leave_ranks()


def forget_accelerate() -> None:
    """What accelerate keeps for a process's one run."""
    if "accelerate.state" in sys.modules:
        sys.modules["accelerate.state"].AcceleratorState._reset_state(reset_partial_state=True)
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        del os.environ[name]


def stop(folder: Path, step: int) -> None:
    """SIGTERM for this process once the run in ``folder`` has done ``step`` steps."""
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < step:
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
