"""Print how long ``--data`` takes on a data set of a known distribution, and whether it finds what was put into it.

    PYTHONPATH=planner:tests python tests/tools/data_proof.py [--samples 100000]

Every run has an empty cache and two cores. The worst micro batch is held against brute force: every micro batch of the
epoch by itself, which takes minutes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from known_data import Drawn, brute_force, drawn_samples, write_data, write_model
from vlmplan.catalog import load_catalog
from vlmplan.data_plan.data_run import DataRuns
from vlmplan.data_plan.lengths import PERCENTILES, percentile
from vlmplan.estimation import Estimator
from vlmplan.request import parse, requested_cluster
from vlmplan.request.setup import requested_setup

NUM_CORES, MICRO_BATCH, NUM_RANKS = 2, 4, 2
GPU = f"a100-sxm4-80gb:{NUM_RANKS}"


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of the command: its answer, seconds that passed, and the processor's."""

    document: dict[str, Any]
    seconds: float
    cpu_seconds: float


def timed_estimate(model: str, data: Path, cache: Path) -> Timed:
    """``vlmplan estimate --data`` in a process of its own, on two cores."""
    words = ["estimate", "--model", model, "--gpu", GPU, "--method", "lora", "--zero-stage", "none"]
    words += ["--micro-batch", str(MICRO_BATCH), "--data", str(data), "--json"]
    code = "import sys; from vlmplan.cli.entry import main; sys.argv[1:] = " + repr(words) + "; main()"
    cores = sorted(os.sched_getaffinity(0))[:NUM_CORES]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timed(json.loads(done.stdout), seconds, used)


def main() -> None:
    """Make the data, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    samples = drawn_samples(parser.parse_args().samples)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, model = write_data(folder / "data", samples), write_model(folder / "model")
        runs = {
            "first, tokenizer": timed_estimate(str(model), data, folder / "cache"),
            "again": timed_estimate(str(model), data, folder / "cache"),
            "first, bytes": timed_estimate("qwen2-vl-2b", data, folder / "other_cache"),
        }
        num_images = sum(len(one.images) for one in samples)
        say(f"{len(samples):,} samples, {num_images:,} images, {data.stat().st_size / 2**20:.0f} MiB of JSONL\n")
        say(f"{'run':18} {'seconds':>8} {'of the processor':>17}")
        for title, run in runs.items():
            say(f"{title:18} {run.seconds:8.1f} {run.cpu_seconds:17.1f}")
        print_found(runs["first, tokenizer"].document, samples)
        print_worst(runs["first, tokenizer"].document, samples, data, model)


def print_found(document: dict[str, Any], samples: Sequence[Drawn]) -> None:
    """Percentiles as they were found, beside those of what was drawn."""
    found, drawn = document["data"]["tokens"], sorted(one.tokens for one in samples)
    say(f"\n{'tokens':18} {'found':>8} {'drawn':>8}")
    for percent in PERCENTILES:
        say(f"{f'{percent}%':18} {found['percentiles'][str(percent)]:8,} {percentile(drawn, percent):8,}")
    say(f"{'longest':18} {found['most']:8,} {drawn[-1]:8,}")
    images, of_drawn = document["data"]["images_per_sample"], sum(len(one.images) for one in samples)
    say(f"{'images':18} {round(images['mean'] * len(samples)):8,} {of_drawn:8,}")


def print_worst(document: dict[str, Any], samples: Sequence[Drawn], data: Path, model: Path) -> None:
    """The worst micro batch as it was found, and as trying all of them finds it."""
    options = {"gpu": GPU, "method": "lora", "zero_stage": "none", "micro_batch": MICRO_BATCH}
    request = parse({**options, "model": str(model), "data": data})
    assert request.from_data is not None
    machine = requested_cluster(request.hardware, load_catalog(()))
    setup = requested_setup(request, machine, request.model_files)
    estimator = Estimator(setup.workload, setup.recipe)
    source, present = request.from_data.source, estimator.estimate(setup.recipe, setup.cluster)
    data_runs = DataRuns(present, source, estimator=estimator)
    started = time.process_time()
    tried = brute_force(data_runs, source, samples, MICRO_BATCH, NUM_RANKS)
    worst, bound = document["data"]["worst_micro_batch"], document["data"]["any_order"]
    say(f"\n{'worst micro batch':18} {'peak bytes':>16} {'step':>8}")
    say(f"{'found':18} {worst['peak_allocated_bytes']:16,} {worst['step']:8,}")
    say(f"{'brute force':18} {tried.peak_bytes:16,} {tried.step:8,}")
    say(f"{'any order':18} {bound['peak_allocated_bytes']:16,}")
    say(f"brute force: {tried.num_micro_batches:,} micro batches in {time.process_time() - started:.0f} s")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
