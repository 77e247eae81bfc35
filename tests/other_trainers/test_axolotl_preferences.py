"""axolotl's ``rl: dpo``, ``ipo``, ``orpo``, ``simpo`` and ``kto``: what its keys mean, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli_calls import call
from other_trainers.axolotl_keys import LORA, WHOLE
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.other_trainers.writing import Tool, settings_for, usual
from vlmplan.other_trainers.writing.axolotl_preferences import preference_keys
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Method
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Reference, TaskKind, TaskTrainer
from vlmplan.request import parse
from written_setups import READS, cluster_of, meaning, sample, within, without_what_has_no_effect

KEYS: dict[str, Any] = {**LORA, "rl": "dpo", "datasets": [{"path": "p", "type": "chatml.ultra"}]}
DPO = TrainingTask(kind=TaskKind.DPO, trainer=TaskTrainer.AXOLOTL, reentrant_checkpoints=None)
KTO = replace(DPO, kind=TaskKind.KTO)
ORPO = replace(DPO, reference=Reference.NONE, reentrant_checkpoints=False)
LABELS: dict[str, Any] = {"rl": "kto", "remove_unused_columns": False}


def read(path: Path, **values: Any) -> Any:
    file = path / "train.yaml"
    file.write_text(json.dumps(KEYS | values), encoding="utf-8")
    return read_trainer_config(file, Asked(num_gpus=1, find_model=find_model))


def test_pairs_are_planned_as_its_trainer_has_them(tmp_path):
    found = read(tmp_path, lora_dropout=0.1, trl={"beta": 0.2}, dpo_label_smoothing=0.1, rpo_alpha=1.0)
    options = found.options
    assert (options["task"], options["task_trainer"], options["loss"]) == ("dpo", "axolotl", "axolotl")
    assert (options["seq_len"], options["lora_dropout"], options["adapter_dtype"]) == (300, 0.0, "float32")
    assert not any("kernels" in str(note) for note in found.notes)


def test_ipo_is_dpo_with_another_loss(tmp_path):
    options = read(tmp_path, rl="ipo").options
    assert options == read(tmp_path, dpo_loss_type=["ipo"]).options


def test_two_kinds_have_no_reference_and_adapters_as_they_are_loaded(tmp_path):
    packed = {"adapter": "qlora", "load_in_4bit": True, "lora_dropout": 0.1}
    found = read(tmp_path, rl="orpo", orpo_alpha=0.1, **packed).options
    assert (found["reference"], found["loss"], found["lora_dropout"]) == (Reference.NONE.value, "axolotl", 0.0)
    assert found["adapter_dtype"] == "float32"
    assert read(tmp_path, rl="simpo", simpo_gamma=0.5, cpo_alpha=1.0, rl_beta=0.1, **packed).options == found


def test_trl_makes_adapters_of_packed_weights_narrow(tmp_path):
    packed = {"adapter": "qlora", "load_in_4bit": True}
    assert read(tmp_path, **packed).options["adapter_dtype"] == "model"
    assert read(tmp_path, **packed, **LABELS).options["adapter_dtype"] == "model"


def test_answers_that_are_good_or_bad_have_the_loss_of_pairs_and_a_reference_that_runs(tmp_path):
    options = read(tmp_path, precompute_ref_log_probs=True, kto_desirable_weight=0.2, **LABELS).options
    assert (options["task"], options["task_trainer"], options["loss"]) == ("kto", "axolotl", "axolotl")
    assert "reference" not in options


def test_log_probabilities_of_the_reference_are_made_before_with_adapters_alone(tmp_path):
    assert read(tmp_path, precompute_ref_log_probs=True).options["reference"] == Reference.PRECOMPUTED.value
    with pytest.raises(InputError, match="holds a second model"):
        read(tmp_path, precompute_ref_log_probs=True, **WHOLE)


def test_its_checkpoints_of_sharded_adapters_are_reentrant_whatever_a_key_says(tmp_path):
    (tmp_path / "z3.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}))
    keys = {"deepspeed": str(tmp_path / "z3.json"), "gradient_checkpointing": True}
    said = {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
    for also in ({}, said, said | LABELS):
        assert read(tmp_path, **keys, **also).options["reentrant_checkpoints"] is True
    assert "reentrant_checkpoints" not in read(tmp_path, **keys, rl="orpo").options


def test_others_of_a_task_are_not_written():
    recipe = Recipe(method=Method.LORA, zero_stage=3, activation_checkpointing=True, task=KTO)
    assert preference_keys(recipe, sample(READS))["rl"] == "kto"
    with pytest.raises(InputError, match=r"axolotl 0.19.0 makes checkpoints reentrant with adapters under ZeRO-3"):
        preference_keys(recipe.with_changes(task=replace(KTO, reentrant_checkpoints=False)), sample(READS))


@pytest.mark.parametrize("rl", ["dpo", "orpo", "kto"])
def test_an_evaluation_is_planned_for_its_loss(tmp_path, rl: str):
    values = {"rl": rl, **(LABELS if rl == "kto" else {})}
    found = read(tmp_path, val_set_size=0.1, eval_steps=5, eval_batch_size=3, **values)
    options = found.options
    assert (options["eval_batch"], options["eval_keeps"], options["eval_every"]) == (3, "loss", 5)
    assert not any("not planned with this task" in str(note) for note in found.notes)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rl": "ebft"}, "rl is ebft, which is not planned; .*simpo, kto, grpo and gdpo are"),
        ({"rl": "simpo"}, "simpo_gamma is missing"),
        ({"rl": "simpo", "simpo_gamma": 0.5, "warmup_ratio": 0.1}, "warmup_steps with simpo alone"),
        ({"rl": "simpo", "simpo_gamma": 0.5, "cpo_alpha": 0}, "without the likelihood of chosen answers"),
        ({"rl": "orpo", "dpo_loss_type": ["ipo"]}, "with rl: dpo alone"),
        ({"rl": "orpo", "pad_to_multiple_of": 64}, "pad_to_multiple_of is 64; of preferences"),
        ({"rl": "ppo"}, "rl is ppo, which axolotl does not have"),
        ({"dpo_loss_type": ["sft"]}, 'dpo_loss_type is .*"sft".*sigmoid, .* are planned'),
        ({"dpo_loss_type": ["exo_pair"]}, "dpo_label_smoothing above 0 alone"),
        ({"dpo_loss_weights": [1.0]}, "with dpo_loss_type alone"),
        ({"dpo_loss_type": ["ipo"], "dpo_loss_weights": [1.0, 2.0]}, "as many as dpo_loss_type"),
        ({"rl": "ipo", "dpo_loss_type": ["ipo"]}, "with rl: dpo alone"),
        ({"rl_beta": 0.1, "trl": {"beta": 0.2}}, "beta of trl is another"),
        ({"dpo_use_weighting": True}, "dpo_use_weighting is true"),
        ({"dpo_use_liger_kernel": True}, "Liger's loss of preferences"),
        ({"sample_packing": True}, "refuses it with rl"),
        ({"rl": "kto"}, "remove_unused_columns is not false, without which axolotl refuses rl: kto"),
        (WHOLE | LABELS, "without adapters axolotl loads a second model that nothing uses, and TRL a third"),
        ({"pad_to_multiple_of": 64}, "input_ids is missing"),
        ({"fsdp_config": {"version": 2}}, "FSDP with rl: .*ZeRO"),
        ({"gradient_checkpointing": True, "activation_offloading": True}, "activation_offloading is true"),
    ],
)
def test_what_is_not_planned_is_refused_by_its_name(values, words, tmp_path):
    with pytest.raises(InputError, match=words):
        read(tmp_path, **values)


def test_options_plan_it_too():
    asked = parse({"model": "qwen2.5-0.5b", "task": "dpo", "task_trainer": "axolotl"})
    assert (asked.decided.loss, asked.decided.task) == (LossKind.AXOLOTL, DPO)


@pytest.mark.parametrize(
    ("method", "task"),
    [
        *((method, DPO) for method in (Method.FULL, Method.LORA, Method.QLORA)),
        *((method, ORPO) for method in (Method.FULL, Method.LORA, Method.QLORA)),
        *((method, KTO) for method in (Method.LORA, Method.QLORA)),
    ],
)
def test_a_reader_takes_back_what_was_written(method, task, tmp_path):
    asked = Recipe(micro_batch=4, grad_accum=6, activation_checkpointing=True)
    changes = {"task": task, "method": method, "lora_dropout": 0.0, "zero_stage": 2}
    flash = {"attention": AttentionImplementation.FLASH_ATTENTION_2}
    recipe = usual(Tool.AXOLOTL, READS).applied_to(asked).with_changes(**changes, **flash)
    recipe = within(Tool.AXOLOTL, recipe, READS).with_changes(loss=LossKind.AXOLOTL)
    written = settings_for(Tool.AXOLOTL, recipe, sample(READS, seq_len=1155), cluster_of(2))
    found = meaning(written, tmp_path, 2, 1)
    assert replace(found.recipe.task, completion_tokens=None) == task
    assert without_what_has_no_effect(found.recipe, READS) == without_what_has_no_effect(recipe, READS)


def test_a_file_that_does_not_fit_is_changed(tmp_path):
    path = tmp_path / "train.yaml"
    sizes = {"base_model": "qwen2.5-7b", "sequence_len": 2000, "micro_batch_size": 4, "gradient_checkpointing": True}
    path.write_text(json.dumps(KEYS | sizes), encoding="utf-8")
    proposal = call("check", str(path), "--gpu", "a100-sxm4-40gb:1", "--fix").out
    assert "micro_batch_size 4 -> 2" in proposal
