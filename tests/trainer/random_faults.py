"""Faults at random moments of a run, with a fixed seed: python tests/trainer/random_faults.py FAULTS [SEED] [--launch]

Each engine trains the tiny Llama once without a fault, and once again and again: a rank is killed, stopped for a moment
or told to end, all ranks are killed, the disk is full from then on, or a file of the newest checkpoint is flipped, cut
or taken away; then the run goes on with --resume. In the end losses and exported weights have to be those of the first
run, every step once in metrics.jsonl, and no start may end in a traceback. Prints a line for each fault; five to ten
seconds each. With --launch the starts are those of ``vlmplan launch``, and its own process and its launchers are among
what is hit (``launch_faults.py``); 20 s of a processor each.
"""

import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from checkpoint_faults import flip
from launch_faults import drawn_fault, launched
from prepared import run_prepared
from trainer_runs import MANY_RUNS, planned

from vlmplan.launch.rank_locks import LOCK_FILE, ROW_BYTES
from vlmplan.launch.run_folder import has_checkpoint
from vlmplan.plan import Plan, write_plan
from vlmplan.run.training import CHECKPOINTS
from vlmplan_trainer.models.tiny import write_tiny_model

NUM_STEPS = 40
WORDS = [
    *("--dummy-data", str(8 * NUM_STEPS), "--learning-rate", "1e-2", "--measured-steps", "0"),
    *("--save-every", "3", "--keep-last", "3"),
]
ENGINES = {"plain PyTorch": ("none", 1), "DDP": ("none", 2)} | {f"ZeRO-{stage}": (str(stage), 2) for stage in (1, 2, 3)}
"""Stage and ranks."""
SIGNALS: dict[str, tuple[int, bool]] = {
    "kill a rank": (signal.SIGKILL, False),
    "kill all ranks": (signal.SIGKILL, True),
    "end a rank": (signal.SIGTERM, False),
    "hang up on a rank": (signal.SIGHUP, False),
    "stop a rank": (signal.SIGSTOP, False),
}
FULL_DISK, MOST_BYTES = "fill the disk", 200_000
"""No file of a rank may grow beyond a number of bytes below that: checkpoints and results here take more."""
DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "flip a bit": lambda path, drawn: flip(path, drawn.random()),
    "cut a file": lambda path, drawn: os.truncate(path, int(path.stat().st_size * drawn.random())),
    "take a file away": lambda path, drawn: path.unlink(),
}


@dataclass
class Tried:
    """What became of one engine; ``problems`` are what should not have been."""

    num_faults: int = 0
    problems: list[str] = field(default_factory=list)


def plan_of(model: Path, engine: str) -> Plan:
    stage, num_ranks = ENGINES[engine]
    options = {"method": "full", "num_samples": 8 * NUM_STEPS, "global_batch": 8, "micro_batch": 2}
    return planned(model, num_ranks=num_ranks, zero_stage=stage, **options)


def run_once(
    plan: Plan, folder: Path, *, resume: bool, meanwhile: Callable[[], object] | None = None
) -> tuple[Any, str]:
    """The exit code of the first rank, None where it was killed, and what was printed."""
    write_plan(plan, folder / "plan.json", force=True)
    words = [*WORDS, "--resume"] if resume else WORDS
    job = {"name": "run", "plan": str(folder / "plan.json"), "folder": str(folder / "run"), "words": words}
    (folder / "jobs.json").write_text(json.dumps([job | {"stop_after": None}]))
    results = folder / "results.json"
    results.unlink(missing_ok=True)
    thread = None if meanwhile is None else threading.Thread(target=meanwhile)
    if thread is not None:
        thread.start()
    done = run_prepared(MANY_RUNS, [str(folder / "jobs.json"), str(results)], num_ranks=plan.hardware.num_gpus)
    if thread is not None:
        thread.join()
    code = json.loads(results.read_text())["run"] if results.exists() else None
    return code, done.stdout + done.stderr


def steps_of(run: Path) -> list[int]:
    """The steps of the whole lines of metrics.jsonl."""
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


def send_at(run: Path, name: str, step: int, delay: float, drawn: random.Random) -> None:
    """Do it ``delay`` seconds after ``step``, to a rank or all, as ranks.lock names them."""
    end, before = time.monotonic() + 60, (run / "report.json").exists()
    while (steps_of(run) or [0])[-1] < step and time.monotonic() < end and (run / "report.json").exists() is before:
        time.sleep(0.002)
    time.sleep(delay)
    text = (run / LOCK_FILE).read_bytes()
    pids = [int(text[at : at + ROW_BYTES].split()[0]) for at in range(0, len(text), ROW_BYTES)]
    if name == FULL_DISK:
        limit = drawn.randrange(MOST_BYTES)
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (limit, psutil.RLIM_INFINITY))
        return
    signum, to_all = SIGNALS[name]
    for pid in pids if to_all else [drawn.choice(pids)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
            if signum == signal.SIGSTOP:
                time.sleep(0.3)
                os.kill(pid, signal.SIGCONT)


def damage(run: Path, drawn: random.Random) -> str | None:
    """Damage a file of the newest checkpoint, where there is one before it."""
    places = sorted((run / CHECKPOINTS).glob("step-????????"))
    if len(places) < 2:
        return None
    path = drawn.choice(sorted(path for path in places[-1].rglob("*") if path.is_file() and path.stat().st_size))
    name = drawn.choice(sorted(DAMAGES))
    DAMAGES[name](path, drawn)
    return f"{name} ({places[-1].name}/{path.name})"


def result_of(run: Path) -> tuple[list[float], str]:
    """Losses by step, and a sum of the exported weights."""
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return losses, hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


def tried(
    model: Path,
    engine: str,
    folder: Path,
    *,
    num_faults: int,
    seed: int,
    launches: bool = False,
    say: Callable[[str], object] = print,
) -> Tried:
    """Break a run of the engine so often, and hold what is left to a run that was not broken."""
    drawn, plan, found = random.Random(f"{engine}/{seed}"), plan_of(model, engine), Tried()
    code, printed = run_once(plan, folder / "unbroken", resume=False)
    assert code == 0, printed[-3000:]
    expected, run = result_of(folder / "unbroken" / "run"), folder / "broken" / "run"
    while found.num_faults < num_faults:
        problems, what = (launched_once if launches else broken_once)(plan, folder / "broken", drawn)
        found.num_faults += 1
        found.problems += [f"{engine}: {what}: {problem}" for problem in problems]
        if (run / "report.json").exists():  # it was over before, or survived: again from the start
            found.problems += problems_of(run, expected, f"{engine}: {what}")
            run.rename(run.with_name(f"finished-{found.num_faults}"))
        elif drawn.random() < 0.5 and (damaged := damage(run, drawn)) is not None:
            found.num_faults += 1
            what += f"; {damaged}"
        say(f"{engine}: {what}")
    if launches:
        last = launched(launch_words(plan, folder / "broken"), run, None, lambda: steps_of(run))
        code, printed = last.code, last.printed
    else:
        code, printed = run_once(plan, folder / "broken", resume=has_checkpoint(run))
    if code != 0:
        found.problems.append(f"{engine}: the last start ends with {code}: {printed[-500:]}")
    else:
        found.problems += problems_of(run, expected, engine)
    return found


def broken_once(plan: Plan, folder: Path, drawn: random.Random) -> tuple[list[str], str]:
    """Start or go on with the run in ``folder``, and break it; what should not have been, and what was done."""
    run = folder / "run"
    last = (steps_of(run) or [0])[-1]
    name, delay = drawn.choice(sorted([*SIGNALS, FULL_DISK])), drawn.random() * 0.05
    step = drawn.randint(min(NUM_STEPS - 1, last + 1), min(NUM_STEPS - 1, last + 12))
    resume = has_checkpoint(run)
    code, _ = run_once(plan, folder, resume=resume, meanwhile=partial(send_at, run, name, step, delay, drawn))
    problems = [] if code is None or isinstance(code, int) else [str(code)]
    return problems, f"{name} after step {step}: exit {code}, {len(steps_of(run))} steps"


def launched_once(plan: Plan, folder: Path, drawn: random.Random) -> tuple[list[str], str]:
    """``broken_once`` of a run that ``vlmplan launch`` starts."""
    run = folder / "run"
    last_step, num_ranks = (steps_of(run) or [0])[-1], plan.hardware.num_gpus
    fault = drawn_fault(drawn, last_step=last_step, num_steps=NUM_STEPS, num_ranks=num_ranks)
    begin = time.monotonic()
    ended = launched(launch_words(plan, folder), run, fault, lambda: steps_of(run))
    problems = ended.problems(is_finished=(run / "report.json").exists())
    seconds = time.monotonic() - begin
    return problems, f"{fault}: exit {ended.code} after {seconds:.0f} s, {len(steps_of(run))} steps"


def launch_words(plan: Plan, folder: Path) -> list[str]:
    """The options that start or go on with the run in ``folder``; one that left no checkpoint begins anew."""
    run = folder / "run"
    write_plan(plan, folder / "plan.json", force=True)
    resumes = has_checkpoint(run)
    if run.exists() and not resumes:
        run.rename(folder / f"without-checkpoint-{time.monotonic_ns()}")
    words = ["--plan", str(folder / "plan.json"), "--output-dir", str(run), *WORDS]
    return [*words, "--resume"] if resumes else words


def problems_of(run: Path, expected: tuple[list[float], str], what: str) -> list[str]:
    found = [] if steps_of(run) == list(range(1, NUM_STEPS + 1)) else [f"{what}: steps {steps_of(run)}"]
    losses, weights = result_of(run)
    found += [] if losses == expected[0] else [f"{what}: other losses"]
    return found + ([] if weights == expected[1] else [f"{what}: other weights"])


def main(num_faults: int, seed: int = 0, *, launches: bool = False) -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = write_tiny_model(folder / "llama", "llama")
        per_engine = -(-num_faults // len(ENGINES))
        options: dict[str, Any] = {"num_faults": per_engine, "seed": seed, "launches": launches}
        found = {name: tried(model, name, folder / name, **options) for name in ENGINES}
    for name, outcome in found.items():
        print(f"{name}: {outcome.num_faults} faults, {len(outcome.problems)} problems", *outcome.problems, sep="\n  ")
    return int(any(outcome.problems for outcome in found.values()))


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word != "--launch"]
    sys.exit(main(*numbers, launches="--launch" in sys.argv))
