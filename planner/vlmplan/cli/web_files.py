"""Files that are dropped on the page, as the planner reads them: by the readers of the command line, from the text that
the page sends. None is opened here, and none that such a text names: it may be anybody's.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vlmplan.errors import InputError, VlmplanError
from vlmplan.files.json_reader import JsonDict, JsonObject, shown
from vlmplan.plain_text import one_line
from vlmplan.units import MIB

if TYPE_CHECKING:
    from vlmplan.other_trainers import OpenedConfig
    from vlmplan.plan import Plan
    from vlmplan.request import Request
    from vlmplan.workload import ModelFiles

MAX_FILE_BYTES = MIB
"""Of a configuration, as ``vlmplan check`` takes it."""
MAX_NAME_CHARACTERS = 100
"""Of a file's name, which is shown beside what is wrong with it."""


def file_name(option: str, value: Mapping[str, Any]) -> str:
    """The name under which a dropped file is spoken of: without folders."""
    name = JsonObject(value, source=option).text("name")
    last = one_line(Path(name.replace("\\", "/")).name)
    return last[:MAX_NAME_CHARACTERS] or option


def configured(own: "Request", value: Mapping[str, Any], find_model: "Callable[[str], ModelFiles]") -> "Request":
    """``own`` with what the configuration of another trainer means, ``{"name": ..., "text": ...}``.

    The ds_config.json that is dropped beside it is the one that it names. Raises as ``vlmplan check`` does.
    """
    from vlmplan.other_trainers import open_trainer_config
    from vlmplan.request import configured_request

    file = JsonObject(value, source="config")
    text = file.text("text")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_FILE_BYTES:
        raise InputError(f"{file_name('config', value)} has more than {MAX_FILE_BYTES // MIB} MiB")
    opened = open_trainer_config(Path(file_name("config", value)), text, is_alone=True)
    if own.ds_config is not None:
        opened = replace(opened, unsaved=dict.fromkeys(_deepspeed_names(opened), own.ds_config.content))
    return configured_request(own, opened, find_model)


def _deepspeed_names(opened: "OpenedConfig") -> list[str]:
    """What a configuration calls its ds_config.json; in accelerate's, it is in a section of its own."""
    section = opened.values.get("deepspeed_config")
    nested = cast(Mapping[str, Any], section).get("deepspeed_config_file") if isinstance(section, Mapping) else None
    return [name for name in (opened.values.get("deepspeed"), nested) if isinstance(name, str)]


def asked_by_plan(value: Any, known_model: "Callable[[str], ModelFiles]") -> JsonDict:
    """The options that ask for a plan.json, by the names of the command line, and the model's configuration where it
    has no name here.

    Raises InputError for what is no plan, or whose GPU the catalog does not have.
    """
    from vlmplan.catalog import load_catalog
    from vlmplan.cli.estimate import estimate
    from vlmplan.cli.option_words import given_options
    from vlmplan.launch.plan_options import gpu_of, request_of
    from vlmplan.plan import plan_from_json

    if not isinstance(value, Mapping):
        raise InputError(f"plan is {shown(value)}; the object that plan.json holds is needed")
    plan = plan_from_json(cast(Mapping[str, Any], value), source="plan.json")
    name = _model_name(plan, known_model)
    gpu = gpu_of(replace(plan, hardware=replace(plan.hardware, host_ram_bytes=None)), load_catalog())
    given = given_options(estimate, request_of(plan, model=name or "config.json", gpu=gpu))
    return {"options": given, "model": None if name else dict(plan.workload.model.config)}


def _model_name(plan: "Plan", known_model: "Callable[[str], ModelFiles]") -> str | None:
    """The name by which the planned model is found here; None where there is none."""
    model = plan.workload.model
    for name in (model.id, model.hub_id):
        try:
            if name is not None and dict(known_model(name).config) == dict(model.config):
                return name
        except VlmplanError:
            continue
    return None
