"""Published runs and what the tool says of each, beside a rule of thumb.

Half of the sources of ``published.yaml`` are there to look at while assumptions are made, half are held back
(``part_of``): by the name of the source, so that runs of one place stay together and no result decides where a run
goes. The runs of ``published_later.yaml`` were gathered when all constants stood, and nothing was changed for them.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from cli_calls import request_of_words
from vlmplan.cli.estimate import estimate as command
from vlmplan.estimation import Estimate
from vlmplan.requested import requested_estimate
from vlmplan.timing import peak_flops_per_second
from vlmplan.timing.host import image_seconds
from vlmplan.timing.rates import Scenario

HERE = Path(__file__).parent
FIRST: list[dict[str, Any]] = yaml.safe_load((HERE / "published.yaml").read_text())["cases"]
LATER: list[dict[str, Any]] = yaml.safe_load((HERE / "published_later.yaml").read_text())["cases"]
CASES = [*FIRST, *LATER]
EAGER = "eager"
NAIVE_FRACTION = 0.4
"""Of the peak, as the rule of thumb has it."""
SAME = 0.02
"""Published times closer than this are no order to be right about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One run: published seconds, those of the estimate with its range, and those of the rule of thumb."""

    case: str
    published: float
    expected: float
    fast: float
    slow: float
    naive: float

    @property
    def error(self) -> float:
        return self.expected / self.published - 1

    @property
    def naive_error(self) -> float:
        return self.naive / self.published - 1

    @property
    def is_in_range(self) -> bool:
        return self.fast <= self.published <= self.slow


class Part(Enum):
    """Where a run stands: what was looked at, what was held back, what came afterwards."""

    LOOKED_AT = "looked at"
    HELD_BACK = "held back"
    LATER = "later"


def part_of(case: dict[str, Any]) -> Part:
    if any(case is later for later in LATER):
        return Part.LATER
    return Part.HELD_BACK if hashlib.sha256(case["source"].encode()).digest()[0] % 2 else Part.LOOKED_AT


def is_comparable(case: dict[str, Any]) -> bool:
    """Whether the run is one of the kind that the bundled trainer makes, and everything that counts is known of it."""
    return case["kernels"] == EAGER and "left_out" not in case and "differs" not in case


def case_named(name: str) -> dict[str, Any]:
    return next(case for case in CASES if case["id"] == name)


@cache
def estimated(name: str) -> Estimate:
    case = case_named(name)
    with tempfile.TemporaryDirectory() as folder:
        model = case["model"]
        if "config" in case:
            Path(folder, "config.json").write_text(json.dumps(case["config"]))
            model = folder
        words = ["--model", model, "--gpu", case["gpu"], "--num-nodes", str(case["num_nodes"])]
        return requested_estimate(request_of_words(command, *words, *case["options"].split()), ())[0]


@cache
def timed(name: str) -> Timed:
    """Raises AssertionError where the tool knows no time."""
    estimate = estimated(name)
    assert estimate.timed is not None, name
    case, workload, recipe = case_named(name), estimate.workload, estimate.recipe
    images = {one: image_seconds(workload, recipe, one) if case.get("has_workers") else 0.0 for one in Scenario}
    return Timed(
        case=name,
        published=case["seconds_per_step"],
        expected=estimate.timed.expected.total - images[Scenario.EXPECTED],
        fast=estimate.timed.fast_seconds - images[Scenario.FAST],
        slow=estimate.timed.slow_seconds - images[Scenario.SLOW],
        naive=naive_seconds(estimate),
    )


def naive_seconds(estimate: Estimate) -> float:
    """6 operations per weight and token at 0.4 of the peak: the rule of thumb."""
    recipe = estimate.recipe
    tokens = estimate.workload.seq_len * recipe.micro_batch * recipe.grad_accum
    peak = peak_flops_per_second(estimate.cluster.node.gpu, recipe)
    assert peak is not None
    return 6 * estimate.num_params * tokens / (NAIVE_FRACTION * peak)


def seconds_per_token(name: str, seconds: float) -> float:
    estimate = estimated(name)
    return seconds / (estimate.samples_per_step * estimate.workload.seq_len)


def pairs(varies: str, *parts: Part) -> Iterator[tuple[str, str]]:
    """Runs of one group with the same kernels that differ in ``varies``, and in time: the faster first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for case in CASES:
        if part_of(case) in parts and "left_out" not in case:
            for prefix in ("", "other_"):
                if case.get(f"{prefix}varies") == varies:
                    groups.setdefault((case[f"{prefix}group"], case["kernels"]), []).append(case["id"])
    for names in groups.values():
        for pair in combinations(names, 2):
            first, second = sorted(pair, key=lambda name: seconds_per_token(name, timed(name).published))
            ahead = seconds_per_token(second, timed(second).published)
            if ahead > (1 + SAME) * seconds_per_token(first, timed(first).published):
                yield first, second


def is_ranked_right(pair: tuple[str, str], *, by: str = "expected") -> bool:
    first, second = (seconds_per_token(name, getattr(timed(name), by)) for name in pair)
    return first < second
