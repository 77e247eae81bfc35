"""``vlmplan models --gpu``: what can be trained on these cards, and how."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from vlmplan.cli.option_words import ClickValues
from vlmplan.cli.output import print_document
from vlmplan.commands.day import today

if TYPE_CHECKING:
    from vlmplan.models.facts import ModelFacts

METHODS = ("full", "lora", "lora-8bit", "qlora")


def run_trainable(facts: "Sequence[ModelFacts]", given: ClickValues, *, as_json: bool) -> int:
    """Print what of the models can be trained; 3 where nothing fits. Raises InputError where no memory would help."""
    from vlmplan.answers.trainable import document, print_trainable
    from vlmplan.catalog import load_catalog
    from vlmplan.proposals.trainable import refuse_rules, trainable, with_known_host
    from vlmplan.recipe.choices import SEARCHED_METHODS, Method
    from vlmplan.render.progress import progress_bar
    from vlmplan.request import parse, requested_cluster

    hardware = parse({name: given[name] for name in ("gpu", "host_ram")}).hardware
    stated, _ = requested_cluster(hardware, load_catalog(given["catalog_files"]))
    cluster = with_known_host(stated)
    methods = [Method(name) for name in dict.fromkeys(given["method"])] or SEARCHED_METHODS
    models = [fact.model for fact in facts]
    with nullcontext(_silent) if as_json else progress_bar("searching", len(models)) as say:
        rows = trainable(models, cluster, methods=methods, seq_len=given["seq_len"], today=today(), say=say)
    refuse_rules(rows)
    if as_json:
        print_document(document(rows, facts, cluster))
    else:
        print_trainable(rows, facts, cluster, is_host_assumed=stated.node.host_ram_bytes is None)
    return 0 if any(row.ways for row in rows) else 3


def _silent(text: str) -> None:
    """Who asks for JSON sees nothing else."""
