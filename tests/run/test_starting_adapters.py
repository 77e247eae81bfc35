"""An adapter to start from has the rank, the scale and the kind of the plan's: they are in its settings alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.run.training import adapter_problem

LORA = Recipe(method=Method.LORA, lora_rank=16)
SAVED = {"r": 16, "lora_alpha": 32, "use_rslora": False, "use_dora": False}


def adapter(folder: Path, **changes: object) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps(SAVED | changes))
    (folder / "adapter_model.safetensors").touch()
    return folder


@pytest.mark.parametrize("recipe", [LORA, replace(LORA, lora_alpha=32)])
def test_the_plans_own_adapter_is_taken(tmp_path, recipe):
    assert adapter_problem(adapter(tmp_path), recipe) is None
    assert adapter_problem(adapter(tmp_path, use_dora=None), recipe) is None  # as older versions of peft write


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"r": 32, "lora_alpha": 64}, "has r 32, and the plan 16; plan with --lora-rank 32, as it was trained"),
        ({"lora_alpha": 64}, "has lora_alpha 64, and the plan 32; plan with --lora-alpha 64, as it was trained"),
        ({"use_rslora": True}, "has use_rslora true, and the plan false; plan with --use-rslora, as it was trained"),
        ({"use_dora": True}, "has use_dora true, and the plan false; plan with --use-dora, as it was trained"),
        ({"lora_alpha": 45.25}, "no plan has it: merge the adapter into its model"),
        ({"lora_alpha": "many"}, 'has lora_alpha "many", and the plan 32; no plan has it'),
    ],
)
def test_one_that_would_count_otherwise_is_refused_with_the_option(tmp_path, changes, said):
    problem = adapter_problem(adapter(tmp_path, **changes), LORA)
    assert problem is not None
    assert said in problem


def test_one_without_the_plans_kind_is_refused_too(tmp_path):
    problem = adapter_problem(adapter(tmp_path), replace(LORA, use_dora=True))
    assert problem is not None
    assert problem.endswith("has use_dora false, and the plan true; plan with --no-dora, as it was trained")


def test_settings_that_are_none_are_one_sentence(tmp_path):
    (adapter(tmp_path) / "adapter_config.json").write_text("[")
    problem = adapter_problem(tmp_path, LORA)
    assert problem is not None
    assert "adapter_config.json" in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alpha_pattern", {"q_proj": 4}),
        ("rank_pattern", {"q_proj": 4}),
        ("alora_invocation_tokens", [1, 2]),
        ("trainable_token_indices", [7]),
        ("kasa_config", {}),
        ("lora_bias", True),
        ("bias", "all"),
        ("peft_type", "IA3"),
    ],
)
def test_what_no_plan_has_is_refused_by_its_key(tmp_path, key: str, value: object):
    """Scales of single layers, and tokens from which on an adapter counts, are in no weight."""
    problem = adapter_problem(adapter(tmp_path, **{key: value}), LORA)
    assert problem is not None
    assert f"has {key} {json.dumps(value)}, which no plan has" in problem


@pytest.mark.parametrize(
    "changes", [{"rank_pattern": {}, "bias": "none", "peft_type": "LORA"}, {"layers_pattern": "h"}]
)
def test_what_asks_for_nothing_or_chooses_layers_is_taken(tmp_path, changes: dict):
    assert adapter_problem(adapter(tmp_path, **changes), LORA) is None
