"""verl's and EasyR1's GRPO: scripts and files as people have them, and what of them is refused."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.other_trainers.verl.common import FSDP1_AS_FSDP2
from vlmplan.other_trainers.verl.reading import WHICH_WORKER

SCRIPT = """set -x
ENGINE=${1:-vllm}
MODEL=Qwen/Qwen2.5-VL-7B-Instruct

python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/geo3k/train.parquet \\
    data.train_batch_size=512 \\
    data.max_prompt_length=1024 \\
    data.max_response_length=2048 \\
    data.truncation='error' \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.actor.strategy=fsdp2 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=10 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=20 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=20 \\
    actor_rollout_ref.rollout.name=$ENGINE \\
    +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.rollout.n=5 \\
    trainer.logger='["console","wandb"]' \\
    trainer.n_gpus_per_node=8 $@
"""
LEGACY = "trainer.use_legacy_worker_impl=auto"
MERGED = """actor_rollout_ref:
  actor:
    strategy: fsdp2
    ppo_mini_batch_size: 64
    ppo_epochs: 2
    use_dynamic_bsz: true
    ppo_max_token_len_per_gpu: 8192
    fsdp_config: {param_offload: true, optimizer_offload: true, model_dtype: fp32}
    use_remove_padding: ${oc.select:actor_rollout_ref.model.use_remove_padding,false}
  model: {path: Qwen/Qwen2.5-VL-7B-Instruct, use_remove_padding: true, use_fused_kernels: true}
  rollout:
    name: vllm
    n: 8
    log_prob_use_dynamic_bsz: ${oc.select:actor_rollout_ref.actor.use_dynamic_bsz,false}
    log_prob_max_token_len_per_gpu: 16384
    prompt_length: ${oc.select:data.max_prompt_length,512}
  ref:
    strategy: ${actor_rollout_ref.actor.strategy}
    log_prob_use_dynamic_bsz: ${oc.select:actor_rollout_ref.actor.use_dynamic_bsz,false}
    log_prob_max_token_len_per_gpu: 16384
algorithm: {adv_estimator: rloo}
critic: {enable: null}
data: {train_batch_size: 64, max_prompt_length: 1024, max_response_length: 1024}
trainer: {nnodes: 1, n_gpus_per_node: 4}
"""
EASYR1 = """data: {max_prompt_length: 2048, max_response_length: 2048, rollout_batch_size: 512}
algorithm: {adv_estimator: grpo, disable_kl: false, use_kl_loss: true}
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 1
    micro_batch_size_per_device_for_experience: 2
    model: {model_path: Qwen/Qwen2.5-VL-7B-Instruct, lora: {rank: 0, alpha: 64, exclude_modules: .*visual.*}}
    offload: {offload_params: true, offload_optimizer: true}
  rollout: {n: 5, gpu_memory_utilization: 0.6, tensor_parallel_size: 2}
  ref: {fsdp: {enable_cpu_offload: true}}
trainer: {nnodes: 1, n_gpus_per_node: 8, save_freq: 5}
"""


@pytest.fixture
def read(tmp_path: Path):
    def config(text: str, name: str = "run.sh", num_gpus: int | None = None) -> TrainerConfig:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_trainer_config(path, Asked(num_gpus=num_gpus, find_model=find_model))

    return config


def sentence(read, text: str, name: str = "run.sh") -> str:
    with pytest.raises(InputError) as caught:
        read(text, name)
    return str(caught.value)


def of(found: TrainerConfig, *names: str) -> tuple[object, ...]:
    return tuple(found.options.get(name) for name in names)


def test_a_script_of_verl_counts_answers_of_a_gpu(read):
    found = read(SCRIPT)
    rows = "micro_batch", "grad_accum", "steps_per_generation", "scoring_batch", "global_batch"
    assert of(found, *rows) == (10, 128 * 5 // 8 // 10, 512 * 5 // 8 // 10, 20, 128 * 5)
    assert of(found, "seq_len", "max_completion_tokens", "num_generations") == (1024 + 2048, 2048, 5)
    assert of(found, "vllm_memory_utilization", "vllm_tensor_parallel", "vllm_sleep_level") == (0.6, 2, 2)
    assert of(found, "reference", "reference_shards", "idle_offload") == ("copy", "host-float32", "none")
    assert of(found, "shard_units", "loss", "task_trainer") == ("layers-and-embedding", "verl-quotient", "verl-engine")
    assert of(found, "sync_each_batch") == (False,)
    assert FSDP1_AS_FSDP2 not in found.notes
    halved = read(SCRIPT, num_gpus=4)
    assert of(halved, *rows) == (10, 128 * 5 // 4 // 10, 512 * 5 // 4 // 10, 20, 128 * 5)


def test_the_merged_settings_are_read_with_what_they_refer_to(read):
    found = read(MERGED, "merged.yaml")
    rows_of_step, rows_of_rollout = 64 * 8 // 4, 64 * 8 // 4
    micro_batch = 8192 // (1024 + 1024)
    assert of(found, "micro_batch", "grad_accum") == (micro_batch, rows_of_step // micro_batch)
    assert of(found, "scoring_batch") == (min(16384 // 2048, rows_of_rollout),)
    assert of(found, "idle_offload", "reference", "loss") == ("all", None, "verl-fused")
    assert of(found, "num_iterations") == (2,)


def test_a_file_of_easyr1_moves_what_is_idle_and_has_its_reference_on_the_host(read):
    found = read(EASYR1, "config.yaml")
    assert of(found, "micro_batch", "grad_accum", "steps_per_generation", "scoring_batch") == (1, 80, 320, 2)
    assert of(found, "idle_offload", "reference", "reference_shards") == ("all", "copy", "host")
    assert of(found, "task_trainer", "shard_units", "vllm_sleep_level") == ("easyr1", "layers", 1)
    assert of(found, "num_iterations") == (1,)
    assert of(found, "flat_parameters", "uses_orig_params", "uses_autocast") == ("backward-pre", False, False)


def test_a_key_of_easyr1s_earlier_releases_changes_nothing(read):
    older = EASYR1.replace("rollout: {n: 5,", "rollout: {n: 5, do_sample: true,")
    assert older != EASYR1
    assert read(older, "config.yaml").options == read(EASYR1, "config.yaml").options


NARROW = EASYR1.replace(
    "    offload:", "    fsdp: {torch_dtype: bf16}\n    optim: {strategy: adamw_bf16}\n    offload:"
)


def test_training_in_bfloat16_has_compensations_beside_moments(read):
    found = read(NARROW, "config.yaml")
    assert of(found, "precision", "optimizer") == ("bf16-pure", "anyprecision-adamw")
    assert of(read(EASYR1, "config.yaml"), "precision") == ("bf16",)
    assert of(read(NARROW.replace("adamw_bf16", "adamw"), "config.yaml"), "optimizer") == ("adamw",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("torch_dtype: bf16", "torch_dtype: fp32"), "it is planned with worker.actor.fsdp.torch_dtype bf16 alone"),
        (("torch_dtype: bf16", "torch_dtype: fp16"), "fp32 and bf16 are planned"),
        (("adamw_bf16", "muon"), "adamw and adamw_bf16 are planned"),
        (("rank: 0", "rank: 8"), "of adapters, and on one GPU"),
    ],
)
def test_other_types_and_optimizers_of_easyr1_are_refused_by_their_keys(read, change, said):
    assert said in sentence(read, NARROW.replace(*change), "config.yaml")


def test_a_script_of_easyr1_changes_the_file_that_it_names(read, tmp_path):
    (tmp_path / "config.yaml").write_text(EASYR1, encoding="utf-8")
    lora = "worker.actor.model.lora.rank=64 worker.rollout.tensor_parallel_size=1"
    found = read(f"python3 -m verl.trainer.main config=config.yaml {lora} trainer.n_gpus_per_node=2\n")
    assert of(found, "method", "lora_rank", "lora_alpha", "lora_targets") == ("lora", 64, 64, "all-linear")
    assert of(found, "lora_exclude", "reference", "vllm_tensor_parallel") == ("regex:.*visual.*", "adapter-off", 1)
    assert of(found, "grad_accum") == (128 * 5 // 2,)


def test_easyr1_leaves_out_the_tower_of_a_model_that_has_none_as_peft_does(read):
    text = EASYR1.replace("Qwen2.5-VL-7B", "Qwen2.5-7B").replace("rank: 0", "rank: 64")
    assert of(read(text, "config.yaml"), "method", "lora_exclude") == ("lora", None)
    others = text.replace(".*visual.*", ".*o_proj")
    assert of(read(others, "config.yaml"), "lora_exclude") == ("regex:.*o_proj",)


def test_adapters_of_verl_are_beside_weights_that_are_sharded_in_float32(read):
    lora = SCRIPT.replace(
        " $@", " actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.target_modules=[q_proj,v_proj]"
    )
    assert of(read(lora), "method", "weight_dtype", "lora_targets") == ("lora", "float32", "q_proj,v_proj")
    narrow = lora.replace("lora_rank=32", "lora_rank=32 actor_rollout_ref.actor.fsdp_config.model_dtype=bf16")
    assert of(read(narrow), "weight_dtype") == (None,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("adv_estimator=grpo", "adv_estimator=gae"), "algorithm.adv_estimator is gae, which trains a critic"),
        (
            ("strategy=fsdp2", "strategy=megatron"),
            "actor.strategy is megatron, which is not planned; fsdp and fsdp2 are",
        ),
        ((" $@", " model_engine=megatron"), "model_engine is megatron, which is not planned; dp"),
        ((" $@", " --config-name=ppo_megatron_trainer"), "trains with Megatron, which is not planned; FSDP is"),
        ((" $@", " actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2"), "samples that GPUs share"),
        ((" $@", " trainer.use_legacy_worker_impl=disable"), "the engines of verl 0.7 and 0.8: not planned"),
        (("ENGINE=${1:-vllm}", "ENGINE=sglang"), "actor_rollout_ref.rollout.name is sglang; vllm is planned"),
        ((" $@", " actor_rollout_ref.actor.entropy_coeff=0.001"), "entropy in the update: not planned"),
        ((" $@", " actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"), "samples that GPUs share: not planned"),
        (
            (" $@", " actor_rollout_ref.actor.ppo_micro_batch=4"),
            "unknown key 'actor_rollout_ref.actor.ppo_micro_batch'",
        ),
        (("per_gpu=10", "per_gpu=7"), "a divisor of the 80 answers of a GPU in a step is needed"),
        (("=$MODEL", "=$HOME/model"), "model.path is $HOME/model, which only running the program tells"),
        ((" $@", " --config-name=mine"), '"--config-name=mine" is not read; overrides are key=value'),
    ],
)
def test_what_is_not_planned_is_refused_by_its_key(read, change, said):
    assert said in sentence(read, SCRIPT.replace(*change))


def test_the_default_strategy_is_fsdp1_with_torchs_own_prefetch_under_autocast(read):
    found = read(SCRIPT.replace("strategy=fsdp2", "strategy=fsdp"))
    flat = "shard_units", "flat_parameters", "uses_orig_params", "prefetches_forward", "reduces_in_float32"
    assert of(found, *flat) == ("layers", "backward-pre", False, False, True)
    assert of(found, "uses_autocast") == (None,)
    assert FSDP1_AS_FSDP2 not in found.notes


SIZE = "actor_rollout_ref.actor.fsdp_config.fsdp_size"


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
@pytest.mark.parametrize(("size", "expected"), [(-1, None), (8, None), (16, None), (4, 4), (2, 2)])
def test_fsdp_size_is_how_many_gpus_share_one_copy_of_the_model(read, strategy, size, expected):
    script = SCRIPT.replace("strategy=fsdp2", f"strategy={strategy}").replace(" $@", f" {SIZE}={size}")
    assert of(read(script), "dp_shard_size") == (expected,)
    assert of(read(f"{script[:-1]} {LEGACY}\n"), "dp_shard_size") == (expected,)


@pytest.mark.parametrize(
    ("key", "size", "said"),
    [
        (SIZE, 3, "how many of the 8 GPUs share a copy, at least 2 and a divisor, or -1 is needed"),
        (SIZE, 1, "how many of the 8 GPUs share a copy"),
        ("actor_rollout_ref.ref.fsdp_config.fsdp_size", 4, "references of which GPUs have copies are not planned"),
    ],
)
def test_copies_of_the_model_that_are_not_planned_are_refused(read, key, size, said):
    assert f'{key} is "{size}"; {said}' in sentence(read, SCRIPT.replace(" $@", f" {key}={size}"))


def test_easyr1_says_copies_of_policy_and_reference_apart(read):
    sized = EASYR1.replace("  actor:\n", "  actor:\n    fsdp: {fsdp_size: 4}\n")
    assert of(read(sized, "config.yaml"), "dp_shard_size") == (4,)
    said = sentence(read, sized.replace("{enable_cpu_offload: true}", "{fsdp_size: 4}"), "config.yaml")
    assert "worker.ref.fsdp.fsdp_size is 4; references of which GPUs have copies are not planned" in said


def test_a_key_that_later_releases_do_not_have_says_which_worker_trains(read):
    found = read(SCRIPT.replace(" $@", f" {LEGACY}"))
    assert of(found, "loss", "task_trainer", "sync_each_batch") == ("verl", "verl", True)
    assert (found.trainer, read(SCRIPT).trainer) == ("verl 0.8.0.dev", "verl 0.9")
    assert WHICH_WORKER in read(SCRIPT).notes
    assert WHICH_WORKER not in found.notes


def test_a_frozen_tower_is_read_by_none_of_the_later_ones(read):
    frozen = SCRIPT.replace(" $@", " actor_rollout_ref.actor.freeze_vision_tower=True $@")
    assert of(read(frozen), "train_vision") == (None,)
    assert any("freeze_vision_tower is true, but verl 0.9 reads it nowhere" in note for note in read(frozen).notes)
    assert of(read(frozen.replace("$@", LEGACY)), "train_vision", "weight_dtype") == (False, "float32")


def test_a_frozen_tower_is_flattened_with_original_parameters_whatever_the_key_says(read):
    """In verl and EasyR1, whose root has frozen weights beside trained ones."""
    frozen = f" actor_rollout_ref.actor.freeze_vision_tower=True {LEGACY}"
    of_verl = read(SCRIPT.replace("strategy=fsdp2", "strategy=fsdp").replace(" $@", frozen))
    of_easyr1 = read(EASYR1.replace("model: {", "model: {freeze_vision_tower: true, "), "config.yaml")
    for found in (of_verl, of_easyr1):
        assert FSDP1_AS_FSDP2 not in found.notes
        assert of(found, "train_vision", "weight_dtype") == (False, "float32")
        assert of(found, "flat_parameters", "uses_orig_params") == ("backward-pre", True)


def test_fsdp1_of_adapters_is_planned_with_a_caution(read):
    found = read(
        SCRIPT.replace("strategy=fsdp2", "strategy=fsdp").replace(
            " $@", f" actor_rollout_ref.model.lora_rank=8 {LEGACY}"
        )
    )
    assert FSDP1_AS_FSDP2 in found.notes
    assert of(found, "flat_parameters", "shard_units") == (None, "layers")


def test_other_files_of_verl_are_told_from_those_of_grpo(read):
    said = sentence(read, "data: {train_files: x}\ntrainer: {nnodes: 1}\nalgorithm: {}\n", "sft.yaml")
    assert "looks like a configuration of verl without actor_rollout_ref" in said


def test_an_estimator_that_somebody_has_registered_is_taken_for_one_without_a_critic_and_said(read):
    said = "adv_estimator mine is no estimator of verl's or EasyR1's"
    named = [
        read(EASYR1.replace("adv_estimator: grpo", f"adv_estimator: {name}"), "c.yaml") for name in ("rloo", "mine")
    ]
    assert [any(said in note for note in found.notes) for found in named] == [False, True]
    assert named[0].options == named[1].options


def test_settings_of_a_program_of_ones_own_are_told_from_those_of_verl(read):
    said = sentence(read, "data: {path: x}\ntrainer: {epochs: 1}\nmodel: {name: y}\n", "sft.yaml")
    assert 'its keys ("data", "trainer", "model") are those of a program of one\'s own' in said


def test_sections_that_llama_factorys_new_engine_shares_with_programs_do_not_tell_it(read):
    said = sentence(
        read, "data_config: {num_proc: 1}\ntraining_args: {max_steps: 9}\npeft_config: {r: 8}\n", "lora.yaml"
    )
    assert "are those of a program of one's own" in said


def test_names_of_keys_in_earlier_releases_are_known(read):
    older = EASYR1.replace("actor:\n", "actor:\n    ulysses_sequence_parallel_size: 1\n")
    assert read(older, "config.yaml").options == read(EASYR1, "config.yaml").options
    shared = EASYR1.replace("actor:\n", "actor:\n    ulysses_sequence_parallel_size: 2\n")
    assert "ulysses_sequence_parallel_size is 2; samples that GPUs share" in sentence(read, shared, "config.yaml")
    before = SCRIPT.replace(" $@", " actor_rollout_ref.actor.fsdp_config.grad_offload=True $@")
    assert read(before).options == read(SCRIPT).options
