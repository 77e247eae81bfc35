"""Masks and positions that a model keeps beside its parameters take room in the allocator, and come before adapters.

Reserved bytes are those of ``vlmplan rehearse`` with these options (transformers 5.23, peft 0.21, bitsandbytes 0.50).
"""

import json
from pathlib import Path

import pytest

from cli_calls import call
from vlmplan.units import MIB

SIZES = {"n_embd": 512, "n_head": 8, "n_layer": 3, "n_positions": 2048}
NEO = {"model_type": "gpt_neo", "hidden_size": 512, "num_heads": 8, "num_layers": 4, "vocab_size": 50_257}
NEO |= {"attention_types": [[["global", "local"], 2]], "attention_layers": ["global", "local"] * 2, "embed_dropout": 0}
NEO |= {"attention_dropout": 0, "resid_dropout": 0}
GPT_J = {"model_type": "gptj", **SIZES, "rotary_dim": 64, "vocab_size": 50_400, "tie_word_embeddings": False}
GPT_J |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
BIG_CODE = {"model_type": "gpt_bigcode", **SIZES, "n_inner": 2048, "multi_query": True, "vocab_size": 49_280}
COPIES = "--method lora-8bit --use-dora --train-embeddings --lora-rank 4 --use-rslora --adapter-dtype float32"
RESERVED_MIB = {
    "a mask in each layer": (NEO, "h100-sxm:1 --zero-stage none --method full", 874),
    "with DeepSpeed": (NEO, "h100-sxm:2 --zero-stage 2 --method full", 812),
    "positions in each layer, behind packed weights": (GPT_J, "h100-sxm:1 --zero-stage none --method qlora", 470),
    "copies that are trained come behind adapters": (
        BIG_CODE,
        f"a100-sxm4-40gb:4 --zero-stage 0 --precision fp32 --micro-batch 2 --seq-len 512 --attention eager {COPIES}",
        900,
    ),
}


@pytest.mark.parametrize("name", RESERVED_MIB)
def test_tables_of_a_model_are_reserved_as_a_rehearsal_has_them(name: str, tmp_path: Path):
    config, options, reserved = RESERVED_MIB[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = () if "--seq-len" in options else ("--seq-len", "256", "--micro-batch", "1")
    own = ("--model", str(tmp_path), "--no-expandable-segments", *given)
    answer = call("estimate", *own, "--gpu", *options.split(), "--json").document
    assert answer["peak_reserved_bytes"] == reserved * MIB
