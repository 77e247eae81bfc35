"""What README.md and docs/ show of the project: what commands print, pictures, the packages, figures of reports.

A block of kind ``console`` holds commands, each after ``$``, and what they print. A comment right above it says what is
special, parts divided by ``, ``: ``not run: WHY``, ``sweep`` (takes long, or needs the training libraries), ``exit 3``,
``on 2026-11-21`` (the day on which it is asked, where prices have an age), ``output varies``, ``seconds vary``.
Commands of a page run in one empty folder, in which each block above them that has a title is a file. A block of kind
``pycon`` is a session with Python's prompt; those of a page share their names. To rewrite all that is shown:

PYTHONPATH=tests python tests/tools/documents.py [--sweep] [FILE...]
"""

import ast
import contextlib
import doctest
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import pytest

from cli_calls import call, isolate
from vlmplan.calibration import QUANTITIES
from vlmplan.errors import VlmplanError
from vlmplan.launch.demo import write_demo_model

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PICTURES = DOCS / "images"
"""A picture that a page's commands write under the same name is the page's to make again."""
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
SOURCES = (Path("planner/vlmplan"), Path("trainer/vlmplan_trainer"))
COLUMNS = 100
"""Of the terminal that is shown."""
BLOCK = re.compile(r'(?:^<!-- ([^\n]+) -->\n)?^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
CUT = re.compile(r"(.*?)(?: \| (head -|tail -|grep )(\S+))?")
DEMO_MODEL = "vlmplan-demo/tiny-model"
"""What a page has besides that uses it without running the demo."""
SECONDS = re.compile(r"\d+\.\d s\b")
SECTION = re.compile(r"^(<!-- made of (\w+) -->\n)\n?.*?(\n?<!-- end -->)$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block and what the comment above it says."""

    kind: str
    title: str | None
    text: str
    marks: tuple[str, ...]

    @property
    def is_run(self) -> bool:
        return self.kind in ("console", "pycon") and self.why_not is None

    @property
    def why_not(self) -> str | None:
        found = [mark.partition(": ")[2] for mark in self.marks if mark.startswith("not run: ")]
        return found[0] if found else None

    @property
    def is_long(self) -> bool:
        return "sweep" in self.marks

    @property
    def day(self) -> date:
        found = [date.fromisoformat(mark[3:]) for mark in self.marks if mark.startswith("on ")]
        return found[0] if found else date.today()

    @property
    def exit_code(self) -> int:
        found = [int(mark[5:]) for mark in self.marks if mark.startswith("exit ")]
        return found[0] if found else 0

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Each command as it is written, over as many lines as it takes, and what is shown under it."""
        found = re.split(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n", self.text, flags=re.MULTILINE)
        assert found[0] == "", f"a console block begins with $ and a command: {self.text}"
        return list(zip(found[1::2], found[2::2], strict=True))


def block_of(found: re.Match[str]) -> Block:
    marks, kind, title, text = found.groups()
    parts = () if marks is None else (marks,) if marks.startswith("not run: ") else tuple(marks.split(", "))
    return Block(kind, title, text, parts)


def blocks(text: str) -> list[Block]:
    return [block_of(found) for found in BLOCK.finditer(text)]


def run(command: str, day: date) -> tuple[int, str]:
    """The exit code of a command and what it prints, to standard output and then to standard error."""
    joined = command.replace("\\\n", " ")
    words, cut, part = CUT.fullmatch(joined).groups()
    if words.startswith("vlmplan "):
        with asked_on(day):
            called = call(*shlex.split(words)[1:])
        code, printed = called.code, called.out + called.err
    else:
        done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
        code, printed = done.returncode, done.stdout + done.stderr
    lines = printed.splitlines(keepends=True)
    if cut == "grep ":
        lines = [line for line in lines if re.search(part, line)]
    elif cut is not None:
        lines = lines[: int(part)] if cut == "head -" else lines[-int(part) :]
    return code, "".join(lines)


@contextlib.contextmanager
def asked_on(day: date) -> Generator[None]:
    """Prices have the age of this day, and lines the width that is shown."""

    class Day(date):
        @classmethod
        def today(cls) -> date:
            return day

    with mock.patch("vlmplan.commands.day.date", Day), mock.patch.dict(os.environ, COLUMNS=str(COLUMNS)):
        yield


def interpreted(block: Block, names: dict[str, Any]) -> str:
    """The text of a block with what Python's prompt shows now; ``names`` are those of the session."""
    parts: list[str] = []
    for example in doctest.DocTestParser().get_examples(block.text):
        out = io.StringIO()
        with asked_on(block.day), contextlib.redirect_stdout(out):
            try:
                exec(compile(example.source, "<page>", "single"), names)
            except VlmplanError as error:
                out.write("Traceback (most recent call last):\n  ...\n")
                out.write("".join(traceback.format_exception_only(error)))
        first, *more = example.source.splitlines()
        parts += [f">>> {first}\n", *(f"... {line}\n" for line in more), out.getvalue()]
    return "".join(parts)


def ran(block: Block) -> str:
    """The text of a block with what its commands print now. What varies stays as it is shown."""
    parts: list[str] = []
    for place, (command, shown) in enumerate(block.calls, 1):
        code, printed = run(command, block.day)
        wanted = block.exit_code if place == len(block.calls) else 0
        assert code == wanted, f"{command} returned {code}, not {wanted}:\n{printed}"
        differs_in_seconds = "seconds vary" in block.marks and SECONDS.sub("", printed) == SECONDS.sub("", shown)
        stays = "output varies" in block.marks or differs_in_seconds
        parts += [f"$ {command}\n", shown if stays else printed]
    return "".join(parts)


def with_samples(text: str, *, runs_long: bool = False) -> str:
    """The page with what its commands print now, in the folder where this is called."""
    if runs_long and DEMO_MODEL in text and "$ vlmplan launch --demo\n" not in text:
        write_demo_model(Path(DEMO_MODEL))

    names: dict[str, Any] = {}

    def sample(found: re.Match[str]) -> str:
        block = block_of(found)
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, encoding="utf-8")
        if not block.is_run or (block.is_long and not runs_long):
            return found.group()
        now = interpreted(block, names) if block.kind == "pycon" else ran(block)
        return found.group().replace(block.text, now)

    return BLOCK.sub(sample, text)


def pictures_here() -> Iterator[tuple[Path, str]]:
    """Each picture that the documents show and that a command has written here, and what it is now."""
    names = {name for page in PAGES for name in re.findall(r"images/([\w-]+\.svg)", page.read_text(encoding="utf-8"))}
    for name in sorted(names):
        if Path(name).exists():
            yield PICTURES / name, Path(name).read_text(encoding="utf-8")


def summary(package: Path) -> str:
    """The first sentence of a package, without the full stop."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    text = " ".join(docstring.split("\n\n")[0].split()).replace("``", "`")
    return re.split(r"(?<=[a-z)\"'`])\. |\.$", text)[0]


def packages() -> str:
    """A line for every package, the deeper ones under those that hold them."""
    lines: list[str] = []
    for source in SOURCES:
        for file in sorted((ROOT / source).rglob("__init__.py"), key=lambda file: file.parent):
            inside = file.parent.relative_to(ROOT / source).parts
            name = inside[-1] if inside else source.as_posix()
            lines.append(f"{'    ' * len(inside)}- `{name}/`: {summary(file.parent)}")
    return "\n".join(lines) + "\n"


def layers() -> str:
    """The layers of imports as the contract in pyproject.toml has them, with what is in each."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (rows,) = re.findall(r"^exhaustive = true\nlayers = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    found = re.findall(r'# (.+)\n\s+"([^"]+)",', rows.replace("\\\n", "").replace('"""', '"'))
    lines = [
        f"{place}. {about[0].upper()}{about[1:]}: {', '.join(f'`{name.strip()}`' for name in names.split(' : '))}"
        for place, (about, names) in enumerate(found, start=1)
    ]
    return "\n".join(lines) + "\n"


def table_after(report: Path, heading: str) -> list[list[str]]:
    """The cells of the first table of a report whose head has ``heading``, without its head."""
    lines = report.read_text(encoding="utf-8").splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("|") and heading in line)
    rows: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def accuracy() -> str:
    """The headline figures of the reports under tests/, as they stand there."""
    rehearsed = ROOT / "tests/rehearsed/README.md"
    text = rehearsed.read_text(encoding="utf-8")
    cases, models = re.findall(r"^(\d+) rehearsals of (\d+) models", text, re.MULTILINE)[0]
    whole = next(row for row in table_after(rehearsed, "most over") if row[0] == "the whole run")
    (reserved,) = re.findall(r"replayed over both: (\S+) in the median, (\S+) and (\S+) at the most", text)
    measured = table_after(ROOT / "tests/measured/README.md", "measured GiB")
    num_runs = len({row[0] for row in measured})
    errors = sorted(float(re.match(r"[-+.\d]+", row[5]).group()) for row in measured)
    sizes = sorted(map(abs, errors))
    timed = {row[0]: row for row in table_after(ROOT / "tests/timing/README.md", "90th percentile")}
    seconds = timed["held back and later, comparable"]
    lines = [
        "| what | held against | median error | worst |",
        "|---|---|---:|---:|",
        f"| peak of allocated bytes | {cases} rehearsals of {models} models | {whole[1]} | {whole[2]}, {whole[3]} |",
        f"| reserved bytes | the same | {reserved[0]} | {reserved[1]}, {reserved[2].rstrip('.')} |",
        f"| peak of real runs | {len(errors)} published peaks of {num_runs} runs | {sizes[len(sizes) // 2]:.1f}% |"
        f" {errors[-1]:+.1f}%, {errors[0]:+.1f}% |",
        found_later(),
        *runs_on_a_gpu(),
        *runs_on_a_t4(),
        f"| seconds of a step | {seconds[1]} published runs, held back | {seconds[2]} | 9 of 10 within {seconds[3]} |",
        f"| the same by rule of thumb | the same | {seconds[5]} | 9 of 10 within {seconds[6]} |",
        seconds_found_later(),
    ]
    return "\n".join(lines) + "\n"


def found_later() -> str:
    """Of published figures found when the model stood: the line of those whose samples have known lengths."""
    rows = table_after(ROOT / "tests/measured/later.md", "at first")
    (known,) = (row for row in rows if row[:2] == ["all", "known"])
    middle, worst = known[3], known[5]
    return f"| the same, found later | {known[2]} published peaks | {middle} | {worst} |"


def seconds_found_later() -> str:
    """Of step times that were found with those figures: the line of those whose samples have known lengths."""
    rows = table_after(ROOT / "tests/measured/later.md", "in the range")
    (known,) = (row for row in rows if row[0] == "known")
    return f"| seconds of a step, found later | {known[1]} published step times | {known[2]} | {known[3]} |"


def runs_on_a_gpu() -> Iterator[str]:
    """Of the campaign's runs that were measured: lines of what tensors take, of the device, of calibrated seconds."""
    rows = [row for row in table_after(ROOT / "tests/gpu/README.md", "worst phase") if row[1] != "-"]
    columns = {
        "what tensors take": (f"{len(rows)} runs of our own on an H200 and an H100", 5),
        "what the device shows": ("the same", 8),
        "seconds of a step, after `vlmplan calibrate`": ("the same", 11),
    }
    for what, (against, column) in columns.items():
        errors = [float(row[column].rstrip("%")) for row in rows if row[column] != "-"]
        middle = median(map(abs, errors))
        yield f"| {what} | {against} | {middle:.1f}% | {max(errors):+.1f}%, {min(errors):+.1f}% |"


def runs_on_a_t4() -> Iterator[str]:
    """Of runs that were published: lines of what tensors take, of the device and of seconds without a calibration."""
    rows = {row[0]: row for row in table_after(ROOT / "tests/measured/t4.md", "median error")}
    columns = {
        "backward": ("peak of allocated bytes", f"{rows['backward'][1]} published runs on a T4"),
        "device": ("what the device shows", "the same"),
        "seconds": ("seconds of a step", "the same"),
    }
    for counter, (what, against) in columns.items():
        cells = rows[counter]
        yield f"| {what} | {against} | {cells[2]} | {cells[4]} |"


def campaign() -> str:
    """What the report of runs on a GPU says before its table."""
    text = (ROOT / "tests/gpu/README.md").read_text(encoding="utf-8")
    runs = text.partition("\n## Tasks")[0]
    said = [part for part in runs.split("\n\n")[2:] if not part.startswith(("|", "-", "Runs"))]
    return "\n\n".join(part.strip() for part in said) + "\n"


def peers() -> str:
    """Others' estimators beside vlmplan, as the report of all cases has them."""
    report = ROOT / "tests/peers/README.md"
    lines = ["| estimator | cases | median error | mean | worst | false fits |", "|---|---:|---:|---:|---:|---:|"]
    lines += [f"| {' | '.join(cells)} |" for cells in table_after(report, "on all cases")]
    return "\n".join(lines) + "\n"


def peers_in_short() -> str:
    """The same in three columns."""
    report = ROOT / "tests/peers/README.md"
    lines = ["| estimator of bytes | median error | false fits |", "|---|---:|---:|"]
    for name, cases, middle, _, _, wrong in table_after(report, "on all cases"):
        lines.append(f"| {name} | {middle} | {wrong} of {cases} |")
    return "\n".join(lines) + "\n"


def scripts() -> str:
    """Scripts that were rehearsed beside the same scripts really run, as the report has them."""
    report = ROOT / "tests/trainer/script_rehearsal/README.md"
    lines = [line for line in report.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return "\n".join(lines) + "\n"


def ranking() -> str:
    """How often pairs of published runs that were held back are put in the right order."""
    rows = {(row[0], row[1]): row for row in table_after(ROOT / "tests/timing/README.md", "rule of thumb right")}
    lines = ["| the faster of two | pairs, held back | right | right by rule of thumb |", "|---|---:|---:|---:|"]
    for what in ("gpus", "methods"):
        _, _, pairs, right, rule = rows[what, "held back and later"]
        lines.append(f"| {what.replace('gpus', 'GPUs')} | {pairs} | {right} | {rule} |")
    return "\n".join(lines) + "\n"


def shipped_configurations() -> str:
    """How many of the runs that other trainers ship are read."""
    from other_trainers.shipped import KEPT, table

    return "\n".join(table(json.loads(KEPT.read_text(encoding="utf-8")))) + "\n"


def published_threads() -> str:
    """What is answered to published threads of runs that ran out of memory."""
    from diagnosis.threads import table

    return table()


def asked_threads() -> str:
    """What commands answer to published threads about the memory of GRPO."""
    from diagnosis.asked import section

    return section()


def type_counts() -> str:
    """How many model types of transformers are planned in which way."""
    from model_types import counts

    return counts()


def refused_types() -> str:
    """The model types that are refused, with the reasons."""
    from model_types import refusals

    return refusals()


def types() -> str:
    """Every model type of transformers."""
    from model_types import table

    return table()


def image_types() -> str:
    """Of which model types without a family images are planned."""
    from image_types import image_table

    return image_table()


def calibration() -> str:
    """What a calibration holds."""
    rows = [f"| {name.replace('_', ' ')} | {one.what} | {one.replaces} |" for name, one in QUANTITIES.items()]
    return "\n".join(["| name | measured | in place of |", "|---|---|---|", *rows]) + "\n"


MADE = {
    "calibration": calibration,
    "campaign": campaign,
    "packages": packages,
    "layers": layers,
    "accuracy": accuracy,
    "peers": peers,
    "peersshort": peers_in_short,
    "ranking": ranking,
    "scripts": scripts,
    "shipped": shipped_configurations,
    "threads": published_threads,
    "asked": asked_threads,
    "typecounts": type_counts,
    "refusedtypes": refused_types,
    "types": types,
    "imagetypes": image_types,
}


def with_sections(text: str) -> str:
    """The page with the parts that are made of the code and of reports."""
    return SECTION.sub(lambda found: f"{found[1]}\n{MADE[found[2]]()}\n<!-- end -->", text)


def rewrite(page: Path, *, runs_long: bool) -> None:
    text = with_sections(page.read_text(encoding="utf-8"))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        isolate(patch, Path(folder))
        text = with_samples(text, runs_long=runs_long)
        for picture, svg in pictures_here():
            picture.write_text(svg, encoding="utf-8")
        os.chdir(ROOT)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    named = [Path(name).resolve() for name in sys.argv[1:] if name != "--sweep"]
    for each in named or PAGES:
        rewrite(each, runs_long="--sweep" in sys.argv)
