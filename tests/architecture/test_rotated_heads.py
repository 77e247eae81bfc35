"""The gradients of rotated queries and keys lie head after head, and are copied into rows for their projections."""

from collections import Counter
from math import prod
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch.profiler import ProfilerActivity, profile

from family_checks import real_model
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.llama import Attention
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
TYPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "olmo2": {},
    "gemma": {},
    "glm4": {},
    "smollm3": {"no_rope_layers": [1, 0]},
    "llama with a single head of keys": {"model_type": "llama", "num_key_value_heads": 1},
}


class AllLayersTape(LoggingTape):
    runs_all_layers = True


def config_of(name: str) -> dict[str, Any]:
    return {"model_type": name, **CONFIG, **TYPES[name]}


def made_in_backward(name: str, *, as_views: bool) -> Counter[int]:
    """How often a storage of so many bytes is made; ``as_views``: as if no head were rotated."""
    tree = build_model(config_of(name))
    for _, module in tree.named_modules():
        if isinstance(module, Attention) and as_views:
            module.has_positions = False
    trace = tree.run(AllLayersTape(follows_weights=False), BATCH, AttentionBackend(), loss=LossKind.FULL)
    events = [event for section in trace.sections.values() for event in section.backward]
    return Counter(event.num_bytes for event in events if isinstance(event, Allocation))


def copied_by_torch(name: str) -> Counter[int]:
    """The copies that backward makes of gradients of views (samples, tokens, heads, head_dim)."""
    model = real_model(config_of(name))
    logits = model(input_ids=torch.ones(BATCH.token_shape, dtype=torch.long)).logits
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        logits.sum().backward()
    found: Counter[int] = Counter()
    for event in profiled.events():
        parent = event.cpu_parent
        while event.name == "aten::clone" and parent is not None:
            if parent.name == "ViewBackward0":
                found[prod(event.input_shapes[0]) * DType.BFLOAT16.num_bytes] += 1
            parent = parent.cpu_parent
    return found


@pytest.mark.parametrize("name", TYPES)
def test_as_often_as_in_transformers(name: str):
    copied = copied_by_torch(name)
    assert copied
    assert made_in_backward(name, as_views=False) - made_in_backward(name, as_views=True) == copied
