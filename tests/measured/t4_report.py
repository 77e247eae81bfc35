"""The table of published runs on a T4 beside estimates; ``python tests/measured/t4_report.py`` rewrites it."""

import csv
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

from click.testing import CliRunner

from vlmplan.cli.command_line import cli
from vlmplan.units import MIB

HERE = Path(__file__).parent
TABLE = HERE / "t4.md"
with (HERE / "t4_runs.csv").open(encoding="utf-8") as file:
    RUNS: list[dict[str, str]] = list(csv.DictReader(file))
OPTIONS = (
    "--gpu t4 --zero-stage none --precision fp16 --no-autocast --lora-targets q_proj,k_proj,v_proj,o_proj "
    "--input-gradients peft --loss full --activation-checkpointing"
).split()
OPTIONS_OF_METHOD = {"lora": [], "qlora": ["--no-double-quant", "--kbit-upcast"]}
COUNTERS = ("forward", "backward", "reserved", "device", "seconds")
HEADER = """# Published runs on a T4

Single steps of LoRA and 4-bit LoRA on a Tesla T4 with transformers 5.0 and 5.17, published with the script that took
them ([fitcheck-llm 0.3.1](https://pypi.org/project/fitcheck-llm/0.3.1/), data/measurements of its source, MIT;
`t4_runs.csv`). The step is a loop of the script's own without autocast, and peft prepares 4-bit models for it, so all
between their 4-bit products is float32. Of memory nothing is fitted to these runs but what the CUDA context of a T4
takes, of seconds nothing. `forward` and `backward` are peaks of allocated bytes, `device` is what the process has on
the card. Left out are runs whose sdpa the script had patched to repeat keys and values of grouped heads, which torch's
efficient kernel refuses on this card, and repetitions of a run. The script's own estimator stands beside, with what it
said of each run as it was published: its overhead of the device is fitted to most of them. What is missing of forward
and backward are rests of blocks, which torch counts and the replay behind `reserved` has. `python
tests/measured/t4_report.py` rewrites this file.

"""


@cache
def answer(place: int) -> dict[str, Any]:
    """What ``estimate`` says of the run at this place of the file."""
    run = RUNS[place]
    model = str(HERE / run["model"]) if "/" in run["model"] else run["model"]
    asked = ["estimate", "--model", model, *OPTIONS, *OPTIONS_OF_METHOD[run["method"]], "--method", run["method"]]
    asked += ["--lora-rank", run["lora_rank"], "--micro-batch", run["micro_batch"], "--seq-len", run["seq_len"]]
    result = CliRunner().invoke(cli, [*asked, "--attention", run["attention"], "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def errors(place: int) -> dict[str, float]:
    """Estimate over measurement, less one, by counter."""
    run, found = RUNS[place], answer(place)
    peaks = {phase["name"]: phase["peak_bytes"] for phase in found["phases"]}
    return {
        "forward": peaks["forward"] / MIB / float(run["forward_mib"]) - 1,
        "backward": peaks["backward"] / MIB / float(run["backward_mib"]) - 1,
        "reserved": found["peak_reserved_bytes"] / MIB / float(run["reserved_mib"]) - 1,
        "device": found["peak_device_bytes"] / MIB / float(run["device_mib"]) - 1,
        "seconds": found["step_seconds"] / float(run["step_seconds"]) - 1,
    }


def is_in_range(place: int) -> bool:
    """Whether the measured seconds are within those at best and at worst."""
    best, worst = answer(place)["step_seconds_range"]
    return best <= float(RUNS[place]["step_seconds"]) <= worst


def table() -> str:
    return HEADER + "\n".join([*_summary(), "", *_rows(), ""])


def _summary() -> Iterator[str]:
    found = [errors(place) for place in range(len(RUNS))]
    yield "| counter | runs | median error | mean | worst |"
    yield "|---|---:|---:|---:|---:|"
    for counter in COUNTERS:
        yield _summarised(counter, [error[counter] for error in found])
    for counter in ("backward", "device"):
        signed = [float(run[f"author_{counter}_mib"]) / float(run[f"{counter}_mib"]) - 1 for run in RUNS]
        yield _summarised(f"{counter}, by the script's own estimator", signed)
    num_within = sum(is_in_range(place) for place in range(len(RUNS)))
    yield ""
    yield f"{num_within} of {len(RUNS)} took no less than at best and no more than at worst."


def _summarised(name: str, signed: Sequence[float]) -> str:
    sizes = [abs(error) for error in signed]
    return (
        f"| {name} | {len(signed)} | {100 * median(sizes):.1f}% | {100 * mean(sizes):.1f}% | "
        f"{100 * max(signed):+.1f}%, {100 * min(signed):+.1f}% |"
    )


def _rows() -> Iterator[str]:
    yield "| run | " + " | ".join(COUNTERS) + " | measured GiB | s |"
    yield "|---|" + "---:|" * (len(COUNTERS) + 2)
    for place, run in enumerate(RUNS):
        name = f"{Path(run['model']).name} {run['method']} r{run['lora_rank']}, {run['micro_batch']} x {run['seq_len']}"
        cells = [f"{100 * error:+.1f}%" for error in errors(place).values()]
        measured = f"{float(run['device_mib']) / 1024:.2f} | {float(run['step_seconds']):.2f}"
        yield f"| {name}, {run['attention']} | {' | '.join(cells)} | {measured} |"


if __name__ == "__main__":
    TABLE.write_text(table())
