"""The evaluations of a run: how many there are, and what they take of its time."""

from collections.abc import Iterator

from vlmplan.estimation import Estimate
from vlmplan.files.json_reader import JsonDict
from vlmplan.units import counted, duration_text


def evaluation_json(found: Estimate) -> JsonDict | None:
    """The ``count`` evaluations of the run, what each takes, and ``seconds`` of all; null where there are none."""
    evaluation, one = found.recipe.evaluation, found.evaluating
    if evaluation is None:
        return None
    return {
        "count": found.num_evaluations,
        "samples": evaluation.samples,
        "batches": None if one is None else one.num_batches,
        "batch_seconds": None if one is None else one.batch_seconds,
        "seconds": found.evaluation_seconds,
    }


def with_evaluations(found: Estimate) -> str:
    """Words behind a number of steps whose time has evaluations too."""
    return "" if found.evaluating is None else f" with {counted(found.num_evaluations, 'evaluation')}"


def evaluation_lines(found: Estimate) -> Iterator[str]:
    """What one evaluation takes, and all of them; nothing where that is not known."""
    one = found.evaluating
    if one is None:
        return
    batches = "batch" if one.num_batches == 1 else "batches"
    yield (
        f"evaluation: {duration_text(one.seconds)} for {one.num_batches:,} {batches} a GPU; all take "
        f"{duration_text(found.evaluation_seconds or 0)} of the run"
    )
