"""What a model holds of its last layer until it returns: bytes of a plan beside those of a rehearsal."""

from pathlib import Path

import pytest
from rehearsed_cases import write_model

from cli_calls import call
from vlmplan.units import MIB


def test_weights_of_the_last_layer_go_when_the_model_returns_and_parts_of_a_gelu_one_by_one(tmp_path: Path):
    """BLOOM 7.1B with two layers in float32: its eager weights of 1.5 GiB are gone where the logits are made, and the
    places that the expressions of its GELU leave decide where these go."""
    write_model({"alias": "bloom-7.1b", "config": {"n_layer": 2}}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "a100-sxm4-80gb:8", "--zero-stage", "2", "--offload-optimizer", "cpu")
    words += ("--method", "lora-8bit", "--precision", "fp32", "--micro-batch", "3", "--seq-len", "2048")
    words += ("--activation-checkpointing", "--loss", "full", "--lora-rank", "64", "--expandable-segments", "--json")
    found = call("estimate", *words).document
    assert found["reserved_with_room_bytes"] / MIB == pytest.approx(34474, rel=0.001)
