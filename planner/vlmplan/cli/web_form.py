"""What can be chosen on the page: models, GPUs, and every option with its kind, its choices and its help.

It is read off the command itself, so that a new option of ``vlmplan estimate`` is on the page as well.
"""

from collections.abc import Mapping
from typing import Any

import click

from vlmplan.cli.estimate import estimate
from vlmplan.cli.option_kinds import Decorator, Real, Whole, options
from vlmplan.cli.option_words import argument_name, options_of
from vlmplan.cli.options import FOR, ONE_CLUSTER, SAVING, WORKLOAD
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.cli.recommend import recommend
from vlmplan.cli.task_options import TASK
from vlmplan.files.json_reader import JsonDict

GROUPS: tuple[tuple[str, tuple[Decorator, ...]], ...] = (
    ("Samples", WORKLOAD),
    ("Machines", ONE_CLUSTER),
    ("Recipe", RECIPE),
    ("Evaluation", EVALUATION),
    ("Task", TASK),
    ("Checkpoints", SAVING),
    ("Trainer", FOR),
)
OTHERS = "Others"
"""The group of options that are in none of these, so that none is forgotten."""
OBJECTS = ("model", "ds_config", "config")
"""Options that may be what a file holds; all but ``model`` have to be."""
BY_THEMSELVES = (*OBJECTS, "gpu")
"""Options that have a place of their own on the page."""
OF_ONE_CLUSTER = ("gpu", "num_nodes", "host_ram")
"""What a search for offers leaves open."""
NOT_ON_THE_PAGE: Mapping[str, str] = {
    "data": "it names a file; one that is dropped here is summed up into the options of samples",
    "image_folder": "it goes with --data",
    "catalog": "it names a file; a catalog among the user's settings is read here too",
    "scaling": "it asks for other numbers of machines as well; the offers below have them",
    "compare": "it asks for several setups; two are compared by keeping one",
    "json": "it is how an answer is printed",
    "html": "it writes a file that shows what this page shows",
    "force": "it goes with --html",
}
"""Options of ``vlmplan estimate`` that the page does not take, and why."""


def form() -> JsonDict:
    """Models by alias, GPUs with their memory, and options in groups."""
    from vlmplan.catalog import load_catalog
    from vlmplan.models import packaged_models
    from vlmplan.version import __version__

    return {
        "version": __version__,
        "models": [{"alias": model.alias, "hub_id": model.hub_id} for model in packaged_models().values()],
        "gpus": [
            {"id": gpu.id, "name": gpu.name, "memory_bytes": gpu.memory_bytes, "most": gpu.max_gpus_per_node}
            for gpu in load_catalog().without_calibrations().gpus
        ],
        "groups": _groups(),
        "not_searched": sorted(allowed_options(estimate).keys() - _searched().keys()),
        "elsewhere": dict(NOT_ON_THE_PAGE),
    }


def _groups() -> list[JsonDict]:
    """Every option that may be given and has no place of its own, by the group that it is in."""
    titles = {name: title for title, group in GROUPS for name in names_of(group)} | {"sample_lengths": "Samples"}
    groups: dict[str, list[JsonDict]] = {title: [] for title, _ in (*GROUPS, (OTHERS, ()))}
    for name, option in allowed_options(estimate).items():
        if name not in BY_THEMSELVES:
            groups[titles.get(name, OTHERS)].append(_option(option))
    return [{"title": title, "options": found} for title, found in groups.items() if found]


def _searched() -> dict[str, click.Option]:
    """The options that a search for offers is asked with."""
    return {name: option for name, option in allowed_options(recommend).items() if name not in OF_ONE_CLUSTER}


def allowed_options(command: click.Command) -> dict[str, click.Option]:
    """The options that the page may give, by keyword: none that names a file, starts or writes something."""
    return {name: option for name, option in options_of(command).items() if name in OBJECTS or _is_allowed(option)}


def _is_allowed(option: click.Option) -> bool:
    is_action = option.is_flag and not option.secondary_opts
    return not is_action and not isinstance(option.type, click.Path) and option.name != "compare"


def names_of(group: tuple[Decorator, ...]) -> list[str]:
    """The keywords of a group's options."""

    @click.command()
    @options(group)
    def command(**_: Any) -> None: ...

    return list(options_of(command))


def _option(option: click.Option) -> JsonDict:
    """``field`` is the option's name in the recipe of an estimate."""
    kind = option.type
    is_choice = isinstance(kind, click.Choice)
    number = "whole" if isinstance(kind, Whole) else "number" if isinstance(kind, Real) else "text"
    return {
        "name": argument_name(option),
        "field": option.name,
        "flag": option.opts[0],
        "off_flag": next(iter(option.secondary_opts), None),
        "kind": "switch" if option.is_flag else "choice" if is_choice else number,
        "choices": [str(choice) for choice in kind.choices] if is_choice else [],
        "help": option.help or "",
    }
