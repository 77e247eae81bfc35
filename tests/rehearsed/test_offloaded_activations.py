"""Inputs of checkpointed layers in host memory: bytes of the formulas beside those of a rehearsal."""

from pathlib import Path
from typing import Any

import pytest
from rehearsed_cases import write_model

from cli_calls import call
from planned import shipped_gpus
from vlmplan.memory.overhead import workspace_bytes
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


@pytest.mark.parametrize(
    ("option", "backward_mib"), [("--offload-activations", 17389.3), ("--no-offload-activations", 17411.1)]
)
def test_what_layers_get_by_keyword_stays(tmp_path: Path, option: str, backward_mib: float):
    """Llama 4 Scout with two layers in each tower: those of its vision get the hidden state by keyword. Its eager
    softmax is in float32 under autocast and stays so, which the layer holds until it ends."""
    shallow = {"num_hidden_layers": 2}
    write_model({"alias": "llama-4-scout", "config": {"text_config": shallow, "vision_config": shallow}}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "b200:1", "--method", "lora", "--micro-batch", "1", "--seq-len", "2048")
    words += ("--attention", "eager", "--activation-checkpointing", option, "--json")
    workspaces = workspace_bytes(shipped_gpus()["b200"])
    phases = {phase["name"]: phase["peak_bytes"] for phase in call("estimate", *words).document["phases"]}
    assert (phases["forward"] - workspaces) / MIB == pytest.approx(15840.4, rel=0.0001)
    assert (phases["backward"] - workspaces) / MIB == pytest.approx(backward_mib, rel=0.0001)


@pytest.mark.parametrize(
    ("model", "options", "rehearsed_mib"),
    [
        (
            {"alias": "gpt2", "config": {"n_layer": 4}},
            "--method full --attention eager --micro-batch 4 --seq-len 1024",
            {"forward": 1385.2, "backward": 1846.3},
        ),
        (
            {
                "alias": "pixtral-12b",
                "config": {"text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 3}},
            },
            "--method lora --train-vision --images-per-sample 2 --image-size 640x480 --seq-len 4096",
            {"forward": 4611.2, "backward": 5370.2},
        ),
    ],
    ids=["gpt2", "pixtral"],
)
def test_masks_of_tokens_and_of_images_that_go_by_position_leave_too(
    tmp_path: Path, model: dict[str, Any], options: str, rehearsed_mib: dict[str, float]
):
    write_model(model, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "b200:1", *options.split())
    words += ("--activation-checkpointing", "--offload-activations", "--json")
    workspaces = workspace_bytes(shipped_gpus()["b200"])
    phases = {phase["name"]: phase["peak_bytes"] for phase in call("estimate", *words).document["phases"]}
    found = {name: (phases[name] - workspaces) / MIB for name in rehearsed_mib}
    assert found == pytest.approx(rehearsed_mib, rel=0.0015)
