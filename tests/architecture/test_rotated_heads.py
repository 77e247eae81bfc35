"""Gradients that lie head after head are copied into rows for the projections: those of rotated queries and keys, and
what products of attention leave."""

from collections import Counter
from math import prod
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch.profiler import ProfilerActivity, profile

from family_checks import real_model
from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.storage_log import LoggingTape
from vlmplan.architecture.trace import Allocation
from vlmplan.recipe.choices import LossKind
from vlmplan.units import DType

BATCH = Batch(micro_batch=2, num_tokens=8)
CONFIG = {"hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 100} | {
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "pad_token_id": 0,
}
LATENT = {"num_key_value_heads": 6, "q_lora_rank": None, "kv_lora_rank": 8, "n_routed_experts": 4} | {
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "head_dim": 8,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
}
LLAMA4 = {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 64, "no_rope_layers": [1, 0]}
MIMO = {"v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32} | {
    "n_group": 1,
    "topk_group": 1,
}
TYPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "olmo2": {},
    "gemma": {},
    "glm4": {},
    "smollm3": {"no_rope_layers": [1, 0]},
    "llama with a single head of keys": {"model_type": "llama", "num_key_value_heads": 1},
    "gpt_neox": {},
    "deepseek_v2": {**LATENT, "topk_method": "greedy"},
    "deepseek_v3": {**LATENT, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "jetmoe": {"kv_channels": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
}
EAGER = {"llama": {}, "llama4_text": LLAMA4, "qwen3": {}, "glm4": {}, "mimo_v2_flash": MIMO} | {
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
"""Whose values are copied where attention is written out."""
WIDTHS = {"ViewBackward0": DType.BFLOAT16.num_bytes, "ViewAsRealBackward0": DType.FLOAT32.num_bytes}
"""Bytes of an element in what they copy."""


class AllLayersTape(LoggingTape):
    runs_all_layers = True


def config_of(name: str) -> dict[str, Any]:
    return {"model_type": name, **CONFIG, **TYPES[name]}


def made_in_backward(config: dict[str, Any], attention: str) -> Counter[int]:
    """How often a storage of so many bytes is made."""
    backend = AttentionBackend(implementation=attention)
    trace = build_model(config).run(AllLayersTape(follows_weights=False), BATCH, backend, loss=LossKind.FULL)
    events = [event for section in trace.sections.values() for event in section.backward]
    return Counter(event.num_bytes for event in events if isinstance(event, Allocation))


def copied(config: dict[str, Any], attention: str, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often a gradient of so many bytes is copied into rows."""
    found = made_in_backward(config, attention)
    monkeypatch.setattr(ops, "in_rows", lambda x, *shape: x.view(*shape))
    return found - made_in_backward(config, attention)


def copied_by_torch(config: dict[str, Any], attention: str) -> Counter[int]:
    """The copies that backward makes of gradients of views (samples, tokens, heads, head_dim)."""
    model = real_model(config, attention=attention)
    logits = model(input_ids=torch.ones(BATCH.token_shape, dtype=torch.long)).logits
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        logits.sum().backward()
    found: Counter[int] = Counter()
    for event in profiled.events():
        parent = event.cpu_parent
        while event.name == "aten::clone" and parent is not None:
            if parent.name in WIDTHS and tuple(event.input_shapes[0][:2]) == BATCH.token_shape:
                found[prod(event.input_shapes[0]) * WIDTHS[parent.name]] += 1
            parent = parent.cpu_parent
    return found


@pytest.mark.parametrize("name", TYPES)
def test_as_often_as_in_transformers(name: str, monkeypatch: pytest.MonkeyPatch):
    config = config_of(name)
    by_torch = copied_by_torch(config, "sdpa")
    assert by_torch
    assert copied(config, "sdpa", monkeypatch) == by_torch


@pytest.mark.parametrize("name", EAGER)
def test_as_often_as_in_transformers_where_attention_is_written_out(name: str, monkeypatch: pytest.MonkeyPatch):
    config = {"model_type": name, **CONFIG, **EAGER[name]}
    assert copied(config, "eager", monkeypatch) == copied_by_torch(config, "eager")
