"""Of a model that speaks, the thinker is planned: by its alias, from a folder with the whole model's config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from planned import cluster
from vlmplan.emit.plain_trainer_script import script_text
from vlmplan.errors import InputError
from vlmplan.model_types.thinkers import THINKERS, thinker_config
from vlmplan.models import find_model
from vlmplan.models.packaged import PACKAGED_MODELS
from vlmplan.models.tree import model_tree
from vlmplan.other_trainers.writing.choice import objection
from vlmplan.other_trainers.writing.record import Tool
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.rules import default_lora_exclude, model_facts
from vlmplan.rules import objection as objection_to
from vlmplan.workload import Workload

ALIASES = {"qwen2_5_omni": "qwen2.5-omni-7b", "qwen3_omni_moe": "qwen3-omni-30b-a3b"}


def whole(alias: str) -> dict[str, Any]:
    return json.loads((PACKAGED_MODELS / alias / "config.json").read_text())


@pytest.mark.parametrize("model_type", THINKERS)
def test_a_whole_models_config_is_planned_as_its_thinkers(model_type: str, tmp_path: Path):
    config = whole(ALIASES[model_type])
    for name, content in (("whole", config), ("thinker", config["thinker_config"])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
    found, thinker = (find_model(str(tmp_path / name)) for name in ("whole", "thinker"))
    assert found.model_type == thinker.model_type == THINKERS[model_type].model_type
    sizes = [[one.parameter.numel for one in model_tree(files).parameters()] for files in (found, thinker)]
    assert sizes[0] == sizes[1]
    others = THINKERS[model_type].others
    assert any(others in note for note in found.notes)
    assert not any(others in note for note in thinker.notes)


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        (None, "config.json has no thinker_config, and the thinker is what is trained of a qwen3_omni_moe"),
        ([], r"config.json: thinker_config is \[\]; a mapping"),
    ],
)
def test_a_whole_model_without_a_thinker_is_refused(section: object, sentence: str):
    with pytest.raises(InputError, match=sentence):
        thinker_config({"model_type": "qwen3_omni_moe", "thinker_config": section}, source="config.json")


def test_other_models_stay_as_they_are():
    config = {"model_type": "llama", "thinker_config": {}}
    assert thinker_config(config, source="config.json") is config


def test_the_linears_of_qwen3_omnis_mergers_get_no_adapters_unless_asked_for():
    facts = model_facts(find_model("qwen3-omni-30b-a3b"))
    assert default_lora_exclude(facts) == "0,2,patch_embed.proj"
    refused = objection_to(Recipe(method=Method.LORA), cluster=cluster(), model=facts, global_batch=None, given=())
    assert refused is not None
    assert "give --lora-exclude 0,2,patch_embed.proj with it, or --lora-targets attention" in refused
    assert default_lora_exclude(model_facts(find_model("qwen2.5-omni-7b"))) is None


@pytest.mark.parametrize("model_type", THINKERS)
def test_programs_for_other_trainers_load_the_thinker_or_are_refused(model_type: str):
    files = find_model(ALIASES[model_type])
    recipe = Recipe(method=Method.LORA, lora_targets="attention")
    said = objection(Tool.TRL, recipe, files)
    assert said is not None
    assert "which of an Omni checkpoint is the whole model" in said
    text = script_text([], recipe, Workload(model=files))
    assert f"from transformers import {THINKERS[model_type].class_name} as ModelClass" in text
