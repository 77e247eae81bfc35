"""Which attention each layer of DeepSeek-V4 has, as its config.json says.

Source: transformers 5.23 ``models/deepseek_v4/configuration_deepseek_v4.py``.
"""

from collections.abc import Sequence

from vlmplan.architecture.config import CONFIG, Config
from vlmplan.files.json_reader import not_allowed

SLIDING, CHOOSING, HEAVY = KINDS = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
"""Names of ``layer_types``: a window alone, and with it compressed keys that an indexer chooses, or all of them."""
KIND_OF_RATIO = {0: SLIDING, 4: CHOOSING, 128: HEAVY}
"""What the numbers of ``compress_ratios`` mean, which published files have."""


def attention_kinds(config: Config) -> Sequence[str]:
    """The kind of attention of each layer: by ``layer_types``, else by ``compress_ratios`` of published files, which go
    on with layers that are not built, else two heavily compressed ones and then both in turn."""
    num_layers, names, ratios = config.integer("num_hidden_layers"), config.layer_types(), config.get("compress_ratios")
    if names is None and ratios is not None:
        numbers = config.integers("compress_ratios")
        if len(numbers) < num_layers or not set(numbers) <= set(KIND_OF_RATIO):
            allowed = f"a number for each of {num_layers} layers out of {', '.join(map(str, KIND_OF_RATIO))}"
            raise not_allowed(CONFIG, "compress_ratios", list(numbers), allowed)
        return [KIND_OF_RATIO[number] for number in numbers[:num_layers]]
    if names is None:
        return [CHOOSING if index > 1 and index % 2 else HEAVY for index in range(num_layers)]
    if not set(names) <= set(KINDS):
        raise not_allowed(CONFIG, "layer_types", sorted(set(names)), f"names out of {', '.join(KINDS)}")
    return names
