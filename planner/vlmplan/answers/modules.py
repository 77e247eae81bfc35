"""Weights by module: what a model is made of, whole and before any engine shards it."""

import re

from vlmplan.architecture.prepare import prepared_model
from vlmplan.estimation import Estimate
from vlmplan.json_reader import JsonDict
from vlmplan.models import model_tree

LAYER = re.compile(r"\.\d+(?=\.)")
WRAPPED = ".base_layer"
"""What peft puts between an adapted Linear and its weight."""


def weights_by_module(found: Estimate) -> list[JsonDict]:
    """Each module that has weights, equal layers together, the largest first.

    Bytes are those of the weights as they are stored, adapters among them, without master copies.
    """
    rows: dict[str, JsonDict] = {}
    for one in prepared_model(model_tree(found.workload.model), found.recipe).parameters():
        path = LAYER.sub(".*", one.name).rpartition(".")[0].removesuffix(WRAPPED)
        row = rows.setdefault(
            path, {"module": path, "part": one.part.value, "num_params": 0, "num_trained": 0, "bytes": 0}
        )
        row["num_params"] += one.parameter.numel
        row["num_trained"] += one.parameter.numel if one.parameter.requires_grad else 0
        row["bytes"] += one.parameter.num_bytes
    return sorted(rows.values(), key=lambda row: -row["bytes"])
