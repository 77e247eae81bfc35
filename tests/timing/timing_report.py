"""Estimated beside published seconds per step: ``python tests/timing/timing_report.py`` writes README.md."""

from collections.abc import Sequence
from statistics import median

from published_cases import CASES, HERE, LATER, Part, Timed, is_comparable, is_ranked_right, pairs, part_of, timed

TABLE = HERE / "README.md"
HEADER = """# Estimated beside published seconds per step

{num_cases} real training runs from {num_sources} sources, with their figures, derivations and what had to be assumed.
Sources of `published.yaml` are split in two by a hash of their name: assumptions were made looking at one half; the
other half, held back, was looked at afterwards. The {num_later} runs of `published_later.yaml` were gathered when all
constants stood, and none was changed for them: they are "later". `python tests/timing/timing_report.py` rewrites this
file.

Compared are runs of the kind that the bundled trainer makes: eager kernels, operations and network known. Runs with
torch.compile or fused kernels of their own are faster than those, and stand apart; so do {num_differing} later runs
that by their sources compute otherwise (explicit masks under deterministic algorithms, products in true float32), which
was decided after their estimates had been seen. The rule of thumb is 6 operations per weight and token at 0.4 of the
data sheet's peak. Errors are estimated / published - 1.
"""


PARTS = ((Part.LOOKED_AT,), (Part.HELD_BACK,), (Part.LATER,), (Part.HELD_BACK, Part.LATER))


def _named(parts: Sequence[Part]) -> str:
    return " and ".join(part.value for part in parts)


def at(errors: Sequence[float], fraction: float) -> float:
    """The value below which ``fraction`` of the sizes of ``errors`` lie."""
    sizes = sorted(map(abs, errors))
    return sizes[min(len(sizes) - 1, int(fraction * len(sizes)))]


def of_kind(*parts: Part, comparable: bool) -> list[Timed]:
    return [
        timed(case["id"])
        for case in CASES
        if part_of(case) in parts and is_comparable(case) == comparable and "left_out" not in case
    ]


def table() -> str:
    num_sources = len({case["source"] for case in CASES})
    num_differing = sum("differs" in case for case in LATER)
    header = HEADER.format(
        num_cases=len(CASES), num_sources=num_sources, num_later=len(LATER), num_differing=num_differing
    )
    return "\n".join([header, *_summary(), "", *_rankings(), "", *_rows(), "", *_left_out(), ""])


def _summary() -> list[str]:
    rows = [
        "| | runs | median | 90th percentile | in the range | rule of thumb: median | 90th percentile |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for comparable in (True, False):
        for parts in PARTS:
            runs = of_kind(*parts, comparable=comparable)
            if not runs:
                continue
            errors, naive = [run.error for run in runs], [run.naive_error for run in runs]
            name = f"{_named(parts)}, {'comparable' if comparable else 'compiled, fused, other'}"
            inside = sum(run.is_in_range for run in runs)
            rows.append(
                f"| {name} | {len(runs)} | {median(map(abs, errors)):.1%} | {at(errors, 0.9):.1%} | {inside} | "
                f"{median(map(abs, naive)):.1%} | {at(naive, 0.9):.1%} |"
            )
    return rows


def _rankings() -> list[str]:
    rows = ["| order of | part | pairs | right | rule of thumb right |", "|---|---|---:|---:|---:|"]
    for varies in ("gpu", "method"):
        for parts in PARTS:
            found = list(pairs(varies, *parts))
            right = sum(is_ranked_right(pair) for pair in found)
            naive = sum(is_ranked_right(pair, by="naive") for pair in found)
            rows.append(f"| {varies}s | {_named(parts)} | {len(found)} | {right} | {naive} |")
    return rows


def _rows() -> list[str]:
    rows = [
        "| run | part | GPUs | kernels | published s | estimated s | range | error | rule of thumb |",
        "|---|---|---|---|---:|---:|---|---:|---:|",
    ]
    for case in CASES:
        if "left_out" in case:
            continue
        run, part = timed(case["id"]), part_of(case).value
        gpus = case["gpu"] if case["num_nodes"] == 1 else f"{case['num_nodes']} x {case['gpu']}"
        rows.append(
            f"| [{run.case}]({case['url']}) | {part} | {gpus} | {case['kernels']} | {run.published:.3g} | "
            f"{run.expected:.3g} | {run.fast:.3g} to {run.slow:.3g} | {run.error:+.1%} | {run.naive_error:+.1%} |"
        )
    return rows


def _left_out() -> list[str]:
    return ["Left out:", "", *(f"- {case['id']}: {case['left_out']}" for case in CASES if "left_out" in case)]


if __name__ == "__main__":
    TABLE.write_text(table())
