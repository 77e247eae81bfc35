"""Configurations of the packaged models with two layers, and what is changed in them."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from vlmplan.architecture.families import FAMILIES
from vlmplan.models import packaged_models
from vlmplan.models.packaged import packaged_files

DEPTHS = ("num_hidden_layers", "depth", "num_layers", "n_layer")
LISTS_OF_LAYERS = (
    *("layer_types", "no_rope_layers", "intermediate_size", "activation_sparsity_pattern"),
    *("mlp_layer_types", "num_attention_heads_per_layer"),
)
LEFT_OUT = "left out"


def first_of_each_type() -> dict[str, str]:
    """An alias for each model_type that is described."""
    aliases: dict[str, str] = {}
    for alias, model in packaged_models().items():
        model_type = packaged_files(alias).model_type
        if model_type in FAMILIES and not model.is_sibling:
            aliases.setdefault(model_type, alias)
    return aliases


ALIASES = first_of_each_type()


def shallow(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with two layers of each stack, where that is all there is to say of their number."""
    values = copy.deepcopy(dict(config))
    if "cross_attention_layers" in str(values):
        return values
    for section in (values, *(value for value in values.values() if isinstance(value, dict))):
        section |= {name: 2 for name in DEPTHS if isinstance(section.get(name), int) and section[name] > 2}
        if section.get("insert_layer_id"):
            section["insert_layer_id"] = 0  # of a layer that is left
        if section.get("num_kv_shared_layers"):
            section["num_kv_shared_layers"] = 0  # too few are left to share with
        if section.get("vit_layers"):
            section["vit_layers"] = [-1, -2]  # of the two of the tower
        if section.get("ple_layer_ids"):
            section["ple_layer_ids"] = [1]
        if section.get("kda_layers"):
            section |= {"kda_layers": [1], "full_attn_layers": [2]}
        for name in LISTS_OF_LAYERS:
            if isinstance(section.get(name), list):
                section[name] = section[name][-2:]  # of which one is of the rarer kind
    return values


def paths(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def changed(config: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    section: Any = config
    for key in path[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    if isinstance(section, dict):
        section.pop(path[-1], None)
        if value != LEFT_OUT:
            section[path[-1]] = value
