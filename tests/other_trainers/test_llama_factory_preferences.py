"""LLaMA-Factory's files with ``stage: dpo`` and ``kto``: what they mean, take, and become when they are written."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planned import cluster, of_few_layers
from vlmplan.errors import InputError
from vlmplan.estimation import Estimator
from vlmplan.estimation.references import beside_bytes
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.other_trainers.writing import Tool, settings_for, usual
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Reference, TaskKind, TaskTrainer
from vlmplan.request import parse
from vlmplan.workload import Workload
from written_setups import READS, SEES, cluster_of, meaning, sample, within, without_what_has_no_effect

KEYS: dict[str, Any] = {"stage": "dpo", "do_train": True, "finetuning_type": "lora", "bf16": True, "cutoff_len": 300}
DPO = TrainingTask(kind=TaskKind.DPO, trainer=TaskTrainer.LLAMA_FACTORY)
ALONE = replace(DPO, reference=Reference.NONE)
KTO = replace(DPO, kind=TaskKind.KTO)


def read(folder: Path, **values: Any) -> Any:
    path = folder / "train.json"
    path.write_text(json.dumps(KEYS | values), encoding="utf-8")
    return read_trainer_config(path, Asked(model="qwen2.5-0.5b", num_gpus=1, find_model=find_model))


def test_a_loss_without_a_reference_is_read_as_one(tmp_path):
    for loss in ("sigmoid", "hinge", "ipo", "kto_pair"):
        assert "reference" not in read(tmp_path, pref_loss=loss).options
    for loss in ("orpo", "simpo"):
        assert read(tmp_path, pref_loss=loss).options["reference"] == "none"


def test_answers_that_are_good_or_bad_have_a_reference_whatever_the_loss_of_pairs_is(tmp_path):
    options = read(tmp_path, stage="kto", pref_loss="orpo", kto_chosen_weight=2.0).options
    assert (options["task"], options["task_trainer"], options["loss"]) == ("kto", "llamafactory", "log-softmax")
    assert "reference" not in options


@pytest.mark.parametrize("stage", ["dpo", "kto"])
def test_an_evaluation_is_planned_for_its_loss_whatever_is_counted_of_samples(tmp_path, stage: str):
    keys: dict[str, Any] = {"stage": stage, "eval_strategy": "steps", "eval_steps": 5, "val_size": 20}
    options = read(tmp_path, **keys, compute_accuracy=True, eval_accumulation_steps=2).options
    assert (options["eval_batch"], options["eval_keeps"], options["eval_samples"]) == (8, "loss", 20)
    assert "eval_accumulation" not in options
    fsdp = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2}}
    shared = read(tmp_path, **keys, **fsdp)
    assert "eval_batch" not in shared.options
    assert any("not planned with this task" in str(note) for note in shared.notes)


def evaluated_logits(recipe: Recipe, task: TrainingTask) -> float:
    """Bytes of each logit at the highest moment of an evaluation with two rows a batch, beside what stays."""
    recipe = recipe.with_changes(evaluation=Evaluation(batch=2 // task.rows_per_sample), task=task)
    workload = Workload(model=of_few_layers("qwen2.5-0.5b", 1), seq_len=256)
    *_, step, evaluation, _ = Estimator(workload, recipe).timeline(recipe, cluster(num_gpus=2)).phases
    assert (step.name, evaluation.name) == ("step", "evaluation")
    return (evaluation.peak.logits - step.resident.logits) / (2 * 256 * 151_936)


@pytest.mark.parametrize("stage", [0, 3])
def test_logits_of_an_evaluation_stay_until_the_reference_has_run(stage: int):
    recipe = Recipe(method=Method.LORA, loss=LossKind.LOG_SOFTMAX, zero_stage=stage, micro_batch=2)
    assert evaluated_logits(recipe, DPO) == pytest.approx(4 + 4 + 4 + 4, rel=0.01)
    assert evaluated_logits(recipe, ALONE) == pytest.approx(4 + 4 + 4, rel=0.01)
    assert evaluated_logits(recipe, KTO) == pytest.approx(4 + 4 + 4 + 4 + 4, rel=0.01)


def test_one_answer_is_enough_for_a_micro_batch_as_others_are_taken_from_the_sample_before():
    assert KTO.least_micro_batch == 1
    assert replace(KTO, trainer=TaskTrainer.TRL).least_micro_batch == 2


def test_liger_has_layers_alone_where_logits_are_wanted(tmp_path):
    options = read(tmp_path, enable_liger_kernel=True).options
    assert (options["liger_layers"], options["loss"]) == (True, "log-softmax")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"pref_loss": "dpop"}, 'pref_loss is "dpop"; one of sigmoid, hinge, ipo, kto_pair, orpo, simpo is needed'),
        ({"neat_packing": True}, "neat_packing is true; LLaMA-Factory takes it with stage: sft alone"),
        ({"pissa_init": True}, "pissa_init is true; LLaMA-Factory does not start adapters from PiSSA beside"),
        ({"ref_model": "a/b"}, 'ref_model is "a/b"; a second model beside adapters is not planned'),
        ({"ref_model": "a/b", "finetuning_type": "full"}, "a reference other than model_name_or_path"),
        ({"stage": "rm"}, "[(]pre-training[)], dpo and kto are planned, and --task reward is TRL's"),
        ({"stage": "kto", "neat_packing": True}, "LLaMA-Factory takes it with stage: sft alone"),
        ({"stage": "kto", "pissa_init": True}, "does not start adapters from PiSSA beside"),
    ],
)
def test_what_its_parser_refuses_and_what_is_not_planned_is_told(values, words, tmp_path):
    with pytest.raises(InputError, match=words):
        read(tmp_path, **values)


SETUPS: dict[str, dict[str, Any]] = {
    "full": {"task": DPO, "zero_stage": 2},
    "lora": {"task": DPO, "method": Method.LORA, "lora_dropout": 0.1},
    "qlora": {"task": DPO, "method": Method.QLORA},
    "without-a-reference": {"task": ALONE, "method": Method.LORA, "liger_layers": True},
    "labels": {"task": KTO, "zero_stage": 2},
    "labels-lora": {"task": KTO, "method": Method.LORA, "zero_stage": 3},
    "sharded": {"task": DPO, "method": Method.LORA, "zero_stage": 3},
    "sharded-reentrant": {"task": replace(DPO, reentrant_checkpoints=True), "method": Method.LORA, "zero_stage": 3},
}


@pytest.mark.parametrize("model", [READS, SEES], ids=["reads", "sees"])
@pytest.mark.parametrize("name", SETUPS)
def test_a_reader_takes_back_what_was_written(name, model, tmp_path):
    asked = Recipe(micro_batch=4, grad_accum=6, activation_checkpointing=True)
    recipe = usual(Tool.LLAMA_FACTORY, model).applied_to(asked).with_changes(**SETUPS[name])
    recipe = within(Tool.LLAMA_FACTORY, recipe, model).with_changes(loss=LossKind.LOG_SOFTMAX)
    workload = sample(model, seq_len=1155)
    written = settings_for(Tool.LLAMA_FACTORY, recipe, workload, cluster_of(2))
    found = meaning(written, tmp_path, 2, 1)
    assert found.workload.seq_len == 1155
    assert replace(found.recipe.task, completion_tokens=None) == recipe.task
    assert without_what_has_no_effect(found.recipe, model) == without_what_has_no_effect(recipe, model)


@pytest.mark.parametrize("task", [DPO, KTO], ids=lambda task: task.kind.value)
def test_options_plan_it_too(task):
    for options in ({"made_for": "llamafactory"}, {"task_trainer": "llamafactory"}):
        asked = parse({"model": "qwen2.5-0.5b", "task": task.kind.value, **options})
        assert (asked.made_for, asked.decided.loss) == (Tool.LLAMA_FACTORY, LossKind.LOG_SOFTMAX)
        assert asked.decided.task == task


def test_logits_of_good_and_bad_answers_are_copied_while_the_reference_runs_twice():
    workload, on = Workload(model=of_few_layers("qwen2.5-0.5b", 1), seq_len=64), cluster()
    lora = Recipe(zero_stage=None, loss=LossKind.LOG_SOFTMAX, method=Method.LORA, micro_batch=2)
    kto, alone = lora.with_changes(task=KTO), lora.with_changes(task=ALONE, micro_batch=1)
    peaks = [Estimator(workload, recipe).timeline(recipe, on).peak.total for recipe in (kto, alone)]
    logits = 2 * 64 * 151_936
    assert peaks[0] - peaks[1] == pytest.approx((4 + 4 + 4) * logits, rel=0.05)
    flops = [Estimator(workload, recipe).trace(recipe, (8, 0)).works()[0].flops for recipe in (kto, alone)]
    assert 3.8 * flops[1] < flops[0] < 4 * flops[1]  # of four forwards two are without adapters


def test_a_second_model_is_in_16_bit_beside_trained_weights_in_float32():
    recipe = Recipe(zero_stage=None, loss=LossKind.LOG_SOFTMAX, task=DPO)
    estimator = Estimator(Workload(model=of_few_layers("qwen2.5-0.5b", 1), seq_len=64), recipe)
    assert beside_bytes(estimator.table, recipe, 1) == 2 * estimator.table.num_params
    assert estimator.table.total_bytes == 4 * estimator.table.num_params


def test_the_references_forward_takes_memory_and_time():
    workload, on = Workload(model=of_few_layers("qwen2.5-0.5b", 1), seq_len=64), cluster()
    with_one = Recipe(zero_stage=None, loss=LossKind.LOG_SOFTMAX, task=DPO, method=Method.LORA)
    peaks, seconds, flops = [], [], []
    for recipe in (with_one, with_one.with_changes(task=ALONE)):
        estimator = Estimator(workload, recipe)
        timed = estimator.step_time(recipe, on)
        assert timed is not None
        peaks.append(estimator.timeline(recipe, on).peak.total)
        seconds.append(timed.fast_seconds)
        flops.append(estimator.trace(recipe, (8, 0)).works()[0].flops)
    logits, of_head = 2 * 64 * 151_936, 2 * 2 * 64 * 151_936 * 896
    assert peaks[0] - peaks[1] == pytest.approx((4 + 4) * logits, rel=0.05)
    assert flops[1] > flops[0] - flops[1] > of_head  # the reference is without adapters
    assert seconds[0] > seconds[1]
