"""axolotl's ``rl: grpo`` and ``gdpo``: what its keys mean, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli_calls import call
from other_trainers.axolotl_keys import LORA, WHOLE
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked
from vlmplan.other_trainers.axolotl.rewards import NEEDS_ASYNC, OF_SERVER, WITHOUT_EFFECT
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.other_trainers.writing import Tool, settings_for, usual
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Method
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, Reference, TaskKind, TaskTrainer
from vlmplan.request import parse
from written_setups import READS, cluster_of, meaning, sample, within, without_what_has_no_effect

REWARDED: dict[str, Any] = {"reward_funcs": ["rewards.one"], "num_generations": 4, "max_completion_length": 100}
KEYS: dict[str, Any] = {**LORA, "rl": "grpo", "trl": REWARDED, "datasets": [{"path": "p", "type": "rewards.prompts"}]}
HERE: dict[str, Any] = {"use_vllm": True, "vllm_mode": "colocate"}


def read(path: Path, num_gpus: int = 1, **values: Any) -> Any:
    file = path / "train.yaml"
    file.write_text(json.dumps(KEYS | values), encoding="utf-8")
    return read_trainer_config(file, Asked(num_gpus=num_gpus, find_model=find_model))


def with_trl(path: Path, *, vllm: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    return read(path, trl=REWARDED | values, vllm=vllm).options


def test_answers_are_planned_as_its_trainer_has_them(tmp_path):
    found = read(tmp_path, lora_dropout=0.1)
    options = found.options
    assert (options["task"], options["task_trainer"], options["loss"]) == ("grpo", "axolotl", "axolotl-answers")
    assert (options["seq_len"], options["max_completion_tokens"], options["num_generations"]) == (612, 100, 4)
    assert (options["reference"], options["lora_dropout"], options["generation"]) == ("none", 0.1, "transformers")
    assert any("sequence_len is not read" in str(note) for note in found.notes)


def test_gdpo_is_grpo_with_other_rewards(tmp_path):
    found = read(tmp_path, rl="gdpo")
    assert found.options == read(tmp_path).options
    assert any("written anew" in str(note) for note in found.notes)


@pytest.mark.parametrize("keys", [{"trl": REWARDED | {"beta": 0.1}}, {"rl_beta": 0.1}])
def test_beta_asks_for_a_reference(keys, tmp_path):
    assert read(tmp_path, **keys).options["reference"] == Reference.ADAPTER_OFF.value
    assert read(tmp_path, **keys, **WHOLE).options["reference"] == Reference.COPY.value


def test_trl_makes_adapters_of_packed_weights_narrow(tmp_path):
    assert read(tmp_path, adapter="qlora", load_in_4bit=True).options["adapter_dtype"] == "model"


def test_vllm_is_a_server_unless_it_is_said_to_be_here(tmp_path):
    assert with_trl(tmp_path, use_vllm=True)["generation"] == Generation.SERVER.value
    here = with_trl(tmp_path, **HERE, vllm={"tensor_parallel_size": 1})
    assert (here["generation"], here["vllm_memory_utilization"], here["vllm_sleep_level"]) == ("vllm", 0.9, 0)
    asleep = with_trl(tmp_path, **HERE, vllm_enable_sleep_mode=True, vllm={"tensor_parallel_size": 1})
    assert asleep["vllm_sleep_level"] == 2


def test_generation_batch_size_is_of_all_gpus(tmp_path):
    options = read(tmp_path, num_gpus=2, trl=REWARDED | {"generation_batch_size": 8}).options
    assert options["steps_per_generation"] == 8 // (2 * 2)


def test_keys_of_numbers_and_of_servers_change_nothing(tmp_path):
    vllm = {"gpu_memory_utilization": 0.5, "tensor_parallel_size": 2} | dict.fromkeys(OF_SERVER, 1)
    idle = dict.fromkeys(WITHOUT_EFFECT, 1)
    assert with_trl(tmp_path, **idle, vllm=vllm) == read(tmp_path).options
    assert NEEDS_ASYNC < WITHOUT_EFFECT


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"async_prefetch": True}, "trl.async_prefetch is true; .*while it trains"),
        ({"use_data_producer": True}, "trl.use_data_producer is true"),
        ({"rollout_func": "a.b"}, "trl.rollout_func is .*one's own"),
        ({"use_liger_loss": True}, "Liger's loss of rewards"),
        ({"sync_ref_model": True}, "follows the model"),
        ({"loss_type": "ppo"}, 'trl.loss_type is "ppo"; .*dapo'),
        ({"reward_funcs": None}, "trl.reward_funcs is missing"),
        ({"max_completion_length": None}, "trl.max_completion_length is missing"),
        ({"num_generations": 3}, "asks that it divides .* which is 4"),
        ({"num_generations": 1}, "a number of 2 or more"),
        ({"generation_batch_size": 5}, "multiple of the 2 answers"),
        ({"steps_per_generation": 2}, "unknown key 'trl.steps_per_generation'"),
        ({"use_vllm": True, "vllm_mode": "both"}, "colocate or server"),
        (HERE, "vllm.tensor_parallel_size is missing"),
    ],
)
def test_what_is_not_planned_of_trl_is_refused_by_its_name(values, words, tmp_path):
    with pytest.raises(InputError, match=words):
        with_trl(tmp_path, **values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rl_beta": 0.1, "trl": REWARDED | {"beta": 0.2}}, "beta of trl is another"),
        ({"vllm": {"gpu_memory_utilisation": 0.5}}, "unknown key 'vllm.gpu_memory_utilisation'"),
        ({"sample_packing": True}, "refuses it with rl"),
        ({"fsdp_config": {"version": 2}}, "FSDP with rl: .*ZeRO"),
        ({"context_parallel_size": 2}, "context parallelism"),
        ({"rl_beta": 0.1, "lora_target_parameters": ["a"]}, "lora_target_parameters is .*with a reference"),
    ],
)
def test_what_is_not_planned_beside_it_is_refused_by_its_name(values, words, tmp_path):
    with pytest.raises(InputError, match=words):
        read(tmp_path, **values)


def test_several_gpus_need_as_many_groups(tmp_path):
    with pytest.raises(InputError, match="with 2 GPUs axolotl asks for 8 or more"):
        read(tmp_path, num_gpus=2)


def test_options_plan_it_too():
    asked = parse({"model": "qwen2.5-0.5b", "task": "grpo", "task_trainer": "axolotl"})
    assert asked.decided.loss is LossKind.AXOLOTL_ANSWERS


@pytest.mark.parametrize(
    ("method", "reference", "generation"),
    [
        (Method.FULL, Reference.COPY, Generation.TRANSFORMERS),
        (Method.LORA, Reference.ADAPTER_OFF, Generation.VLLM),
        (Method.QLORA, Reference.NONE, Generation.SERVER),
    ],
)
def test_a_reader_takes_back_what_was_written(method, reference, generation, tmp_path):
    memory = 0.4 if generation is Generation.VLLM else None
    sizes = {"completion_tokens": 100, "num_generations": 4, "vllm_memory": memory}
    own = {"reference": reference, "generation": generation, **sizes}
    task = TrainingTask(kind=TaskKind.GRPO, trainer=TaskTrainer.AXOLOTL, **own)
    asked = Recipe(micro_batch=4, grad_accum=6, activation_checkpointing=True)
    flash = {"attention": AttentionImplementation.FLASH_ATTENTION_2}
    recipe = usual(Tool.AXOLOTL, READS).applied_to(asked).with_changes(task=task, method=method, zero_stage=2, **flash)
    recipe = within(Tool.AXOLOTL, recipe, READS).with_changes(loss=LossKind.AXOLOTL_ANSWERS)
    written = settings_for(Tool.AXOLOTL, recipe, sample(READS, seq_len=1155), cluster_of(2))
    found = meaning(written, tmp_path, 2, 1)
    assert found.recipe.task == task
    assert without_what_has_no_effect(found.recipe, READS) == without_what_has_no_effect(recipe, READS)


def test_a_file_that_does_not_fit_is_changed(tmp_path):
    path = tmp_path / "train.yaml"
    sizes = {"base_model": "qwen2.5-7b", "micro_batch_size": 32, "gradient_checkpointing": True}
    path.write_text(json.dumps(KEYS | sizes | {"trl": REWARDED | {"max_completion_length": 2000}}), encoding="utf-8")
    proposal = call("check", str(path), "--gpu", "a100-sxm4-40gb:1", "--fix").out
    assert "micro_batch_size 32 -> " in proposal
