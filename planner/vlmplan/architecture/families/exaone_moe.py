"""K-EXAONE: EXAONE 4's attention behind norms, and DeepSeek-V3's mixture of experts behind the first layers.

Source: transformers 5.23 ``models/exaone_moe/modeling_exaone_moe.py`` and ``configuration_exaone_moe.py``. What
predicts more than one token is left out by transformers (``_keys_to_ignore_on_load_unexpected``).
"""

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.exaone4 import exaone_shape
from vlmplan.architecture.families.group_router import NamedExpertsLM, shared_experts_block
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.families.smollm3 import PositionlessAttention


def decoder(config: Config) -> Decoder:
    has_windows = config.optional_integer("sliding_window") is not None
    period = config.integer("sliding_window_pattern") if config.layer_types() is None else 1
    windows = windows_by_type(config, lambda index: (index + 1) % period != 0)
    shape = exaone_shape(config, windows)
    num_dense, types = config.count("first_k_dense_replace"), config.names_by_layer("mlp_layer_types")
    is_sparse = [index >= num_dense if types is None else types[index] == "sparse" for index in range(shape.num_layers)]

    def layer(kind: tuple[int | None, bool]) -> DecoderLayer:
        window, sparse = kind
        block = shared_experts_block(config, shape) if sparse else None
        rotates = not has_windows or window is not None
        attention = (Attention if rotates else PositionlessAttention)(shape, window)
        return DecoderLayer(shape, attention=attention, mlp=block)

    return Decoder(shape, stack_of_kinds(list(zip(windows, is_sparse, strict=True)), layer))


causal_lm = NamedExpertsLM
