"""``vlmplan models --gpu``: what can be trained on these cards, and how."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.options import today

if TYPE_CHECKING:
    from vlmplan.hardware import Cluster
    from vlmplan.models.facts import ModelFacts
    from vlmplan.search.trainable import Trainable, Way

SCHEMA = "vlmplan.trainable/1"
METHODS = ("full", "lora", "qlora")


def run_trainable(facts: "Sequence[ModelFacts]", given: dict[str, Any], *, as_json: bool) -> int:
    """Print what of the models can be trained; 3 where nothing can."""
    from vlmplan.catalog import load_catalog
    from vlmplan.recipe import Method
    from vlmplan.render.trainable import print_trainable
    from vlmplan.request import requested_cluster
    from vlmplan.search.trainable import trainable, with_known_host

    stated, _ = requested_cluster(given, load_catalog(given["catalog_files"]))
    cluster = with_known_host(stated)
    methods = [Method(name) for name in given["method"] or METHODS]
    models = [fact.model for fact in facts]
    rows = trainable(models, cluster, methods=methods, seq_len=given["seq_len"], today=today())
    if as_json:
        click.echo(json.dumps(document(rows, facts, cluster), indent=2))
    else:
        num_params = {fact.model.id: fact.num_params for fact in facts}
        print_trainable(rows, num_params, cluster, is_host_assumed=stated.node.host_ram_bytes is None)
    return 0 if any(row.ways for row in rows) else 3


def document(rows: "Sequence[Trainable]", facts: "Sequence[ModelFacts]", cluster: "Cluster") -> dict[str, Any]:
    """Schema ``vlmplan.trainable/1``; ``best`` is the method that trains most of those that fit."""
    return {
        "schema": SCHEMA,
        "gpu": {
            "id": cluster.node.gpu.id,
            "count": cluster.node.num_gpus,
            "num_nodes": cluster.num_nodes,
            "usable_bytes": cluster.node.gpu.usable_bytes,
            "host_ram_bytes": cluster.node.host_ram_bytes,
        },
        "models": [
            {
                "id": row.model_id,
                "num_params": fact.num_params,
                "best": None if row.best is None else row.best.recipe.method.value,
                "ways": {method.value: _way_json(way) for method, way in row.ways.items()},
                "reason": row.reason,
            }
            for row, fact in zip(rows, facts, strict=True)
        ],
    }


def _way_json(way: "Way") -> dict[str, Any]:
    return {
        "recipe": way.recipe.as_json(),
        "seq_len": way.seq_len,
        "num_samples": way.num_samples,
        "device_bytes": way.device_bytes,
        "usable_bytes": way.usable_bytes,
        "host_bytes_per_node": way.host_bytes,
        "step_seconds": way.step_seconds,
        "hours": way.hours,
    }
