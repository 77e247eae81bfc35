"""ms-swift's ``swift rlhf`` for grpo: what its keys mean, what is refused, and what is moved while vLLM generates."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli_calls import call
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked
from vlmplan.other_trainers.read import read_trainer_config

KEYS: dict[str, Any] = {"rlhf_type": "grpo", "torch_dtype": "bfloat16"}
PARAMS = 494_032_768
"""Of Qwen2.5-0.5B."""
COLOCATED = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.4}


@pytest.fixture
def read(tmp_path: Path):
    def config(model: str = "qwen2.5-0.5b", num_gpus: int | None = 4, **values: Any) -> Any:
        path = tmp_path / "train.json"
        path.write_text(json.dumps(KEYS | values), encoding="utf-8")
        return read_trainer_config(path, Asked(model=model, num_gpus=num_gpus, find_model=find_model))

    return config


def test_its_defaults_are_a_step_of_one_micro_batch_and_a_reference_without_adapters(read):
    options = read().options
    expected = {"task": "grpo", "task_trainer": "ms-swift", "loss": "tempered", "reference": "adapter-off"}
    expected |= {"generation": "transformers", "num_generations": 8, "num_iterations": 1, "grad_accum": 1}
    assert {key: options[key] for key in expected} == expected
    assert options["lora_dropout"] == 0.05
    assert read(tuner_type="full").options["reference"] == "copy"
    assert read(tuner_type="full", beta=0).options["reference"] == "none"


@pytest.mark.parametrize("values", [{"log_entropy": True}, {"top_entropy_quantile": 0.2}])
def test_entropies_are_kept_where_they_are_asked_for(read, values):
    assert read(**values).options["loss"] == "tempered-entropy"
    assert read(log_entropy=False, top_entropy_quantile=1.0).options["loss"] == "tempered"


def test_colocated_vllm_has_its_own_defaults(read):
    found = read(**(COLOCATED | {"vllm_gpu_memory_utilization": None})).options
    assert [found[name] for name in ("generation", "vllm_memory_utilization", "vllm_sleep_level")] == ["vllm", 0.9, 0]
    more = {"offload_model": True, "offload_optimizer": True, "sleep_level": 1, "move_model_batches": 5}
    found = read(**COLOCATED, **more).options
    assert [found[name] for name in ("idle_offload", "vllm_sleep_level", "sync_groups")] == ["all", 1, 5]


def test_a_server_gets_weights_through_a_buffer_and_nothing_is_moved_for_it(read):
    server = {"use_vllm": True, "vllm_mode": "server", "offload_model": True, "sleep_level": 1}
    found = read(**server).options
    assert [found[name] for name in ("generation", "sync_buffer_mib")] == ["server", 512]
    assert "idle_offload" not in found
    assert read(**server, enable_flattened_weight_sync=False).options["sync_buffer_mib"] == 0
    assert read(**server, ENV={"SWIFT_UPDATE_WEIGHTS_BUCKET_SIZE": "64"}).options["sync_buffer_mib"] == 64


def test_prompts_and_answers_are_no_longer_than_vllm_lets_them_be(read):
    lengths = ("seq_len", "max_completion_tokens")
    assert [read().options[name] for name in lengths] == [1024, 512]
    assert [read(max_length=2048, max_completion_length=1024).options[name] for name in lengths] == [3072, 1024]
    limited = COLOCATED | {"max_length": 2048, "max_completion_length": 1024, "vllm_max_model_len": 2048}
    assert [read(**limited).options[name] for name in lengths] == [2048, 1024]
    limited |= {"max_completion_length": 2048}
    assert [read(**limited).options[name] for name in lengths] == [2048, 2048 - 512]
    seen = read("qwen2.5-vl-3b").options
    assert [seen[name] for name in lengths] == [512 + 256 + 512, 512]
    assert read("qwen2.5-vl-3b", max_pixels=602112).options["seq_len"] == 512 + 784 + 512


def test_answers_at_once_may_be_said_of_all_gpus(read):
    values = {"per_device_train_batch_size": 2, "generation_batch_size": 32}
    assert read(**values).options["steps_per_generation"] == 4
    assert read(**values, steps_per_generation=4).options["steps_per_generation"] == 4
    with pytest.raises(InputError, match=r"generation_batch_size is 32; 64 is needed"):
        read(**values, steps_per_generation=8)
    with pytest.raises(InputError, match="of how many GPUs is not known"):
        read(num_gpus=None, **values)


def test_stage_3_fetches_nothing_ahead(read):
    config = read(deepspeed="zero3").ds_config
    assert config.zero_settings(3, hidden_size=64).stage3_prefetch_bucket_size == 0
    assert config.zero_settings(3, hidden_size=64).stage3_param_persistence_threshold == 640
    usual = read(deepspeed="zero3", rlhf_type="dpo").ds_config.zero_settings(3, hidden_size=64)
    assert usual.stage3_prefetch_bucket_size > 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"teacher_model": "a/b"}, "a teacher on the same GPUs"),
        ({"advantage_reweight": "rlsd"}, "a second forward of the model over a teacher's prompt"),
        ({"sdar_loss_coef": 0.1}, "a second forward of the model over a teacher's prompt"),
        ({"chord_sft_dataset": ["a"]}, "samples of fine-tuning beside rewards"),
        ({"ref_adapters": "a/b"}, "a reference with adapters of its own is not planned"),
        ({"ref_model": "a/b"}, "ms-swift takes it without adapters alone"),
        ({"ref_model": "a/b", "tuner_type": "full"}, "a reference other than model is not planned"),
        ({"sync_ref_model": True}, "a reference that follows the model"),
        ({"use_liger_kernel": True}, "Liger's loss of GRPO"),
        ({"use_vllm": True}, "ms-swift needs vllm_mode too: colocate or server"),
        ({"vllm_mode": "server"}, "it goes with use_vllm true"),
        ({"loss_type": "other"}, "grpo, bnpo, dr_grpo, dapo"),
        ({"sequence_parallel_size": 2}, "ms-swift's own Ulysses"),
        ({"num_generations": 1}, "a number of 2 or more is needed"),
        ({"ds3_gather_for_generation": False}, "answers of a sharded model"),
        ({"beta_": 1}, "unknown key 'beta_'"),
    ],
)
def test_what_is_not_planned_is_refused_by_name(read, values, words):
    with pytest.raises(InputError) as caught:
        read(**values)
    assert words in str(caught.value)


def test_what_a_file_cannot_say_of_rows_and_rewards_is_noted(read):
    notes = read(multi_turn_scheduler="a", reward_model=["m/n"], vllm_engine_kwargs='{"a": 1}').notes
    for words in ("a row has several turns", "m/n rewards", "is handed to vLLM"):
        assert any(words in note for note in notes)


@pytest.mark.parametrize("values", [COLOCATED | {"move_model_batches": 4, "log_entropy": True}, {"beta": 0.0}])
def test_a_file_is_written_anew_as_it_was(values, tmp_path):
    path, out = tmp_path / "train.json", tmp_path / "out"
    named = {"model": "qwen2.5-0.5b", "deepspeed": "zero2", "max_length": 200, "max_completion_length": 100}
    path.write_text(json.dumps(KEYS | values | named | {"per_device_train_batch_size": 8}), encoding="utf-8")
    machine = ("--gpu", "a100-sxm4-80gb:1")
    call("recommend", "--config", str(path), *machine, "--for", "ms-swift", "--out", str(out))
    before, after = (
        call("check", str(file), *machine, "--json").document["estimate"]["phases"]
        for file in (path, out / "train.yaml")
    )
    assert before == after


def peaks(*words: str) -> dict[str, Any]:
    base = "estimate --model qwen2.5-0.5b --gpu a100-sxm4-80gb:2 --task grpo --task-trainer ms-swift --micro-batch 4 "
    base += "--seq-len 300 --max-completion-tokens 100 --generation vllm --vllm-memory-utilization 0.4 --json"
    document = call(*base.split(), *words).document
    return {phase["name"]: phase["peak_bytes"] for phase in document["phases"]}


def test_weights_and_states_that_are_moved_are_gone_while_vllm_generates():
    words = ("--zero-stage", "none", "--method", "full")
    stay, moved = peaks(*words), peaks(*words, "--idle-offload", "all")
    assert stay["generate"] - moved["generate"] == pytest.approx((4 + 4 + 4) * PARAMS, rel=0.01)
    for phase in ("reference", "forward", "backward", "step"):
        assert stay[phase] == moved[phase]


def test_flat_weights_of_zero_2_stay_and_stand_twice_until_the_step_ends():
    words = ("--zero-stage", "2", "--method", "full")
    stay, moved = peaks(*words), peaks(*words, "--idle-offload", "weights")
    assert stay["generate"] == moved["generate"]
    for phase in ("reference", "forward", "backward", "step"):
        assert moved[phase] - stay[phase] == pytest.approx(2 * PARAMS, rel=0.001)


def test_frozen_weights_beside_adapters_go_under_zero_3_too():
    words = ("--zero-stage", "3", "--method", "lora")
    stay, moved = peaks(*words), peaks(*words, "--idle-offload", "weights")
    assert stay["generate"] - moved["generate"] == pytest.approx(2 * PARAMS / 2, rel=0.01)


def test_weights_are_gathered_for_vllm_group_by_group():
    words = ("--zero-stage", "3", "--method", "full")
    at_once, in_groups = peaks(*words), peaks(*words, "--sync-groups", "8")
    assert at_once["sync"] - in_groups["sync"] > 2 * PARAMS / 2


def test_frozen_shards_of_the_host_stay_on_the_gpu_once_they_have_come_back():
    words = ("--zero-stage", "3", "--method", "lora", "--offload-params", "cpu", "--offload-optimizer", "cpu")
    stay, moved = peaks(*words), peaks(*words, "--idle-offload", "weights")
    for phase in ("sync", "reference", "forward", "backward", "step"):
        assert moved[phase] - stay[phase] == pytest.approx(2 * PARAMS / 2, rel=0.03)
