"""ms-swift's ``swift rlhf`` for dpo, kto, orpo, cpo and simpo: what its keys mean, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli_calls import DONE, call
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.other_trainers.writing import Tool, settings_for, usual
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, Batching, InputGradients, LossKind, Method
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import KTOLoss, Reference, TaskKind, TaskTrainer
from vlmplan.request import parse
from written_setups import READS, cluster_of, meaning, sample, within, without_what_has_no_effect

KEYS: dict[str, Any] = {"rlhf_type": "dpo", "model": "qwen2.5-0.5b", "torch_dtype": "bfloat16", "max_length": 300}
DPO = TrainingTask(kind=TaskKind.DPO, trainer=TaskTrainer.MS_SWIFT)
KTO = replace(DPO, kind=TaskKind.KTO)


def read(path: Path, **values: Any) -> Any:
    path.write_text(json.dumps(KEYS | values), encoding="utf-8")
    return read_trainer_config(path, Asked(num_gpus=1, find_model=find_model))


def script(folder: Path, command: str) -> Any:
    path = folder / "train.sh"
    path.write_text(f"{command} --model qwen2.5-0.5b --max_length 300\n", encoding="utf-8")
    return read_trainer_config(path, Asked(num_gpus=1, find_model=find_model))


def test_pairs_have_its_own_loss_and_no_dropout(tmp_path):
    options = read(tmp_path / "train.json", lora_dropout=0.1, loss_type=["sigmoid", "sft"], rpo_alpha=0.1).options
    found = {key: options[key] for key in ("task", "task_trainer", "loss", "lora_dropout", "seq_len")}
    expected = {"task": "dpo", "task_trainer": "ms-swift", "loss": "selective", "lora_dropout": 0.0, "seq_len": 300}
    assert found == expected


def test_answers_that_are_good_or_bad_have_the_same_loss(tmp_path):
    for name, kept in (("kto", "kto"), ("apo_zero_unpaired", "apo-zero-unpaired")):
        options = read(tmp_path / "train.json", rlhf_type="kto", loss_type=name, desirable_weight=0.5).options
        found = [options[key] for key in ("task", "task_trainer", "loss", "kto_loss")]
        assert found == ["kto", "ms-swift", "selective", kept]


def test_answers_to_other_prompts_have_images_of_their_own(tmp_path):
    sees = {"model": "qwen2.5-vl-3b", "rlhf_type": "kto", "per_device_train_batch_size": 2}
    held = []
    for loss in ("kto", "apo_zero_unpaired"):
        (tmp_path / "train.json").write_text(json.dumps(KEYS | sees | {"loss_type": loss}), encoding="utf-8")
        words = (str(tmp_path / "train.json"), "--gpu", "a100-sxm4-80gb", "--image-size", "448x448", "--seq-len", "512")
        phases = {one["name"]: one for one in call("check", *words, "--json").document["estimate"]["phases"]}
        held.append(phases["step"]["resident_bytes"] - phases["init"]["resident_bytes"])
    pixels, of_text = 2 * 1024 * 1176 * 4, 2 * 512 * 3 * 8
    waiting = 8  # micro batches of a step, which come together
    assert held[0] - held[1] == pytest.approx(waiting * (pixels + of_text), rel=0.001)


@pytest.mark.parametrize("kind", ["dpo", "kto", "orpo", "simpo"])
def test_an_evaluation_is_planned_for_its_loss(tmp_path, kind: str):
    keys = {"rlhf_type": kind, "eval_strategy": "steps", "eval_steps": 10, "per_device_eval_batch_size": 4}
    found = read(tmp_path / "train.json", **keys, split_dataset_ratio=0.1, eval_metric="acc")
    options = found.options
    assert (options["eval_batch"], options["eval_keeps"], options["eval_every"]) == (4, "loss", 10)
    assert not any("not planned with this task" in str(note) for note in found.notes)


def test_a_reward_model_is_read_with_its_head_and_without_a_reference(tmp_path):
    keys: dict[str, Any] = {"rlhf_type": "rm", "center_rewards_coefficient": 0.1, "eval_strategy": "epoch"}
    options = read(tmp_path / "train.json", **keys, lora_dropout=0.1, split_dataset_ratio=0.1).options
    found = {key: options[key] for key in ("task", "loss", "lora_dropout", "reentrant_checkpoints", "eval_batch")}
    assert found == {
        "task": "reward",
        "loss": "bradley-terry",
        "lora_dropout": 0.0,
        "reentrant_checkpoints": False,
        "eval_batch": 1,
    }
    assert script(tmp_path, "swift rlhf --rlhf_type rm --deepspeed zero3").options["task"] == "reward"


def test_three_kinds_have_no_reference_and_take_the_same(tmp_path):
    found = [
        read(tmp_path / "train.json", rlhf_type=kind, **values).options
        for kind, values in (
            ("orpo", {"beta": 0.2}),
            ("cpo", {"loss_type": "hinge", "cpo_alpha": 0.5}),
            ("simpo", {"simpo_gamma": 0.5}),
        )
    ]
    assert found[0]["reference"] == Reference.NONE.value
    assert found[0] == found[1] == found[2]


def test_a_step_of_one_answer_has_no_other(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(KEYS | {"rlhf_type": "kto"}), encoding="utf-8")
    words = ("check", str(tmp_path / "train.json"), "--gpu")
    alone = call(*words, "a100-sxm4-80gb:1", "--micro-batch", "1", "--grad-accum", "1")
    assert "takes answers to other prompts from those of a step, which has one" in alone.err
    assert call(*words, "a100-sxm4-80gb:2", "--micro-batch", "1", "--grad-accum", "1").code == DONE
    asked = ("--model", "qwen2.5-0.5b", "--task", "kto", "--for", "ms-swift", "--gpu", "a100-sxm4-80gb")
    assert "which has one" in call("recommend", *asked, "--global-batch", "1").err
    assert call("recommend", *asked).code == DONE


def test_dpo_is_what_the_command_trains_where_nothing_is_said(tmp_path):
    for command in ("swift rlhf", "swift rlhf --rlhf_type dpo", "torchrun -m swift.cli.rlhf"):
        assert script(tmp_path, command).options["task"] == "dpo"
    assert "task" not in script(tmp_path, "swift sft").options


def test_padding_free_pairs_are_one_row(tmp_path):
    options = read(tmp_path / "train.json", padding_free=True, attn_impl="flash_attn").options
    assert options["batching"] == "padding-free"


def test_options_plan_it_too():
    asked = parse({"model": "qwen2.5-0.5b", "task": "dpo", "task_trainer": "ms-swift"})
    assert asked.decided.loss is LossKind.SELECTIVE
    assert asked.decided.task == DPO


@pytest.mark.parametrize(
    ("task", "batching"),
    [
        (replace(DPO, reference=Reference.NONE), Batching.PADDED),
        *(
            (task, batching)
            for task in (DPO, KTO, replace(KTO, kto_loss=KTOLoss.APO_ZERO))
            for batching in (Batching.PADDED, Batching.PADDING_FREE)
        ),
    ],
)
def test_a_reader_takes_back_what_was_written(task, batching, tmp_path):
    flash = {"attention": AttentionImplementation.FLASH_ATTENTION_2, "batching": batching}
    asked = Recipe(micro_batch=4, grad_accum=6, activation_checkpointing=True)
    changes = {"task": task, "method": Method.LORA, "zero_stage": 2, "lora_dropout": 0.0, **flash}
    recipe = usual(Tool.MS_SWIFT, READS).applied_to(asked).with_changes(**changes)
    recipe = within(Tool.MS_SWIFT, recipe, READS).with_changes(loss=LossKind.SELECTIVE)
    written = settings_for(Tool.MS_SWIFT, recipe, sample(READS, seq_len=1155), cluster_of(2))
    assert written.command == ("swift", "rlhf", "train.yaml")
    found = meaning(written, tmp_path, 2, 1)
    assert replace(found.recipe.task, completion_tokens=None) == task
    assert without_what_has_no_effect(found.recipe, READS) == without_what_has_no_effect(recipe, READS)


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_a_reward_model_is_written_as_it_is_read(method: Method, tmp_path):
    task = TrainingTask(kind=TaskKind.REWARD, reentrant_checkpoints=False)
    asked = Recipe(micro_batch=4, grad_accum=6, activation_checkpointing=True)
    changes = {"task": task, "method": method, "zero_stage": 3, "lora_dropout": 0.0}
    recipe = within(Tool.MS_SWIFT, usual(Tool.MS_SWIFT, READS).applied_to(asked).with_changes(**changes), READS)
    recipe = recipe.with_changes(loss=LossKind.BRADLEY_TERRY, input_gradients=InputGradients.LANGUAGE)
    written = settings_for(Tool.MS_SWIFT, recipe, sample(READS, seq_len=1155), cluster_of(2))
    assert written.settings["rlhf_type"] == "rm"
    found = meaning(written, tmp_path, 2, 1)
    assert without_what_has_no_effect(found.recipe, READS) == without_what_has_no_effect(recipe, READS)


def test_a_file_that_does_not_fit_is_changed(tmp_path):
    path = tmp_path / "train.sh"
    keys = "--per_device_train_batch_size 4 --gradient_accumulation_steps 4 --max_length 2048"
    path.write_text(f"swift rlhf --model qwen2.5-7b {keys}\n", encoding="utf-8")
    proposal = call("check", str(path), "--gpu", "a100-sxm4-40gb:1", "--fix").out
    assert "per_device_train_batch_size 4 -> 2" in proposal


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loss_type": "dpop"}, 'loss_type is "dpop"; vlmplan has no memory model of it; sigmoid, hinge, ipo'),
        ({"ref_model": "a/b"}, 'ref_model is "a/b"; ms-swift takes it without adapters alone'),
        ({"ref_model": "a/b", "tuner_type": "full"}, "a reference other than model is not planned"),
        ({"ref_adapters": "a/b"}, "a reference with adapters of its own is not planned"),
        ({"packing": True, "attn_impl": "flash_attn"}, "packing is true; answers are planned as they are"),
        ({"rlhf_type": "ppo"}, "a configuration of swift rlhf for ppo, which is not planned"),
        ({"rlhf_type": "rm", "ref_model": "a/b"}, "rlhf_type rm has no reference"),
        ({"rlhf_type": "rm", "padding_free": True}, "ms-swift takes neither with rlhf_type rm"),
        ({"rlhf_type": "rm", "use_liger_kernel": True}, "Liger's kernels in a model that scores"),
        ({"rlhf_type": "orpo", "ref_model": "a/b"}, "ms-swift takes none with rlhf_type orpo"),
        ({"rlhf_type": "orpo", "padding_free": True}, "ms-swift does not take it with rlhf_type orpo"),
        ({"rlhf_type": "cpo", "loss_type": "kto"}, "sigmoid, hinge, ipo, simpo are planned"),
        ({"rlhf_type": "simpo", "cpo_alpha": 0}, "a loss without the likelihood of chosen answers"),
        ({"rlhf_type": "kto", "loss_type": "sigmoid"}, "one of kto, apo_zero_unpaired is needed"),
    ],
)
def test_what_is_not_planned_is_refused_by_its_key(values, words, tmp_path):
    with pytest.raises(InputError, match=words):
        read(tmp_path / "train.json", **values)


def test_a_script_of_another_kind_is_told_by_what_it_trains(tmp_path):
    with pytest.raises(InputError, match="starts swift rlhf for gkd, which is not planned; swift sft, pt and rlhf"):
        script(tmp_path, "swift rlhf --rlhf_type gkd")
    assert script(tmp_path, "swift rollout --port 1\nswift rlhf --rlhf_type grpo").options["task"] == "grpo"
