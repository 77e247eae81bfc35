"""Inputs of checkpointed layers in host memory: bytes of the formulas beside those of a rehearsal."""

from pathlib import Path

from rehearsed_cases import write_model

from cli_calls import call
from vlmplan.units import MIB


def test_masks_of_pictures_that_go_by_position_leave_with_the_inputs(tmp_path: Path):
    """LFM2-VL 450M with six layers and four, two pictures a sample: the mask of 8 MiB is on the host with the input of
    each layer of the tower, and comes back as another."""
    kinds = ["conv", "conv", "full_attention", "conv", "conv", "full_attention"]
    text = {"num_hidden_layers": 6, "layer_types": kinds}
    config = {"text_config": text, "vision_config": {"num_hidden_layers": 4}}
    write_model({"alias": "lfm2-vl-450m", "config": config}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "b200:2", "--num-nodes", "2", "--zero-stage", "3", "--hpz", "2")
    words += ("--method", "full", "--optimizer", "muon", "--offload-activations", "--activation-checkpointing")
    words += ("--train-vision", "--micro-batch", "4", "--grad-accum", "2", "--images-per-sample", "2")
    found = call("estimate", *words, "--no-expandable-segments", "--json").document
    assert found["peak_reserved_bytes"] == 2160 * MIB
