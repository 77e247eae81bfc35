"""Liger's layer kernels beside what its own code holds (``liger_layers.json``, by ``tests/tools/liger_layers.py``)."""

import json
from pathlib import Path

import pytest

from tape_probe import predicted_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.liger_layers import use_liger_layers
from vlmplan.architecture.model import Batch

COUNTED = json.loads((Path(__file__).parent / "liger_layers.json").read_text())
BATCH = Batch(micro_batch=2, num_tokens=384)
NUM_MULTIPROCESSORS_OF_A_CPU = 1


def predicted(row, *, is_fused=True):
    model = build_model(row["config"])
    if is_fused:
        use_liger_layers(model)
    return predicted_step(model, BATCH, checkpoints=row["checkpoints"])


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: f"{row['config']['model_type']}-{row['checkpoints']}")
def test_a_step_keeps_and_peaks_as_with_ligers_own_code(row, monkeypatch):
    monkeypatch.setattr("vlmplan.architecture.ops.liger.NUM_MULTIPROCESSORS", NUM_MULTIPROCESSORS_OF_A_CPU)
    found = predicted(row)
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(found, name) == pytest.approx(row[name], rel=0.002), name
    assert found.end_live == 0


@pytest.mark.parametrize("row", COUNTED[:2], ids=["whole", "checkpointed"])
def test_they_hold_less_than_transformers_own_layers(row):
    fused, plain = predicted(row), predicted(row, is_fused=False)
    assert fused.forward_live <= plain.forward_live
    assert fused.backward_peak < plain.backward_peak
