"""The masks that Gemma 3 makes of a batch with images, piece by piece."""

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import create_masks_for_vision_model

from model_table import packaged_config
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.storage_log import LoggingTape
from vlmplan.architecture.trace import Allocation
from vlmplan.units import DType

TOKENS_OF_MASK = 40


class BoolsMade(TorchDispatchMode):
    """Counts boolean tensors for all pairs of tokens that operations make, by their elements."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_new = isinstance(result, torch.Tensor) and not func.is_view
        if is_new and result.dtype is torch.bool and result.numel() >= TOKENS_OF_MASK**2:
            self.counts[result.numel()] += 1
        return result


def test_gemma_3_puts_its_masks_together_of_as_many_pieces_as_transformers():
    """Of images, and in layers with a window of that: all are there for one operation or two."""
    config = packaged_config("gemma-3-4b")
    tree = build_model({**config, "text_config": {**config["text_config"], "sliding_window": 16}})
    tape = LoggingTape()
    with tape.section("masks"):
        x = tape.tensor((2, TOKENS_OF_MASK, 8), DType.BFLOAT16)
        masks = tree.model.masks(x, AttentionBackend())
    sizes = [one.num_bytes for one in tape.trace().sections["masks"].forward if isinstance(one, Allocation)]
    real_config = Gemma3TextConfig(sliding_window=16, attn_implementation="sdpa")
    padding, images = torch.ones(2, TOKENS_OF_MASK), torch.zeros(2, TOKENS_OF_MASK, dtype=torch.long)
    with BoolsMade() as made:
        create_masks_for_vision_model(real_config, torch.zeros(2, TOKENS_OF_MASK, 8), padding, None, None, images)
    assert Counter(size for size in sizes if size >= TOKENS_OF_MASK**2) == made.counts
    assert len(masks) == 2
