"""Files of ``trl dpo``, ``reward``, ``kto`` and ``grpo`` mean, read back, the setup that they were written from."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from vlmplan.cli.check import check
from vlmplan.cli.estimate import estimate
from vlmplan.cli.recommend import recommend
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers.writing import Tool, objection, settings_for, usual
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import InputGradients, LossKind, Method, Precision
from vlmplan.recipe.dropout import switches_dropout_off
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, KTOLoss, Reference, TaskKind
from written_setups import READS, SEES, cluster_of, meaning, sample, within, without_what_has_no_effect

DPO = TrainingTask(kind=TaskKind.DPO)
KTO = TrainingTask(kind=TaskKind.KTO)
REWARD = TrainingTask(kind=TaskKind.REWARD)
GRPO = TrainingTask(kind=TaskKind.GRPO, num_generations=4)
SERVED = TrainingTask(kind=TaskKind.GRPO, generation=Generation.SERVER, completion_tokens=64, reference=Reference.COPY)
BESIDE = TrainingTask(
    kind=TaskKind.GRPO,
    generation=Generation.VLLM,
    vllm_memory=0.25,
    vllm_sleep_level=2,
    vllm_tensor_parallel=2,
    steps_per_generation=12,
    num_iterations=3,
    reward_params=10**9,
    completion_tokens=96,
)
SETUPS: dict[str, dict[str, Any]] = {
    "dpo": {"task": DPO, "zero_stage": 2},
    "dpo-lora": {"task": DPO, "method": Method.LORA, "lora_dropout": 0.1},
    "dpo-qlora-precomputed": {
        "task": TrainingTask(kind=TaskKind.DPO, reference=Reference.PRECOMPUTED, completion_tokens=33),
        "method": Method.QLORA,
    },
    "dpo-lora-sharded": {
        "task": TrainingTask(kind=TaskKind.DPO, reentrant_checkpoints=True),
        "method": Method.LORA,
        "zero_stage": 3,
    },
    "reward": {"task": REWARD, "zero_stage": 2},
    "reward-lora": {"task": REWARD, "method": Method.LORA, "lora_dropout": 0.1},
    "reward-qlora": {"task": REWARD, "method": Method.QLORA},
    "reward-lora-sharded": {
        "task": TrainingTask(kind=TaskKind.REWARD, reentrant_checkpoints=True),
        "method": Method.LORA,
        "zero_stage": 3,
    },
    "kto": {"task": KTO, "zero_stage": 2, "micro_batch": 2},
    "kto-lora-precomputed": {
        "task": TrainingTask(kind=TaskKind.KTO, reference=Reference.PRECOMPUTED, kto_loss=KTOLoss.APO_ZERO),
        "method": Method.LORA,
        "lora_dropout": 0.1,
    },
    "kto-lora-sharded": {
        "task": TrainingTask(kind=TaskKind.KTO, reentrant_checkpoints=True, completion_tokens=33),
        "method": Method.LORA,
        "zero_stage": 3,
        "micro_batch": 2,
    },
    "grpo": {"task": GRPO, "zero_stage": 3},
    "grpo-evaluated": {"task": GRPO, "evaluation": Evaluation(batch=3, generations=2)},
    "grpo-lora-with-a-reference": {
        "task": TrainingTask(kind=TaskKind.GRPO, reference=Reference.ADAPTER_OFF),
        "method": Method.LORA,
    },
    "grpo-with-a-server": {"task": SERVED, "zero_stage": 2},
    "grpo-beside-vllm": {"task": BESIDE, "expandable_segments": False},
}


def within_trl(model: Any, **values: Any) -> Recipe:
    recipe = usual(Tool.TRL, model).applied_to(Recipe(micro_batch=4, grad_accum=6, activation_checkpointing=True))
    recipe = within(Tool.TRL, recipe.with_changes(**values), model)
    loss = LossKind.BRADLEY_TERRY if recipe.scores_rows else recipe.loss
    return recipe.with_changes(input_gradients=InputGradients.ALL, loss=loss)


def resolved(recipe: Recipe) -> TrainingTask:
    """Its task, with what it leaves open."""
    assert recipe.task is not None
    return replace(
        recipe.task,
        reference=recipe.reference,
        completion_tokens=recipe.task.answer_tokens(1155),
        disables_dropout=switches_dropout_off(recipe),
    )


@pytest.mark.parametrize(
    ("name", "model"),
    [
        (name, model)
        for name in SETUPS
        for model in (READS, SEES)
        if model is READS or not ("precomputed" in name or "reward" in name)
    ],
)
def test_a_reader_takes_back_what_was_written(name: str, model: Any, tmp_path: Path):
    recipe, cluster = within_trl(model, **SETUPS[name]), cluster_of(2)
    workload = sample(model, seq_len=1155)
    written = settings_for(Tool.TRL, recipe, workload, cluster)
    assert written.command[:2] == ("trl", name.partition("-")[0])
    found = meaning(written, tmp_path, 2, 1)
    assert (found.workload.seq_len, resolved(found.recipe)) == (1155, resolved(recipe))
    one, other = (item.with_changes(task=None) for item in (found.recipe, recipe))
    assert without_what_has_no_effect(one, model) == without_what_has_no_effect(other, model)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"task": DPO, "method": Method.LORA, "zero_stage": 3}, "leave --no-reentrant-checkpoints off"),
        ({"task": TrainingTask(kind=TaskKind.GRPO, generation=Generation.VLLM, vllm_sleep_level=1)}, "sleeps at level"),
    ],
)
def test_what_trls_scripts_do_otherwise_is_refused(values: dict[str, Any], words: str):
    with pytest.raises(InputError, match=words):
        settings_for(Tool.TRL, within_trl(READS, **values), sample(READS, seq_len=1155), cluster_of(2))


@pytest.mark.parametrize(("name", "is_switched_off"), [("olmo-3-7b", True), ("smolvlm2-256m", True), (READS.id, False)])
def test_answers_are_generated_with_a_cache_where_the_configuration_switches_it_off(name: str, is_switched_off: bool):
    model = find_model(name)
    written = settings_for(Tool.TRL, within_trl(model, task=GRPO), sample(model, seq_len=1155), cluster_of(2))
    assert written.settings.get("generation_kwargs") == ({"use_cache": True} if is_switched_off else None)


SHARDED = "--task dpo --zero-stage 3 --activation-checkpointing"
"""Where TRL's script makes checkpoints reentrant by itself."""


@pytest.mark.parametrize(
    "words",
    [
        "--task dpo --max-completion-tokens 128 --for trl",
        "--task grpo --generation vllm --for trl",
        f"{SHARDED} --for trl",
        *(f"--task kto --for {name}" for name in ("llamafactory", "ms-swift", "axolotl")),
        *(f"--task dpo --for {name}" for name in ("ms-swift", "axolotl")),
    ],
)
def test_check_of_what_recommend_writes_says_what_recommend_said(words: str, tmp_path: Path):
    card = ["--gpu", "a100-sxm4-80gb:1"]
    asked = [*f"--model qwen2.5-0.5b --method lora {words}".split(), *card, "--out", str(tmp_path), "--json"]
    made = json.loads(CliRunner().invoke(recommend, asked).output)
    read_back = made["made_for"]["check"].split()
    assert read_back[:2] == ["vlmplan", "check"]
    checked = json.loads(CliRunner().invoke(check, [*read_back[2:], "--json"]).output)
    assert checked["estimate"]["phases"] == made["plans"][0]["estimate"]["phases"]


def test_checkpoints_of_trls_script_are_reentrant_where_it_runs_and_launchs_are_not():
    asked = f"--model qwen2.5-0.5b --method lora {SHARDED} --seq-len 64 --gpu rtx-4090:2 --json".split()
    found = {
        words: json.loads(CliRunner().invoke(estimate, [*asked, *words.split()]).output)
        for words in ("", "--reentrant-checkpoints", "--for trl", "--for trl --reentrant-checkpoints")
    }
    said = {words: one["recipe"]["task"]["reentrant_checkpoints"] for words, one in found.items()}
    assert said == {words: bool(words) for words in found}
    peaks = {words: one["peak_allocated_bytes"] for words, one in found.items()}
    assert peaks["--for trl"] == peaks["--for trl --reentrant-checkpoints"]
    assert peaks["--reentrant-checkpoints"] > peaks[""]


@pytest.mark.parametrize("tool", Tool)
def test_no_loss_of_fp16_is_left_unscaled(tool: Tool):
    """DeepSpeed 0.19.8 divides gradients of fp16 by a scale at every stage, and multiplies the loss by it from ZeRO-1
    on; the bundled trainer does so itself in SFT."""
    recipe = usual(tool, READS).applied_to(Recipe(precision=Precision.FP16, method=Method.LORA))
    refused = "DeepSpeed divides gradients by a scale"
    assert refused in str(objection(tool, within(tool, recipe.with_changes(zero_stage=0), READS), READS))
    assert refused not in str(objection(tool, within(tool, recipe.with_changes(zero_stage=1), READS), READS))


def test_what_is_planned_of_a_task_on_cards_without_bf16_is_launched():
    told = CliRunner().invoke(recommend, ["--model", "smollm2-135m", "--gpu", "v100-sxm2-16gb", "--task", "dpo"])
    assert told.exit_code == 0
    assert "ZeRO-1" in told.output
    assert "launch refuses" not in told.output


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_reward_model_that_is_written_for_ms_swift_is_what_was_recommended(method: str, tmp_path: Path):
    card = ("--gpu", "a100-sxm4-80gb:1")
    asked = ["--model", "qwen2.5-0.5b", *card, "--task", "reward", "--for", "ms-swift", "--method", method, "--json"]
    found = CliRunner().invoke(recommend, [*asked, "--out", str(tmp_path)])
    assert found.exit_code == 0, found.exception
    best = json.loads(found.stdout)["plans"][0]
    assert "rlhf_type: rm" in (tmp_path / "train.yaml").read_text()
    again = CliRunner().invoke(check, [str(tmp_path / "train.yaml"), *card, "--json"])
    read = json.loads(again.stdout)["estimate"]
    assert read["recipe"]["task"]["kind"] == "reward"
    assert read["recipe"]["task"]["reentrant_checkpoints"] is False
    assert read["phases"] == best["estimate"]["phases"]
    otherwise = ("input_gradients", "model", "lora_alpha")  # of no checkpoints; by its other name; the file's number
    same = {key: value for key, value in best["recipe"].items() if key not in otherwise}
    assert {key: read["recipe"][key] for key in same} == same
    assert method == "full" or read["recipe"]["lora_alpha"] == 2 * best["recipe"]["lora_rank"]  # vlmplan's own
