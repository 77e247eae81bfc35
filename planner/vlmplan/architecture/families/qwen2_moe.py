"""Qwen1.5-MoE and Qwen2-57B-A14B: a Qwen2 with a mixture of experts, and an expert that sees all tokens beside it.

Source: transformers 5.23 ``models/qwen2_moe/modeling_qwen2_moe.py`` and ``configuration_qwen2_moe.py``. peft knows its
old names of experts for others alone (``_MODEL_TO_CONVERSION_PATTERN``), so LoRA leaves experts and routers out.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderLayer,
    DecoderShape,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.families.moe import has_experts
from vlmplan.architecture.families.qwen3_5_moe import SharedExpertBlock
from vlmplan.architecture.leaf_module import LeafModule


class LeafSharedExpertBlock(LeafModule, SharedExpertBlock):
    """``Qwen2MoeSparseMoeBlock``, which DeepSpeed knows by its class."""


class Qwen2MoeLayer(DecoderLayer):
    """``Qwen2MoeDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, window: int | None, *, is_sparse: bool) -> None:
        super().__init__(shape, window)
        if is_sparse:
            inner = config.integer("shared_expert_intermediate_size")
            self.mlp = LeafSharedExpertBlock(config, replace(shape, intermediate_size=inner))


def decoder(config: Config) -> Decoder:
    uses_window, first = config.boolean("use_sliding_window"), config.integer("max_window_layers")
    shape = replace(decoder_shape(config), qkv_bias=config.boolean("qkv_bias"), output_bias=False, mlp_bias=False)
    windows = windows_by_type(config, lambda index: index % 2 == 0 and index < first)
    shape = replace(shape, windows=windows if uses_window else (None,) * shape.num_layers)
    kinds = list(zip(shape.windows, has_experts(config, shape.num_layers), strict=True))
    layers = stack_of_kinds(kinds, lambda kind: Qwen2MoeLayer(config, shape, kind[0], is_sparse=kind[1]))
    # The model makes a mask for windows of no tokens where it has none (``Qwen2MoeConfig.__post_init__``).
    window = (config.optional_integer("sliding_window") or 0) if uses_window else 0
    return Decoder(shape, layers, masked_windows=(None, window))
