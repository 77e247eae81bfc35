"""Estimated beside published seconds per step: ``python tests/timing/timing_report.py`` writes README.md."""

from collections.abc import Sequence
from statistics import median

from published_cases import CASES, HERE, Timed, is_comparable, is_held_back, is_ranked_right, pairs, timed

TABLE = HERE / "README.md"
HEADER = """# Estimated beside published seconds per step

{num_cases} real training runs from {num_sources} sources, in `published.yaml` with their figures, derivations and what
had to be assumed. Sources are split in two by a hash of their name: assumptions were made looking at one half; the
other half, held back, was looked at afterwards. `python tests/timing/timing_report.py` rewrites this file.

Compared are runs of the kind that the bundled trainer makes: eager kernels, operations and network known. Runs with
torch.compile or fused kernels of their own are faster than those, and stand apart. The rule of thumb is 6 operations
per weight and token at 0.4 of the data sheet's peak. Errors are estimated / published - 1.
"""


def at(errors: Sequence[float], fraction: float) -> float:
    """The value below which ``fraction`` of the sizes of ``errors`` lie."""
    sizes = sorted(map(abs, errors))
    return sizes[min(len(sizes) - 1, int(fraction * len(sizes)))]


def of_kind(*, held_back: bool, comparable: bool) -> list[Timed]:
    return [
        timed(case["id"])
        for case in CASES
        if is_held_back(case) == held_back and is_comparable(case) == comparable and "left_out" not in case
    ]


def table() -> str:
    header = HEADER.format(num_cases=len(CASES), num_sources=len({case["source"] for case in CASES}))
    return "\n".join([header, *_summary(), "", *_rankings(), "", *_rows(), "", *_left_out(), ""])


def _summary() -> list[str]:
    rows = [
        "| | runs | median | 90th percentile | in the range | rule of thumb: median | 90th percentile |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for comparable in (True, False):
        for held_back in (False, True):
            runs = of_kind(held_back=held_back, comparable=comparable)
            if not runs:
                continue
            errors, naive = [run.error for run in runs], [run.naive_error for run in runs]
            name = f"{'held back' if held_back else 'looked at'}, {'comparable' if comparable else 'compiled or fused'}"
            inside = sum(run.is_in_range for run in runs)
            rows.append(
                f"| {name} | {len(runs)} | {median(map(abs, errors)):.1%} | {at(errors, 0.9):.1%} | {inside} | "
                f"{median(map(abs, naive)):.1%} | {at(naive, 0.9):.1%} |"
            )
    return rows


def _rankings() -> list[str]:
    rows = ["| order of | half | pairs | right | rule of thumb right |", "|---|---|---:|---:|---:|"]
    for varies in ("gpu", "method"):
        for held_back in (False, True):
            found = list(pairs(varies, held_back=held_back))
            right = sum(is_ranked_right(pair) for pair in found)
            naive = sum(is_ranked_right(pair, by="naive") for pair in found)
            rows.append(
                f"| {varies}s | {'held back' if held_back else 'looked at'} | {len(found)} | {right} | {naive} |"
            )
    return rows


def _rows() -> list[str]:
    rows = [
        "| run | half | GPUs | kernels | published s | estimated s | range | error | rule of thumb |",
        "|---|---|---|---|---:|---:|---|---:|---:|",
    ]
    for case in CASES:
        if "left_out" in case:
            continue
        run = timed(case["id"])
        half = "held back" if is_held_back(case) else "looked at"
        gpus = case["gpu"] if case["num_nodes"] == 1 else f"{case['num_nodes']} x {case['gpu']}"
        rows.append(
            f"| [{run.case}]({case['url']}) | {half} | {gpus} | {case['kernels']} | {run.published:.3g} | "
            f"{run.expected:.3g} | {run.fast:.3g} to {run.slow:.3g} | {run.error:+.1%} | {run.naive_error:+.1%} |"
        )
    return rows


def _left_out() -> list[str]:
    return ["Left out:", "", *(f"- {case['id']}: {case['left_out']}" for case in CASES if "left_out" in case)]


if __name__ == "__main__":
    TABLE.write_text(table())
