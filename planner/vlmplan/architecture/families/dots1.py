"""dots.llm1: Qwen3's attention, and DeepSeek-V3's mixture of experts behind the first layers.

Source: transformers 5.23 ``models/dots1/modeling_dots1.py`` and ``configuration_dots1.py``.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import NamedExpertsLM, shared_experts_block
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderLayer,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)


def decoder(config: Config) -> Decoder:
    first = config.integer("max_window_layers")
    windows = windows_by_type(config, lambda index: index >= first)
    shape = replace(decoder_shape(config), qk_norm=True, mlp_bias=False, windows=windows)
    num_dense = config.count("first_k_dense_replace")
    kinds = [(window, index >= num_dense) for index, window in enumerate(windows)]

    def layer(kind: tuple[int | None, bool]) -> DecoderLayer:
        window, is_sparse = kind
        return DecoderLayer(shape, window, mlp=shared_experts_block(config, shape) if is_sparse else None)

    return Decoder(shape, stack_of_kinds(kinds, layer))


causal_lm = NamedExpertsLM
