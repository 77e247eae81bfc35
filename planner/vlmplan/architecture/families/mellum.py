"""Mellum 2: a Qwen3-MoE some of whose layers may have windows, with positions of their own, or no experts.

Source: transformers 5.23 ``models/mellum/modeling_mellum.py``.
"""

from dataclasses import replace

from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.deepseek_v3 import DENSE, SPARSE
from vlmplan.architecture.families.group_router import NamedExpertsLM
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, decoder_shape, stack_of_kinds, windows_by_type
from vlmplan.architecture.families.moe import moe_block
from vlmplan.architecture.families.olmo import PositionsByWindow
from vlmplan.files.json_reader import not_allowed


def decoder(config: Config) -> Decoder:
    windows = windows_by_type(config, lambda index: False)
    shape = replace(decoder_shape(config), qk_norm=True, windows=windows)
    types = config.names_by_layer("mlp_layer_types") or (SPARSE,) * shape.num_layers
    if not set(types) <= {DENSE, SPARSE}:
        raise not_allowed(CONFIG, "mlp_layer_types", sorted(set(types)), f"names out of {DENSE} and {SPARSE}")

    def layer(kind: tuple[int | None, str]) -> DecoderLayer:
        window, mlp = kind
        return DecoderLayer(shape, window, mlp=moe_block(config, shape) if mlp == SPARSE else None)

    return PositionsByWindow(shape, stack_of_kinds(list(zip(windows, types, strict=True)), layer))


causal_lm = NamedExpertsLM
