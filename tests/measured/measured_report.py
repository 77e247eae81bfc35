"""The table of published measurements beside estimates; ``python tests/measured/measured_report.py`` rewrites it."""

import json
import shlex
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from vlmplan.cli.command_line import cli
from vlmplan.units import GIB

HERE = Path(__file__).parent
FOLDER = "deepspeed_examples"
TABLE = HERE / "README.md"
CASES: dict[str, Any] = yaml.safe_load((HERE / "cases.yaml").read_text())
KEY_OF_COUNTER = {
    "allocated": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "device": "peak_device_bytes",
}
HEADER = """# Published measurements

Peaks of real fine-tuning runs as their authors published them, beside the estimate. No constant of the memory model is
fitted to them. `allocated` is `torch.cuda.max_memory_allocated`, `reserved` is `max_memory_reserved`, `device` is
nvidia-smi above its idle value. Options, sources and model files are in `cases.yaml`; `python
tests/measured/measured_report.py` rewrites this file, and `test_measured.py` fails when it is out of date.

| run | source | counter | measured GiB | estimated GiB | error |
|---|---|---|---:|---:|---:|
"""


def command_of(case: dict[str, Any]) -> list[str]:
    words = [*shlex.split(CASES["shared_options"][case["source"]]), *shlex.split(case["options"])]
    return ["estimate", *(str(HERE / word) if word.startswith(FOLDER) else word for word in words)]


def estimated(case: dict[str, Any]) -> dict[str, float]:
    """GiB of the counters that were read."""
    result = CliRunner().invoke(cli, [*command_of(case), "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    return {counter: answer[KEY_OF_COUNTER[counter]] / GIB for counter in case["measured_gib"]}


def error(case: dict[str, Any], counter: str, estimate: float) -> float:
    return estimate / case["measured_gib"][counter] - 1


def table() -> str:
    rows: list[str] = []
    notes: list[str] = []
    for case in CASES["cases"]:
        mark = ""
        if "because" in case:
            mark = f" [{len(notes) + 1}]"
            notes.append(f"{len(notes) + 1}. {case['id']}: {case['because']}.")
        for counter, gib in estimated(case).items():
            measured = case["measured_gib"][counter]
            source = f"[{case['source']}]({CASES['sources'][case['source']]})"
            signed = f"{100 * error(case, counter, gib):+.1f} %{mark}"
            rows.append(f"| {case['id']} | {source} | {counter} | {measured:.2f} | {gib:.2f} | {signed} |")
    return HEADER + "\n".join([*rows, "", "Why an estimate is more than 10 % away:", "", *notes, ""])


if __name__ == "__main__":
    TABLE.write_text(table())
