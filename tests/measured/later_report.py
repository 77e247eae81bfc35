"""Published figures found later, beside estimates; ``python tests/measured/later_report.py`` rewrites later.md.

Takes some ten minutes, most of it for samples whose lengths vary, which are replayed micro batch by micro batch.
"""

import json
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import yaml
from click.testing import CliRunner
from measured_report import HERE, KEY_OF_COUNTER, options_of, without

from vlmplan.cli.command_line import cli
from vlmplan.units import GIB

TABLE = HERE / "later.md"
LATER: dict[str, Any] = yaml.safe_load((HERE / "later.yaml").read_text())
VARY = "--sample-lengths"
LENGTHS = ("known", "assumed", "vary")
PROMISED_ERROR = 0.10
HEADER = """# Published figures that were found later

Peaks and outcomes of runs that were looked for when the memory model stood, of ms-swift, axolotl, TRL's and
Unsloth's notebooks, Hugging Face's stack and loops beside it, torchtune, NeMo AutoModel, LongLoRA and XTuner, and of
users' threads. Each was written down with its setup, what is known of it and what had to be assumed before vlmplan
was asked (`later.yaml`). `first` is what it said then. Where `now` differs, not the model but the written setup was
mended, by what the source's own code says:
QLoRA of can-i-finetune is prepared by peft, which the options left out; peft 0.5 had adapters in float32; the
default update of transformers is torch's foreach kernel with torch below 2.8; TRL of 2025 prepared 4-bit models by
peft; qwen_vl_utils makes frames of videos larger than ms-swift asks. Unsloth's notebooks on a T4 were first read as
computing in bf16, which they do not do there. No formula was changed for these figures. Where the source does not
say how long samples are or what they show, that is assumed, and such figures have lines of their own. Where lengths
vary, `now` is from a plan in which all samples have the limit to the most of four orders of evenly spread lengths,
which is what `estimate` prints as reserved; a figure between the two is no error. What was said first of these is
of one order, which was another for each micro batch.
`python tests/measured/later_report.py` rewrites this file.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure: GiB as published, as first said, and now, with the least where lengths vary."""

    run: str
    source: str
    counter: str
    published: float
    first: float | None
    least: float
    most: float
    lengths: str
    """``known``, ``assumed`` or ``vary``."""

    @property
    def error(self) -> float:
        """Of the end that is nearer, 0 between both."""
        if self.least <= self.published <= self.most:
            return 0.0
        nearest = self.least if self.published < self.least else self.most
        return nearest / self.published - 1

    @property
    def first_error(self) -> float | None:
        return None if self.first is None else self.first / self.published - 1


def command_of(source: str, options: str, script: str | None) -> list[str]:
    """What a case asks, ``script`` being a file of its arguments of ms-swift."""
    own = shlex.split(options)
    shared = options_of(LATER["shared_options"].get(source, ""))
    words = [*without(shared, own), *own]
    words = [str(HERE / word) if word.startswith("later_models/") else word for word in words]
    return ["estimate", *words, *(() if script is None else ("--config", script)), "--json"]


@cache
def _answer(source: str, options: str, swift: str | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        script = None if swift is None else Path(folder, "train.sh")
        if script is not None:
            groups = list(options_of(swift or ""))
            kind = "rlhf" if any(group[0] == "--rlhf_type" for group in groups) else "sft"
            script.write_text(" \\\n    ".join([f"swift {kind}", *map(" ".join, groups)]) + "\n")
        result = CliRunner().invoke(cli, command_of(source, options, None if script is None else str(script)))
    assert result.exit_code in (0, 3), (options, result.output, result.exception)
    return json.loads(result.stdout)


def answer_of(case: dict[str, Any]) -> dict[str, Any]:
    return _answer(case["source"], case["options"], case.get("swift"))


def compared(case: dict[str, Any]) -> Iterator[Compared]:
    answer = answer_of(case)
    for counter, published in case["measured_gib"].items():
        said = answer[KEY_OF_COUNTER[counter]] / GIB
        span = answer["reserved_range"] if VARY in case["options"] else None
        yield Compared(
            run=case["id"],
            source=case["source"],
            counter=counter,
            published=published,
            first=case.get("first_gib", {}).get(counter),
            least=said if span is None else span[0] / GIB,
            most=said,
            lengths=case.get("lengths", "known") if span is None else "vary",
        )


def is_explained(case: dict[str, Any]) -> bool:
    """Whether a figure that is more than 10% off says why, and none else does."""
    is_close = all(abs(one.error) <= PROMISED_ERROR for one in compared(case))
    return is_close != ("because" in case)


def is_right(case: dict[str, Any]) -> bool:
    return (answer_of(case)["verdict"] != "does_not_fit") == case["ran"]


def source_of(said: str) -> str:
    if said in LATER["sources"]:
        return f"[{said}]({LATER['sources'][said]})"
    parts = said.removeprefix("https://github.com/").split("/")
    return f"[{'/'.join((*parts[:2], parts[-1]))}]({said})"


class Notes:
    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, case: dict[str, Any]) -> str:
        if "because" not in case:
            return ""
        return f" [{self.numbers.setdefault(case['because'].strip(), len(self.numbers) + 1)}]"

    def lines(self) -> list[str]:
        return [f"{number}. {text[0].upper()}{text[1:]}." for text, number in self.numbers.items()]


def row(one: Compared, mark: str = "") -> str:
    first = "-" if one.first is None else f"{one.first:.2f}"
    now = f"{one.least:.2f} to {one.most:.2f}" if one.lengths == "vary" else f"{one.most:.2f}"
    return (
        f"| {one.run} | {source_of(one.source)} | {one.counter} | {one.published:.2f} | {first} | {now} | "
        f"{100 * one.error:+.1f}%{mark} |"
    )


def summary(found: list[Compared]) -> list[str]:
    """Errors by source, and of all; of what was first said as well."""
    lines = [
        "| source | lengths | figures | median error | mean | worst | at first: median | mean |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    groups = {(one.source, one.lengths): [] for one in found}
    for one in found:
        groups[one.source, one.lengths].append(one)
    groups |= {("all", kind): [one for one in found if one.lengths == kind] for kind in LENGTHS}
    for (source, lengths), several in groups.items():
        sizes = [abs(one.error) for one in several]
        firsts = [abs(one.first_error) for one in several if one.first_error is not None]
        worst = max(several, key=lambda one: abs(one.error)).error
        lines.append(
            f"| {source_of(source) if source != 'all' else 'all'} | {lengths} | {len(several)} | "
            f"{100 * median(sizes):.1f}% | {100 * mean(sizes):.1f}% | {100 * worst:+.1f}% | "
            f"{100 * median(firsts):.1f}% | {100 * mean(firsts):.1f}% |"
        )
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Seconds of a step as published, as planned, and at the ends of the range; ``lengths`` as of ``Compared``."""

    run: str
    source: str
    lengths: str
    published: float
    planned: float
    best: float
    worst: float

    @property
    def error(self) -> float:
        return self.planned / self.published - 1

    @property
    def is_in_range(self) -> bool:
        return self.best <= self.published <= self.worst


def timed(case: dict[str, Any]) -> Timed:
    answer = answer_of(case)
    best, worst = answer["step_seconds_range"]
    return Timed(
        run=case["id"],
        source=case["source"],
        lengths="vary" if VARY in case["options"] else case.get("lengths", "known"),
        published=case["measured_seconds"],
        planned=answer["step_seconds"],
        best=best,
        worst=worst,
    )


def seconds_summary(found: list[Timed]) -> list[str]:
    """Errors, and how many are in the range, by what is known of the samples."""
    lines = ["| lengths | step times | median error | worst | in the range |", "|---|---:|---:|---:|---:|"]
    for lengths in LENGTHS:
        several = [one for one in found if one.lengths == lengths]
        if several:
            errors = [one.error for one in several]
            lines.append(
                f"| {lengths} | {len(several)} | {100 * median(map(abs, errors)):.1f}% | {100 * max(errors):+.1f}%, "
                f"{100 * min(errors):+.1f}% | {sum(one.is_in_range for one in several)} |"
            )
    return lines


def seconds_rows(found: list[Timed]) -> list[str]:
    """Of cases whose source has seconds of a step; those of can-i-finetune have the first of two or three in them."""
    return [
        "| run | source | lengths | published s | planned s | at best | at worst | error |",
        "|---|---|---|---:|---:|---:|---:|---:|",
        *(
            f"| {one.run} | {source_of(one.source)} | {one.lengths} | {one.published:.3g} | {one.planned:.3g} | "
            f"{one.best:.3g} | {one.worst:.3g} | {100 * one.error:+.0f}% |"
            for one in found
        ),
    ]


def verdict_row(case: dict[str, Any], mark: str = "") -> str:
    answer = answer_of(case)
    device, usable = answer["peak_device_bytes"] / GIB, answer["gpu"]["usable_bytes"] / GIB
    ran, verdict = "yes" if case["ran"] else "out of memory", answer["verdict"].replace("_", " ")
    return f"| {case['id']} | {source_of(case['source'])} | {ran} | {device:.1f} | {usable:.1f} | {verdict}{mark} |"


def text() -> str:
    notes, reasons = Notes(), Notes()
    found = [(case, one) for case in LATER["cases"] for one in compared(case)]
    rows = [row(one, notes.mark(case)) for case, one in found]
    seconds = [timed(case) for case in LATER["cases"] if "measured_seconds" in case]
    outcomes = [verdict_row(case, reasons.mark(case)) for case in LATER["verdicts"]]
    num_right = sum(map(is_right, LATER["verdicts"]))
    head = "| run | source | counter | published GiB | first | now | error |\n|---|---|---|---:|---:|---:|---:|"
    ran = "| setup | source | ran | planned GiB | of usable | verdict |\n|---|---|---|---:|---:|---|"
    parts = [
        "\n".join(summary([one for _, one in found])),
        "\n".join([head, *rows]),
        "Why a figure is more than 10% away:",
        "\n".join(notes.lines()),
        "## Seconds of a step",
        "\n".join(seconds_summary(seconds)),
        "\n".join(seconds_rows(seconds)),
        LATER["seconds"].strip(),
        "## Did it run?",
        f"{num_right} of {len(outcomes)} verdicts are what happened. What `tight` says is that it may not.",
        "\n".join([ran, *outcomes]),
        "Why the others are not:",
        "\n".join(reasons.lines()),
    ]
    return HEADER + "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
