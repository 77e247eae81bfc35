"""What DeepSpeed's ``F.linear`` saves under ZeRO-3: bytes of a plan beside those of a rehearsal."""

from pathlib import Path

import pytest
from rehearsed_cases import write_model

from cli_calls import call
from planned import shipped_gpus
from vlmplan.memory.overhead import workspace_bytes
from vlmplan.units import MIB


def test_patches_of_tiles_are_saved_as_they_are_for_all_products(tmp_path: Path):
    """Ovis2 1B with two layers in each tower: torch's own makes rows of twelve tiles of 24 MiB for each product and
    saves those, DeepSpeed's has the one tensor for all."""
    shallow = {"num_hidden_layers": 2}
    config = {"text_config": {**shallow, "layer_types": ["full_attention"] * 2}, "vision_config": shallow}
    write_model({"alias": "ovis2-1b", "config": config}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "a100-sxm4-80gb:8", "--zero-stage", "3", "--method", "lora")
    words += ("--micro-batch", "2", "--seq-len", "2048", "--no-activation-checkpointing", "--lora-rank", "8")
    words += ("--attention", "flash_attention_2", "--images-per-sample", "2", "--image-size", "300x900", "--json")
    phases = {phase["name"]: phase["peak_bytes"] for phase in call("estimate", *words).document["phases"]}
    tensors = phases["forward"] - workspace_bytes(shipped_gpus()["a100-sxm4-80gb"])
    assert tensors / MIB == pytest.approx(2987.9, rel=0.0005)
