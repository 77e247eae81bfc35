"""Mellum 2: a Qwen3-MoE some of whose layers may have windows, with positions of their own, or no experts.

Source: transformers 5.23 ``models/mellum/modeling_mellum.py``.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import NamedExpertsLM
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, decoder_shape, stack_of_kinds, windows_by_type
from vlmplan.architecture.families.moe import moe_block, sparse_by_name
from vlmplan.architecture.families.olmo import PositionsByWindow


def decoder(config: Config) -> Decoder:
    windows = windows_by_type(config, lambda index: False)
    shape = replace(decoder_shape(config), qk_norm=True, windows=windows)

    def layer(kind: tuple[int | None, bool]) -> DecoderLayer:
        window, is_sparse = kind
        return DecoderLayer(shape, window, mlp=moe_block(config, shape) if is_sparse else None)

    kinds = list(zip(windows, sparse_by_name(config, num_dense=0), strict=True))
    return PositionsByWindow(shape, stack_of_kinds(kinds, layer))


causal_lm = NamedExpertsLM
