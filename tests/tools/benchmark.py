"""Seconds of the commands that people wait for: the median of nine runs each, in processes of their own.

python tests/tools/benchmark.py [MODEL]
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

NUM_RUNS = 9
BUDGET_SECONDS = {"--help": 0.1, "estimate": 0.2, "recommend": 0.6}
VLMPLAN = str(Path(sys.executable).with_name("vlmplan"))


def seconds_of(arguments: Sequence[str]) -> list[float]:
    """Wall-clock seconds of each run, after one that warms the caches."""
    times: list[float] = []
    for _ in range(NUM_RUNS + 1):
        start = time.perf_counter()
        subprocess.run([VLMPLAN, *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return times[1:]


def main(model: str = "qwen2-vl-2b") -> None:
    commands = {
        "--help": ["--help"],
        "estimate": ["estimate", "--model", model, "--gpu", "a100-sxm4-80gb"],
        "recommend": ["recommend", "--model", model],
    }
    print(f"{'command':<10} {'median s':>9} {'least s':>9} {'most s':>9} {'budget s':>9}")
    medians: dict[str, float] = {}
    for name, arguments in commands.items():
        times = seconds_of(arguments)
        medians[name] = statistics.median(times)
        print(f"{name:<10} {medians[name]:9.3f} {min(times):9.3f} {max(times):9.3f} {BUDGET_SECONDS[name]:9.1f}")
    answer = subprocess.run([VLMPLAN, *commands["recommend"], "--json"], check=True, capture_output=True, text=True)
    considered = json.loads(answer.stdout)["num_setups_considered"]
    print(
        f"{considered} setups considered, {considered / medians['recommend']:,.0f} a second, start of Python included"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
