"""A request is parsed once, with the file that it names, and the words that a command makes of it are parsed to it."""

import json
import re
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_calls import DOES_NOT_FIT, DONE, call, request_of_words
from vlmplan.cli.advise import advise
from vlmplan.cli.command_line import COMMANDS
from vlmplan.cli.estimate import estimate
from vlmplan.cli.launch import launch
from vlmplan.cli.option_words import given_options, words_of
from vlmplan.cli.recommend import recommend
from vlmplan.cli.rehearse import rehearse
from vlmplan.deepspeed_config import file
from vlmplan.deepspeed_config.other_files import PLAN_COMMANDS, read_ds_config
from vlmplan.gpu_choice import GpuChoice
from vlmplan.hardware import MAX_GPUS_PER_NODE, MAX_NUM_NODES, Pricing
from vlmplan.recipe import PLAIN, Recipe
from vlmplan.recipe.choices import LORA_INITS
from vlmplan.recipe.decided import DecidedRecipe, decided_by
from vlmplan.request import HardwareRequest, Objective, Request, SearchRequest, WorkloadRequest, parse

COUNTS = st.integers(1, 10**6)
CARDS, MACHINES = st.integers(1, MAX_GPUS_PER_NODE), st.integers(1, MAX_NUM_NODES)
AMOUNTS = st.floats(0.001, 10**5)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_,./ ", min_size=1, max_size=12).filter(lambda text: text.strip())
GPUS = st.builds(GpuChoice, name=st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True), num_gpus=st.none() | CARDS)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def several(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=3).map(tuple)


def setting(name: str) -> st.SearchStrategy[Any]:
    """Values of a recipe's setting, of the kind that its default has."""
    if name == "zero_stage":
        return st.sampled_from((PLAIN, 0, 1, 2, 3))
    default = getattr(Recipe(), name)
    if isinstance(default, bool):
        return st.booleans()
    if isinstance(default, float):
        return st.floats(0, 0.99)
    if name == "lora_alpha" or isinstance(default, int):
        return COUNTS
    if name == "lora_init":
        return st.sampled_from(LORA_INITS)
    return NAMES if name in ("lora_targets", "nvme_path") else st.sampled_from(type(default))


SETTINGS = sorted(decided_by(Recipe(lora_alpha=1, nvme_path="/nvme")).names)
RECIPES = st.fixed_dictionaries({name: maybe(setting(name)) for name in SETTINGS}).map(lambda it: DecidedRecipe(**it))
WORKLOADS = st.builds(
    WorkloadRequest,
    seq_len=maybe(COUNTS),
    images_per_sample=maybe(st.integers(0, 9)),
    image_size=maybe(st.tuples(st.integers(1, 999_999), st.integers(1, 999_999))),
    num_samples=maybe(COUNTS),
    epochs=maybe(AMOUNTS),
    global_batch=maybe(COUNTS),
)
SEARCHES = st.builds(
    SearchRequest,
    objective=maybe(st.sampled_from((Objective.COST, Objective.TIME))),
    providers=several(NAMES),
    regions=several(NAMES),
    pricing=several(st.sampled_from(Pricing)),
    max_price_age_days=maybe(COUNTS),
    **dict.fromkeys(("max_usd", "max_hours", "max_usd_per_hour"), maybe(AMOUNTS)),
    **dict.fromkeys(("spot_interruptions_per_day", "download_gbit"), maybe(AMOUNTS)),
)


def machines(gpus: st.SearchStrategy[tuple[GpuChoice, ...]]) -> st.SearchStrategy[HardwareRequest]:
    return st.builds(
        HardwareRequest,
        gpus=gpus,
        num_nodes=maybe(MACHINES),
        host_ram_gib=maybe(AMOUNTS),
        inter_node_gbit=maybe(AMOUNTS),
    )


def requests(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Request]:
    known: dict[str, Any] = {
        "workload": WORKLOADS,
        "recipe": RECIPES,
        "hardware": machines(st.lists(GPUS, max_size=1).map(tuple)),
    }
    return st.builds(Request, model=st.just("qwen2-vl-2b"), **(known | parts))


def words(command: click.Command, request: Request) -> list[str]:
    return words_of(command, given_options(command, request))


@pytest.mark.sweep
@pytest.mark.parametrize("command", [estimate, rehearse, launch], ids=lambda command: command.name)
@settings(deadline=None)
@given(request=requests())
def test_words_of_a_setup_are_parsed_to_it(command: click.Command, request: Request):
    assert request_of_words(command, *words(command, request)) == request


@pytest.mark.sweep
@settings(deadline=None)
@given(request=requests(hardware=machines(several(GPUS)), search=SEARCHES))
def test_words_of_a_search_are_parsed_to_it(request: Request):
    assert request_of_words(advise, *words(advise, request)) == request
    search = replace(request.search, objective=request.search.objective or Objective.COST)  # recommend's default
    assert request_of_words(recommend, *words(recommend, request)) == replace(request, search=search)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(request=requests(hardware=machines(several(GPUS)), search=SEARCHES))
def test_options_of_a_request_are_parsed_to_it(tmp_path: Path, request: Request):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    request = request.with_options({"ds_config": path})
    assert parse(request.options()) == request
    assert request.completed(Request()) == Request().completed(request) == request


@pytest.mark.sweep
@given(one=requests(search=SEARCHES), other=requests(search=SEARCHES))
def test_what_is_open_is_completed_and_nothing_else_changes(one: Request, other: Request):
    both, mine, theirs = one.completed(other).options(), one.options(), other.options()
    assert both == {name: theirs[name] if mine[name] is None else mine[name] for name in mine}


@given(recipe=RECIPES)
def test_a_recipe_has_what_is_decided_and_the_defaults_beside_it(recipe: DecidedRecipe):
    assert recipe.names == {item.name for item in fields(recipe) if getattr(recipe, item.name) is not None}
    made = recipe.recipe()
    assert recipe.applied_to(made) == made
    assert recipe.completed(decided_by(made)).recipe() == made


LINES = {
    "estimate": "--gpu a100-sxm4-80gb:2 --seq-len 8192",
    "estimate of variants": "--gpu a100-sxm4-80gb:2 --compare checkpointing",
    "recommend": "--gpu a100-sxm4-80gb:2 --out found",
    "advise": "--gpu a100-sxm4-80gb:2",
    "explain": "reduce_bucket_size --gpu a100-sxm4-80gb:2",
}


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("name", LINES)
def test_a_command_reads_its_ds_config_once(name: str, monkeypatch: pytest.MonkeyPatch):
    """Also where it asks for many changed setups: none of these has room, or all are compared."""
    Path("ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 64}))
    read: list[Path] = []

    def reading(path: Path) -> dict[str, Any]:
        read.append(path)
        return read_ds_config(path)

    monkeypatch.setattr(file, "read_ds_config", reading)
    found = call(name.partition(" ")[0], *LINES[name].split(), "--model", "smollm2-135m", "--ds-config", "ds.json")
    assert found.code in (DONE, DOES_NOT_FIT), found.err
    assert read == [Path("ds.json")]


def test_a_plan_in_place_of_another_file_is_sent_to_the_commands_that_take_plans(tmp_path: Path):
    takers = [
        name
        for name, (module, _) in COMMANDS.items()
        if any("--plan" in option.opts for option in getattr(import_module(module), name).params)
    ]
    assert set(re.findall("[a-z]+", PLAN_COMMANDS)) - {"vlmplan", "and"} == set(takers)
    plan = tmp_path / "plan.json"
    content = {"schema": "vlmplan.plan/1", "vlmplan_version": "1", "workload": {}, "recipe": {}}
    plan.write_text(json.dumps(content), encoding="utf-8")
    setup = ("estimate", "--model", "smollm2-135m", "--gpu", "t4")
    for words in ((*setup, "--ds-config", str(plan)), (*setup, "--config", str(plan)), ("check", str(plan))):
        said = call(*words).err
        assert "looks like a plan of vlmplan" in said
        assert PLAN_COMMANDS in said
        assert "--plan" in said
