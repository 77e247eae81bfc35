"""NeMo AutoModel's adapters and checkpoints beside what its own code holds (``tests/tools/nemo_adapters.py``)."""

import json
from pathlib import Path
from typing import Any

import pytest

from tape_probe import predicted_step
from vlmplan.architecture.adapters import AdapterSettings, add_lora
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import set_checkpointing
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import CheckpointKind

COUNTED = json.loads((Path(__file__).parent / "nemo_adapters.json").read_text(encoding="utf-8"))
BATCH = Batch(micro_batch=2, num_tokens=384)
TARGETS = {"all": "all-linear", "attention": "q_proj,v_proj"}
RANK = 8


def predicted(row: dict[str, Any], *, is_fused: bool = True, kind: str | None = None):
    model = build_model(row["config"])
    for _, parameter in model.distinct_parameters():
        parameter.requires_grad = False
    add_lora(model, AdapterSettings(rank=RANK, is_fused=is_fused), targets=TARGETS[row["targets"]])
    kind = kind or row["kind"]
    in_parts = Recipe(activation_checkpointing=kind == "parts", checkpoint_kind=CheckpointKind.PARTS)
    set_checkpointing(model.stacks(), in_parts)
    return predicted_step(model, BATCH, checkpoints=kind == "whole")


@pytest.mark.parametrize(
    "row", COUNTED, ids=lambda row: f"{row['config']['model_type']}-{row['targets']}-{row['kind']}"
)
def test_a_step_keeps_and_peaks_as_with_its_own_code(row):
    found = predicted(row)
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(found, name) == pytest.approx(row[name], rel=0.002), name
    assert found.end_live == 0


@pytest.mark.parametrize("row", [row for row in COUNTED if row["kind"] == "none"], ids=lambda row: row["targets"])
def test_they_hold_less_than_pefts(row):
    assert predicted(row).forward_live < predicted(row, is_fused=False).forward_live


def test_parts_keep_four_inputs_of_a_layer_in_place_of_one():
    """Rows x tokens x width in 16 bit each: those of two norms, attention and MLP, of which the first is the layer's.
    The first layer's norm, whose input needs no gradient, keeps none."""
    config = COUNTED[0]["config"]
    parts, whole = (predicted(COUNTED[0], kind=kind).forward_live for kind in ("parts", "whole"))
    of_one = BATCH.micro_batch * BATCH.num_tokens * config["hidden_size"] * 2
    assert parts - whole == (3 * config["num_hidden_layers"] - 1) * of_one
