"""Gated delta nets as kernels beside what flash-linear-attention's own code holds (``fla_kernels.json``, by
``tests/tools/fla_kernels.py``)."""

import json
from pathlib import Path

import pytest

from tape_probe import predicted_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.units import DType

COUNTED = json.loads((Path(__file__).parent / "fla_kernels.json").read_text())
ROUNDING_BYTES = 32
NAMES = ("forward_live", "forward_peak", "backward_peak")


def predicted(row, *, uses_fla=True):
    batch = Batch(micro_batch=row["micro_batch"], num_tokens=row["num_tokens"])
    return predicted_step(build_model(row["config"]), batch, checkpoints=row["checkpoints"], uses_fla=uses_fla)


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: f"{row['num_tokens']}-{row['checkpoints']}")
def test_a_step_keeps_and_peaks_as_with_flas_own_code(row):
    found = predicted(row)
    for name in NAMES:
        ids = 2 * DType.INT64.num_bytes * row["micro_batch"] * row["num_tokens"]  # and labels, which the step holds
        assert abs(getattr(found, name) - row[name]) <= ids + ROUNDING_BYTES, name
    assert found.end_live == 0


@pytest.mark.parametrize("row", COUNTED[:2], ids=["whole", "checkpointed"])
def test_they_hold_less_than_transformers_own_operations(row):
    kernels, plain = predicted(row), predicted(row, uses_fla=False)
    assert kernels.backward_peak < plain.backward_peak
    assert kernels.forward_live <= plain.forward_live
