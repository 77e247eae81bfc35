"""The table of published measurements beside estimates; ``python tests/measured/measured_report.py`` rewrites it."""

import json
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from vlmplan.cli.command_line import cli
from vlmplan.units import GIB

HERE = Path(__file__).parent
FOLDERS = ("deepspeed_examples", "deepspeed_course/", "models/")
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

Versions of the libraries differ: where a Trainer frees the logits before backward, `--loss model` says so, where it
updates by torch's fused kernel, `--fused-optimizer`.

| run | source | counter | measured GiB | estimated GiB | error |
|---|---|---|---:|---:|---:|
"""


VERDICTS = """
## Did it run?

Setups that had room or ran out of memory, as their authors say, and the verdict of the estimate. Shards of fms are
those of the first FSDP, planned as FSDP2's.

| setup | source | ran | planned GiB | of usable | verdict |
|---|---|---|---:|---:|---|
"""


def command_of(case: dict[str, Any]) -> list[str]:
    own = shlex.split(case["options"])
    shared = options_of(CASES["shared_options"].get(case["source"], ""))
    words = [*without(shared, own), *own]
    return ["estimate", *(str(HERE / word) if word.startswith(FOLDERS) else word for word in words)]


def without(shared: list[list[str]], own: list[str]) -> list[str]:
    """The words of shared options that a case does not give itself, switched on or off."""
    given = {_positive(word) for word in own}
    return [word for group in shared if _positive(group[0]) not in given for word in group]


def _positive(option: str) -> str:
    """An option, or what one switches off."""
    return option.replace("--no-", "--", 1)


def options_of(options: str) -> list[list[str]]:
    """Each option with its value."""
    found: list[list[str]] = []
    for word in shlex.split(options):
        if word.startswith("--"):
            found.append([])
        found[-1].append(word)
    return found


def answer_of(case: dict[str, Any]) -> dict[str, Any]:
    """The estimate of a setup that may not fit."""
    result = _result_of(tuple(command_of(case)))
    assert result.exit_code in (0, 3), result.output
    return json.loads(result.stdout)


@cache
def _result_of(words: tuple[str, ...]) -> Result:
    """Tests of each case and the table of all of them ask for the same."""
    return CliRunner().invoke(cli, [*words, "--json"])


def estimated(case: dict[str, Any]) -> dict[str, float]:
    """GiB of the counters that were read."""
    result = _result_of(tuple(command_of(case)))
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    return {counter: answer[KEY_OF_COUNTER[counter]] / GIB for counter in case["measured_gib"]}


def source_of(case: dict[str, Any]) -> str:
    """A source by its name, or the address of a thread."""
    said = case["source"]
    if said in CASES["sources"]:
        return f"[{said}]({CASES['sources'][said]})"
    thread = said.removeprefix("https://github.com/")
    return f"[{thread}]({said})"


def verdicts() -> str:
    rows: list[str] = []
    for case in CASES["verdicts"]:
        answer = answer_of(case)
        device, usable = answer["peak_device_bytes"] / GIB, answer["gpu"]["usable_bytes"] / GIB
        ran, verdict = "yes" if case["ran"] else "out of memory", answer["verdict"].replace("_", " ")
        rows.append(f"| {case['id']} | {source_of(case)} | {ran} | {device:.1f} | {usable:.1f} | {verdict} |")
    return VERDICTS + "\n".join(rows) + "\n"


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
            source = source_of(case)
            signed = f"{100 * error(case, counter, gib):+.1f}%{mark}"
            rows.append(f"| {case['id']} | {source} | {counter} | {measured:.2f} | {gib:.2f} | {signed} |")
    return HEADER + "\n".join([*rows, "", "Why an estimate is more than 10% away:", "", *notes, ""]) + verdicts()


if __name__ == "__main__":
    TABLE.write_text(table())
