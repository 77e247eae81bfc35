"""The claims of ``guide_*.yaml``: read, asked of the tool, judged, and written as README.md.

A claim has ``says`` (the guide in short), ``claimed`` (``fits``, ``does_not_fit``, a quantity with its bounds, or
``open`` where there is nothing to judge), ``options`` of ``vlmplan estimate`` behind the guide's ``common`` ones, the
stored ``answer``, ``variants`` (options that are added, with their answers) and ``why``. An answer is on one line, so
that ``regenerate_claims`` can replace it.
"""

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from vlmplan.cli.estimate import estimate
from vlmplan.errors import VlmplanError
from vlmplan.units import GIB

HERE = Path(__file__).parent
README = HERE / "README.md"

Answer = Mapping[str, Any]
Claim = Mapping[str, Any]

QUANTITIES: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "peak_device_gib": lambda found: found["peak_device_bytes"] / GIB,
    "usable_gib": lambda found: found["gpu"]["usable_bytes"] / GIB,
    "tensors_gib": lambda found: found["peak_allocated_bytes"] / GIB,
    "host_gib": lambda found: found["host_bytes_per_node"] / GIB,
    "samples_per_hour": lambda found: found["samples_per_second"] * 3600,
    "step_seconds": lambda found: found["step_seconds"],
    "trained_millions": lambda found: found["model"]["num_trainable_params"] / 1e6,
    "checkpoint_gib": lambda found: found["checkpoint_bytes"] / GIB,
    "export_gib": lambda found: found["export_bytes"] / GIB,
}
ALWAYS_STORED = ("peak_device_gib", "usable_gib")
OPEN = "open"
TOLERANCE_FRACTION = 0.2
"""How far a figure may lie from the guide's and still hold. Most guides write "~"; GB and GiB are 7% apart."""


def guides() -> list[dict[str, Any]]:
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in guide_files()]


def guide_files() -> list[Path]:
    return sorted(HERE.glob("guide_*.yaml"))


def asked(guide: Mapping[str, Any], claim: Claim) -> Iterator[tuple[str, Answer]]:
    """(options, stored answer) of a claim and its variants, in the order of the file."""
    options = merged_options(guide["common"], claim["options"])
    yield options, claim["answer"]
    for variant in claim.get("variants", ()):
        yield merged_options(options, variant["change"]), variant["answer"]


def merged_options(*parts: str) -> str:
    """One command line. An option that comes again, or its opposite, takes the place of the earlier one.

    >>> merged_options("--gpu a16 --loss full", "--gpu l4:2")
    '--gpu l4:2 --loss full'
    >>> merged_options("--no-autocast --loss full", "--autocast")
    '--autocast --loss full'
    """
    given: dict[str, list[str]] = {}
    for word in shlex.split(" ".join(parts)):
        if word.startswith("--"):
            name = word.removeprefix("--no-").removeprefix("--")
            given[name] = [word]
        else:
            given[name].append(word)
    return shlex.join(word for words in given.values() for word in words)


def found_answer(options: str, stored: Answer) -> Answer:
    """What the tool says: the verdict and the quantities that ``stored`` has, or the sentence with which it refuses.

    Paths in ``options`` are relative to this folder, where the caller has to be. The user's own catalog is not read.
    """
    estimated = _estimate(options)
    if "refused" in estimated:
        return estimated
    names = dict.fromkeys((*ALWAYS_STORED, *(name for name in stored if name in QUANTITIES)))
    return {"verdict": estimated["verdict"]} | {name: QUANTITIES[name](estimated) for name in names}


@cache
def _estimate(options: str) -> Mapping[str, Any]:
    """The document of ``vlmplan estimate --json``, or ``refused``."""
    nowhere = os.devnull
    runner = CliRunner(env={"XDG_CONFIG_HOME": nowhere, "APPDATA": nowhere})
    arguments = [*shlex.split(options), "--json"]
    try:
        result = runner.invoke(estimate, arguments, standalone_mode=False, catch_exceptions=False)
    except VlmplanError as error:
        return {"refused": str(error)}
    return json.loads(result.stdout)


def holds(claimed: str | Mapping[str, list[float]], answer: Answer) -> bool:
    """Whether the answer bears the claim out: ``tight`` still runs, a refused setup does not."""
    if isinstance(claimed, str):
        verdict = answer.get("verdict")
        return verdict == claimed or (claimed == "fits" and verdict == "tight")
    return all(
        name in answer and low * (1 - TOLERANCE_FRACTION) <= answer[name] <= high * (1 + TOLERANCE_FRACTION)
        for name, (low, high) in claimed.items()
    )


def readme_text(all_guides: list[dict[str, Any]]) -> str:
    lines = [INTRODUCTION.rstrip(), ""]
    for guide in all_guides:
        claims = guide["claims"]
        judged = [holds(claim["claimed"], claim["answer"]) for claim in claims if claim["claimed"] != OPEN]
        lines += [f"## Guide {guide['guide']}: {guide['title']}", "", guide["about"].rstrip(), ""]
        lines += [f"Every command begins with `vlmplan estimate {guide['common']}`.", ""]
        lines += [f"{sum(judged)} of {len(judged)} claims hold.", ""]
        lines += ["| The guide says | The tool answers | Why |", "|---|---|---|"]
        lines += [_row(claim) for claim in claims]
        lines.append("")
    return "\n".join(lines)


def _row(claim: Claim) -> str:
    says = f"{_cell(claim['says'])}<br>`{claim['options']}`"
    answers = [f"{_judgement(claim)}{_answer_text(claim['answer'])}"]
    answers += [f"`{item['change']}`: {_answer_text(item['answer'])}" for item in claim.get("variants", ())]
    return f"| {says} | {'<br>'.join(answers)} | {_cell(claim['why'])} |"


def _judgement(claim: Claim) -> str:
    if claim["claimed"] == OPEN:
        return ""
    return "**holds**: " if holds(claim["claimed"], claim["answer"]) else "**differs**: "


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


QUANTITY_TEXT: Mapping[str, str] = {
    "tensors_gib": "{:,.1f} GiB of tensors",
    "host_gib": "{:,.0f} GiB of host RAM",
    "samples_per_hour": "{:,.0f} samples/h",
    "step_seconds": "{:,.1f} s a step",
    "trained_millions": "{:,.1f} M weights trained",
    "checkpoint_gib": "{:,.1f} GiB a checkpoint",
    "export_gib": "{:,.1f} GiB the exported weights",
}


def _answer_text(answer: Answer) -> str:
    if "refused" in answer:
        return f"refused: {_cell(answer['refused'])}"
    verdict = answer["verdict"].replace("_", " ")
    parts = [f"{verdict}, {answer['peak_device_gib']:,.1f} of {answer['usable_gib']:,.1f} GiB"]
    parts += [QUANTITY_TEXT[name].format(answer[name]) for name in answer if name in QUANTITY_TEXT]
    return "; ".join(parts)


INTRODUCTION = """\
# What five published guides claim, and what the tool answers

Five guides on fine-tuning vision-language and language models say what fits on which GPU. Each claim is here as a
command, with the tool's answer and the reason where the two differ. The sizes are of the fullest GPU: what
`nvidia-smi` would show at the peak, of what a process can get of the card. A claim that something fits **holds** if
it fits or is tight, a figure if the answer lies within 20% of it. Below the answer are those to variants: the
options shown, added to the command. An option that comes again takes the place of the earlier one.

The guides train with the loop of Transformers, whose loss makes all logits at once, so most commands say `--loss
full`, and `--no-activation-checkpointing` where the guide does not turn checkpointing on. The tool's own defaults are
chunked loss and checkpointing; variants show what they change.

The claims are in `guide_*.yaml`, the DeepSpeed files in `ds_configs/`. `test_claims.py` asks every command again.
After a change that is meant to move the answers:

    python tests/claims/regenerate_claims.py

It replaces the answers in the YAML files, writes this page and names every claim whose verdict changed: its "why" has
to be read again. This page is written by that script and not by hand.
"""
