"""Weights in 4 or 8 bits, in the words of transformers."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import OUTLIER_THRESHOLD, Method

PACKS_ANEW = "support_avx512bf16_for_cpu"
"""Whether bitsandbytes' module packs its weight for inference on a processor."""


def packing(recipe: Recipe, skipped: Sequence[str] | None = None) -> Any:
    """transformers' ``BitsAndBytesConfig`` of the recipe's packed weights; ``skipped``: modules left as they are."""
    from transformers import BitsAndBytesConfig

    left = None if skipped is None else list(skipped)
    if recipe.method is Method.LORA_8BIT:
        # which warns at every product that its input is cast
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=OUTLIER_THRESHOLD, llm_int8_skip_modules=left)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=recipe.use_double_quant,
        bnb_4bit_compute_dtype=getattr(torch, recipe.precision.dtype.torch_name),
        bnb_4bit_quant_storage=_storage(recipe),
        llm_int8_skip_modules=left,
    )


def _storage(recipe: Recipe) -> torch.dtype:
    """In which type 4-bit weights are kept: FSDP2 shards those alone that are of its type."""
    return getattr(torch, recipe.precision.dtype.torch_name) if recipe.fsdp and recipe.shards_packed else torch.uint8


def keep_packing(model: nn.Module) -> None:
    """Keep 4-bit weights as they were packed. A processor with AVX512-BF16 packs them anew in the first evaluation, for
    a product that has no backward (``Linear4bit.forward`` and ``matmul_4bit`` of bitsandbytes 0.50): steps behind it
    would learn nothing below a model's last layers."""
    for module in model.modules():
        if hasattr(module, PACKS_ANEW):
            setattr(module, PACKS_ANEW, False)
