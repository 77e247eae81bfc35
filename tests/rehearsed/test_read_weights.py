"""What modules read of others under ZeRO-3 in the first forward of all: bytes of plans beside those of rehearsals."""

from pathlib import Path

import pytest
from rehearsed_cases import write_model

from cli_calls import call
from vlmplan.units import MIB

RESERVED_MIB = {"--expandable-segments": 7490, "--no-expandable-segments": 7916}


@pytest.mark.parametrize("segments", RESERVED_MIB)
def test_a_first_forward_gathers_what_adapters_of_experts_read_on_the_stream_that_computes(
    tmp_path: Path, segments: str
):
    """DeepSeek-V2 Lite with three layers, weights on the host of four GPUs: each weight comes by itself when an adapter
    reads it, and leaves room where the experts' gradients go later."""
    write_model({"alias": "deepseek-v2-lite", "config": {"num_hidden_layers": 3}}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "b200:4", "--method", "lora", "--zero-stage", "3")
    found = call("estimate", *words, "--offload-params", "cpu", segments, "--json").document
    reserved = found["reserved_with_room_bytes" if segments == "--expandable-segments" else "peak_reserved_bytes"]
    assert reserved / MIB == pytest.approx(RESERVED_MIB[segments], rel=0.001)
