"""Published figures of techniques beside what vlmplan says of the same setups.

``python tests/published/published_report.py`` rewrites README.md; a minute, most of it for the longest samples.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from vlmplan.architecture.losses.cross_entropy import full_loss, whole_logits
from vlmplan.architecture.losses.liger import liger_loss
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import GraphNode
from vlmplan.architecture.trace import GradientReady, Span
from vlmplan.cli.command_line import cli
from vlmplan.units import GIB, DType

HERE = Path(__file__).parent
README = HERE / "README.md"
CASES: dict[str, Any] = yaml.safe_load((HERE / "cases.yaml").read_text())
SHARED = "--method full --attention flash_attention_2 --expandable-segments"
STEPS = 1.02
"""By how much lengths that are tried differ."""
PROMISED_ERROR = 0.10
COUNTERS = {"allocated": "peak_allocated_bytes", "device": "peak_device_bytes"}
HEADER = """# Published figures of techniques

What authors published of techniques that make room, beside what vlmplan says of the same setups. Nothing is fitted to
it. Options and sources are in `cases.yaml`; `python tests/published/published_report.py` rewrites this file. Weights
and states in 16 bit (31.38 and 18.93 GiB) are in [published measurements](../measured/README.md).

A published length is one that was trained, not the longest that there is room for; a planned one is rounded down, with
room on the hosts too, where inputs of layers wait in pinned memory of whole powers of two.

"""


def estimated(options: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["estimate", *shlex.split(f"{SHARED} {options}"), "--json"])
    assert result.exit_code in (0, 3), result.output
    return json.loads(result.stdout)


def has_room(options: str, tokens: int) -> bool:
    """On the GPUs, all of them, and on the hosts."""
    answer = estimated(f"{options} --seq-len {tokens}")
    return answer["verdict"] in ("fits", "tight")


def longest(options: str, start: int) -> int:
    """The longest sample that there is room for, between an eighth and eight times ``start``."""
    low, high = start // 8, start * 8
    while high > low * STEPS:
        middle = round((low * high) ** 0.5)
        low, high = (middle, high) if has_room(options, middle) else (low, middle)
    return low


def peak_gib(case: dict[str, Any]) -> float:
    return estimated(case["options"])[COUNTERS[case["counter"]]] / GIB


def head_gib(head: dict[str, int], loss: str) -> float:
    """The highest moment of an output head and its loss by themselves, forward and backward, weight and its gradient,
    hidden states and theirs included."""
    tape = Tape(follows_weights=False)
    linear = Linear(head["width"], head["vocabulary"])
    linear.weight.dtype, linear.weight.requires_grad = DType.BFLOAT16, True
    held = linear.weight.num_bytes
    with tape.section("head"):
        leaf = GraphNode((), (), (), lambda node, grads: (), None)
        leaf.section = "head"
        hidden = tape.tensor((1, head["tokens"], head["width"]), DType.BFLOAT16, leaf)
        value = liger_loss(hidden, linear) if loss == "liger" else full_loss(whole_logits(hidden, linear))
    tape.run_backward(value)
    trace, live, peak = tape.trace(), 0, 0
    for phase in ("forward", "backward"):
        for section in trace.sections.values():
            for event in getattr(section, phase):
                if isinstance(event, Span):
                    peak, live = max(peak, live + event.peak_bytes), live + event.delta_bytes
                else:
                    assert isinstance(event, GradientReady)
    return (held + peak) / GIB


def savings_gib(case: dict[str, Any]) -> tuple[float, float]:
    """Without and with the technique."""
    if "head" in case:
        without, beside = (head_gib(case["head"], loss) for loss in case["losses"])
        return without, beside
    found: list[float] = []
    for options in (case["options"], f"{case['options']} {case['with']}"):
        phases = {phase["name"]: phase for phase in estimated(options)["phases"]}
        found.append(phases[case["phase"]]["resident_bytes"] / GIB)
    return found[0], found[1]


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def mark(self, case: dict[str, Any]) -> str:
        if "because" not in case:
            return ""
        self.lines.append(f"{len(self.lines) + 1}. {case['id'].removeprefix('... ')}: {case['because'].strip()}.")
        return f" [{len(self.lines)}]"


def source(case: dict[str, Any]) -> str:
    return f"[{case['source']}]({CASES['sources'][case['source']]})"


def longest_table() -> list[str]:
    rows = ["| longest sample | source | published tokens | planned tokens |", "|---|---|---:|---:|"]
    for case in CASES["longest"]:
        said = f"{case['tokens']:,}" if "tokens" in case else f"less than {case['limit']:,}"
        found = longest(case["options"], case.get("tokens", case.get("limit")))
        rows.append(f"| {case['id']} | {source(case)} | {said} | {float(f'{found:.2g}'):,.0f} |")
    return rows


def peaks_table(notes: Notes) -> list[str]:
    rows = ["| GPU memory | source | counter | published GiB | planned GiB | error |", "|---|---|---|---:|---:|---:|"]
    for case in CASES["peaks"]:
        found = peak_gib(case)
        error = f"{100 * (found / case['gib'] - 1):+.1f}%{notes.mark(case)}"
        rows.append(
            f"| {case['id']} | {source(case)} | {case['counter']} | {case['gib']:.2f} | {found:.2f} | {error} |"
        )
    return rows


def savings_table(notes: Notes) -> list[str]:
    rows = ["| saving | source | published GiB | saved | planned GiB | saved |", "|---|---|---:|---:|---:|---:|"]
    for case in CASES["savings"]:
        without, beside = savings_gib(case)
        before, after = case["gib"]
        published = f"{before:.1f} → {after:.1f} | {before - after:.1f}"
        planned = f"{without:.1f} → {beside:.1f} | {without - beside:.1f}"
        rows.append(f"| {case['id']} | {source(case)} | {published} | {planned}{notes.mark(case)} |")
    return rows


def text() -> str:
    notes = Notes()
    tables = [longest_table(), peaks_table(notes), savings_table(notes)]
    end = ["Where they differ by more than 10%:", "", *notes.lines, ""]
    return HEADER + "\n\n".join("\n".join(rows) for rows in [*tables, end])


if __name__ == "__main__":
    README.write_text(text(), encoding="utf-8")
