"""TRL's trainers stop with models whose experts they cannot count; the rule says so of these alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shallow_configs import ALIASES
from vlmplan.cli.check import check as check_command
from vlmplan.cli.estimate import estimate as estimate_command
from vlmplan.cli.recommend import recommend as recommend_command
from vlmplan.models.packaged import packaged_files
from vlmplan.other_trainers.writing import Tool, settings_for
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind, TaskTrainer
from vlmplan.rules import model_facts
from vlmplan.rules.base import RuleContext
from vlmplan.rules.routers import experts_are_counted_where_their_loss_is_added as sentence
from vlmplan.workload import ModelFiles, Workload
from written_setups import cluster_of, within

WIDTHS = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "num_keys": 4,
}
TYPES = ("granitemoe", "granitemoeshared", "mixtral", "olmoe", "phimoe", "qwen3_moe", "qwen2_moe", "doge", "gpt_oss")


def refusal(config: dict[str, Any], trainer: TaskTrainer = TaskTrainer.TRL, kind: TaskKind = TaskKind.DPO) -> bool:
    recipe = Recipe(task=TrainingTask(kind=kind, trainer=trainer))
    model = model_facts(ModelFiles(id="m", config=config))
    return sentence(RuleContext(recipe=recipe, model=model)) is not None


@pytest.mark.sweep
@pytest.mark.parametrize("changes", [{}, {"router_aux_loss_coef": 0.0}], ids=["as it is", "without the loss"])
@pytest.mark.parametrize("model_type", TYPES)
def test_the_rule_refuses_the_models_that_the_fused_head_of_trl_stops_with(model_type: str, changes: dict[str, Any]):
    utils = pytest.importorskip("trl.trainer.utils")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    known = AutoConfig.for_model(model_type).to_dict()
    config = {"model_type": model_type, **{key: value for key, value in WIDTHS.items() if key in known}, **changes}
    made = AutoConfig.for_model(**config)
    model = AutoModelForCausalLM.from_config(made)
    utils.add_fused_lm_head(model)
    is_enabled = hasattr(made, "output_router_logits") and getattr(made, "router_aux_loss_coef", 0.0) != 0.0
    ids = torch.ones(2, 4, dtype=torch.long)
    more = {"output_router_logits": True} if is_enabled else {}  # as DPOTrainer.compute_loss has it
    try:
        found = model(input_ids=ids, attention_mask=ids, labels=ids, fused_lm_head=True, **more)
        runs = found.aux_loss is None or bool(torch.isfinite(found.aux_loss))
    except (AttributeError, IndexError):
        runs = False
    assert refusal(config) is not runs


def test_losses_of_routers_stop_trl_alone_and_only_where_they_are_added():
    granite = packaged_files(ALIASES["granitemoe"]).config
    assert refusal(granite)
    assert refusal(granite, kind=TaskKind.KTO)
    assert refusal(granite, kind=TaskKind.GRPO)
    assert not refusal(granite, kind=TaskKind.REWARD)
    assert not refusal(granite, trainer=TaskTrainer.LLAMA_FACTORY)
    assert not refusal({**granite, "router_aux_loss_coef": 0.0})
    assert refusal({**granite, "router_aux_loss_coef": 0.0, "output_router_logits": True})


def test_a_loss_that_is_left_out_stops_nothing_unless_the_configuration_asks_for_its_logits():
    """``_fused_forward`` takes the routers' logits where the configuration says so, whatever the weight is."""
    granite = packaged_files(ALIASES["granitemoe"]).config
    task = TrainingTask(kind=TaskKind.DPO, router_loss=False)
    for config, stops in ((granite, False), ({**granite, "output_router_logits": True}, True)):
        model = model_facts(ModelFiles(id="m", config=config))
        found = sentence(RuleContext(recipe=Recipe(task=task), model=model))
        assert (found is not None) is stops
    assert found is not None
    assert "--no-router-loss" not in found


@pytest.mark.parametrize(("name", "trainer"), [("qwen3-0.6b", "trl"), ("granite-4.0-h-1b", "llamafactory")])
def test_a_loss_is_left_out_where_there_is_one(name: str, trainer: str):
    asked = ["--model", name, "--gpu", "a100-sxm4-80gb:1", "--task", "dpo", "--task-trainer", trainer]
    found = CliRunner().invoke(estimate_command, [*asked, "--no-router-loss"])
    assert "leave it off" in str(found.exception)


def test_a_hybrid_model_without_experts_is_refused_too():
    assert refusal(packaged_files("granite-4.0-h-1b").config)


def test_a_model_that_sees_is_judged_by_its_language_model():
    assert refusal(packaged_files("glm-4.5v").config)
    assert not refusal(packaged_files(ALIASES["qwen3_vl_moe"]).config)


def test_dense_models_and_models_with_counted_experts_are_planned():
    for model_type in ("llama", "mixtral", "qwen3_moe", "olmoe"):
        assert not refusal(packaged_files(ALIASES[model_type]).config)
    no_task = RuleContext(recipe=Recipe(loss=LossKind.FULL), model=model_facts(packaged_files(ALIASES["granitemoe"])))
    assert sentence(no_task) is None


COEFFICIENTS = {"": "granite-4.0-h-1b: TRL adds the loss of its routers", "0.0": None, "0.01": "granite-4.0-h-1b: TRL"}


@pytest.mark.parametrize("coefficient", COEFFICIENTS)
def test_fine_tuning_by_trl_stops_too_unless_its_key_turns_that_loss_off(tmp_path: Path, coefficient: str):
    file = tmp_path / "sft.yaml"
    said = f"router_aux_loss_coef: {coefficient}\n" if coefficient else ""
    file.write_text(f"model_name_or_path: granite-4.0-h-1b\ndataset_name: x\nmax_length: 64\n{said}")
    found = CliRunner().invoke(check_command, [str(file), "--gpu", "a100-sxm4-80gb:1"])
    words = COEFFICIENTS[coefficient]
    assert words in str(found.exception) if words else found.exit_code == 0


@pytest.mark.parametrize("task", ["beta: 0.1", "loss_type: apo_zero_unpaired", "num_generations: 8"])
def test_tasks_of_trl_are_planned_where_a_key_turns_that_loss_off(tmp_path: Path, task: str):
    file, words = tmp_path / "task.yaml", ("--gpu", "a100-sxm4-80gb:1", "--json")
    for model, coefficient, part in (
        ("granite-4.0-h-1b", "null", "needs num_experts"),
        ("granite-4.0-h-1b", "0.01", "router_aux_loss_coef: 0.0 turns that loss off"),
        ("qwen3-0.6b", "0.01", "TRL takes it for models with output_router_logits"),
    ):
        file.write_text(f"model_name_or_path: {model}\n{task}\nrouter_aux_loss_coef: {coefficient}\n")
        assert part in str(CliRunner().invoke(check_command, [str(file), *words]).exception)
    file.write_text(f"model_name_or_path: granite-4.0-h-1b\n{task}\nrouter_aux_loss_coef: 0.0\n")
    found = CliRunner().invoke(check_command, [str(file), *words])
    assert json.loads(found.stdout)["estimate"]["recipe"]["task"]["router_loss"] is False
    file.write_text(f"model_name_or_path: qwen3-0.6b\n{task}\nrouter_aux_loss_coef: 0.0\n")
    found = CliRunner().invoke(check_command, [str(file), *words])
    assert json.loads(found.stdout)["estimate"]["recipe"]["task"]["router_loss"] is True


@pytest.mark.parametrize("tool", ["trl", "llamafactory"])
def test_what_is_written_for_trl_leaves_that_loss_out(tool: str, tmp_path: Path):
    asked = ["--model", "granite-4.0-h-1b", "--gpu", "a100-sxm4-80gb:1", "--method", "lora", "--for", tool]
    found = CliRunner().invoke(recommend_command, [*asked, "--out", str(tmp_path)])
    assert found.exit_code == 0, found.exception
    written = (tmp_path / "train.yaml").read_text()
    assert ("router_aux_loss_coef: 0.0  # else TRL adds the loss of its routers" in written) is (tool == "trl")
    assert ("note: router_aux_loss_coef: 0.0 is in train.yaml" in " ".join(found.stdout.split())) is (tool == "trl")
    if tool == "trl":
        again = CliRunner().invoke(check_command, [str(tmp_path / "train.yaml"), "--gpu", "a100-sxm4-80gb:1"])
        assert "\nfits: " in again.stdout


def test_for_trl_a_model_whose_configuration_asks_for_its_routers_is_refused(tmp_path: Path):
    config = {**packaged_files("granite-4.0-h-1b").config, "output_router_logits": True}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    asked = ["--model", str(tmp_path), "--gpu", "a100-sxm4-80gb:1", "--method", "lora", "--for", "trl"]
    found = CliRunner().invoke(estimate_command, asked)
    assert "stops in the first step; train with vlmplan launch" in str(found.exception)


def test_for_trl_models_whose_experts_are_counted_keep_their_loss():
    model = packaged_files("qwen3-30b-a3b")
    recipe = within(Tool.TRL, Recipe(), model)
    written = settings_for(Tool.TRL, recipe, Workload(model=model), cluster_of(1))
    assert "router_aux_loss_coef" not in written.settings
