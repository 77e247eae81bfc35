"""Biases of packed layers beside DoRA: bytes of a plan beside those of a rehearsal."""

from pathlib import Path

from rehearsed_cases import write_model

from cli_calls import call
from vlmplan.units import MIB


def test_a_bias_of_a_4_bit_layer_has_the_type_of_its_products_when_dora_takes_it_away_again(tmp_path: Path):
    """LLaVA-OneVision 0.5B with four layers in each tower: what attention gives ``out_proj`` is in 16 bits, and so is
    its result less the bias, which was read in float32."""
    shallow = {"num_hidden_layers": 4}
    config = {"text_config": shallow, "vision_config": shallow}
    write_model({"alias": "llava-onevision-0.5b", "config": config}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "b200:1", "--method", "qlora", "--use-dora", "--seq-len", "4096")
    words += ("--batching", "padding-free", "--activation-checkpointing", "--micro-batch", "2")
    found = call("estimate", *words, "--no-expandable-segments", "--json").document
    assert found["peak_reserved_bytes"] == 3328 * MIB
