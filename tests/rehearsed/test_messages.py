"""The collectives that the formulas count beside those that rehearsals saw, kind by kind, of the last step.

Collectives below ``SMALL_BYTES`` (norms, overflow, the loss) are not counted by the formulas, nor are position ids,
which Ulysses gathers in every layer (``ulysses_sp.py``): a kind of their own, with less than ``LARGEST_ERROR`` of all
bytes.
"""

import pytest
from rehearsed_cases import estimated
from rehearsed_report import GOLDEN, LAST_STEP

from vlmplan.communication.volume import KindTotal, by_kind

LARGEST_ERROR = 0.001
LARGER_ERRORS = {"llama-3.2-1b full stage 3 8, a sample shared by 4, tiled MLPs, layer inputs on the host": 0.006}
"""The formulas gather one matrix of 8 MiB more often than the rehearsal, of 1.5 GB; not found out why."""
COUNT_ERROR = 0.25
"""Of the number of messages: under adapters prefetching starts earlier than the formulas have it, so that fewer
messages carry the same bytes."""
SMALL_BYTES = 1024
CASES = tuple(GOLDEN["cases"])


def rehearsed(case: str) -> dict[str, KindTotal]:
    seen = GOLDEN["cases"][case]["collectives"]
    totals: dict[str, KindTotal] = {}
    for one in seen:
        if one["step"] == LAST_STEP and one["num_bytes"] >= SMALL_BYTES:
            count, num_bytes = totals.get(one["kind"], (0, 0))
            totals[one["kind"]] = KindTotal(count + one["count"], num_bytes + one["num_bytes"])
    return totals


@pytest.mark.one_in(19)
@pytest.mark.parametrize("case", CASES)
def test_collective_bytes_are_those_of_the_rehearsal(case: str):
    counted, seen = by_kind(estimated(case).collectives), rehearsed(case)
    missed = sum(seen.pop(kind).num_bytes for kind in set(seen) - set(counted))
    assert missed <= LARGEST_ERROR * sum(total.num_bytes for total in seen.values())
    assert set(counted) == set(seen)
    for kind, total in seen.items():
        assert counted[kind].num_bytes == pytest.approx(total.num_bytes, rel=LARGER_ERRORS.get(case, LARGEST_ERROR)), (
            kind
        )
        assert counted[kind].num_collectives == pytest.approx(total.num_collectives, rel=COUNT_ERROR), kind


@pytest.mark.long
@pytest.mark.sweep
def test_ten_models_send_something_vlms_among_them():
    sending = {estimated(case).workload.model for case in CASES if rehearsed(case)}
    types = {model.model_type for model in sending}
    assert len(types) >= 10
    assert types >= {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "paligemma", "gemma3"}
