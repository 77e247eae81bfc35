"""What can be chosen on the page: models, GPUs, and every option with its kind, its choices and its help.

It is read off the command itself, so that a new option of ``vlmplan estimate`` is on the page as well.
"""

from typing import Any

import click

from vlmplan.cli.options import (
    EVALUATION,
    FOR,
    ONE_CLUSTER,
    RECIPE,
    SAVING,
    WORKLOAD,
    Decorator,
    argument_name,
    options,
)
from vlmplan.cli.task_options import TASK
from vlmplan.json_reader import JsonDict

GROUPS: tuple[tuple[str, tuple[Decorator, ...]], ...] = (
    ("Samples", WORKLOAD),
    ("Machines", ONE_CLUSTER),
    ("Recipe", RECIPE),
    ("Evaluation", EVALUATION),
    ("Task", TASK),
    ("Checkpoints", SAVING),
    ("Trainer", (FOR,)),
)
BY_THEMSELVES = ("model", "gpu", "ds_config")
"""Options that have a place of their own on the page."""


def form() -> JsonDict:
    """Models by alias, GPUs with their memory, and options in groups."""
    from vlmplan.catalog import load_catalog
    from vlmplan.models import packaged_models
    from vlmplan.version import __version__

    return {
        "version": __version__,
        "models": [{"alias": one.alias, "hub_id": one.hub_id} for one in packaged_models().values()],
        "gpus": [
            {"id": gpu.id, "name": gpu.name, "memory_bytes": gpu.memory_bytes, "most": gpu.max_gpus_per_node}
            for gpu in load_catalog().gpus
        ],
        "groups": [{"title": title, "options": _options(group)} for title, group in GROUPS],
    }


def _options(group: tuple[Decorator, ...]) -> list[JsonDict]:
    @click.command()
    @options(group)
    def command(**_: Any) -> None: ...

    found = [option for option in command.params if isinstance(option, click.Option)]
    return [_option(option) for option in found if option.name not in BY_THEMSELVES]


def _option(option: click.Option) -> JsonDict:
    """``field`` is the option's name in the recipe of an estimate."""
    kind = option.type
    is_choice = isinstance(kind, click.Choice)
    number = "whole" if kind is click.INT else "number" if kind is click.FLOAT else "text"
    return {
        "name": argument_name(option),
        "field": option.name,
        "flag": option.opts[0],
        "off_flag": next(iter(option.secondary_opts), None),
        "kind": "switch" if option.is_flag else "choice" if is_choice else number,
        "choices": [str(choice) for choice in kind.choices] if is_choice else [],
        "help": option.help or "",
    }
