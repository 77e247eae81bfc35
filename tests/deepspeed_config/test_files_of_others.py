"""Files as other trainers ship them: DeepSpeed's are taken and mean what they mean there, others are told apart.

The contents are composed here after the files' form, key by key: LLaMA-Factory (``examples/deepspeed``), ms-swift
(``swift/config``), axolotl (``deepspeed_configs``), transformers and accelerate (``tests/deepspeed``), LLaVA
(``scripts``), InternVL (``internvl_chat``) and FastChat (``playground``).
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planned import cluster, decided
from vlmplan.deepspeed_config import deepspeed_config, settings_from_ds_config
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.recipe.choices import Offload, OptimizerKind, Precision
from vlmplan.request.setup import resolved_recipe

BATCH = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
CLIPS = {"gradient_clipping": "auto"}
SCALE = {"loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}
OPEN = {"fp16": {"enabled": "auto"} | SCALE, "bf16": {"enabled": "auto"}}
ADAMW = {"optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}}
WARMUP = {"type": "WarmupLR", "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto")}
TO_CPU = {"device": "cpu", "pin_memory": True}
ON_GPU = {"device": "none", "pin_memory": True}
ZERO2 = {
    "stage": 2,
    "allgather_partitions": True,
    "allgather_bucket_size": 2e8,
    "overlap_comm": False,
    "reduce_scatter": True,
    "reduce_bucket_size": 2e8,
    "contiguous_gradients": True,
}
AUTO_SIZES = dict.fromkeys(
    ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto"
)
ZERO3 = AUTO_SIZES | {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 1e9,
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}
PRINTS = {"steps_per_print": 2000, "wall_clock_breakdown": False}
UNREAD = {
    "comms_config": {"verbose": False},
    "monitor_config": {"enabled": True, "tag": "DeepSpeedMonitor", "csv_monitor": {"enabled": False}},
}
LEAN = {"sub_group_size": 0, "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
FILES = {
    "llama-factory z2": BATCH
    | CLIPS
    | OPEN
    | UNREAD
    | {"zero_allow_untested_optimizer": True, "zero_optimization": ZERO2 | {"round_robin_gradients": True}},
    "llama-factory z3 offload": BATCH
    | CLIPS
    | OPEN
    | UNREAD
    | {"zero_optimization": ZERO3 | {"offload_optimizer": TO_CPU, "offload_param": TO_CPU}},
    "ms-swift zero3": BATCH
    | CLIPS
    | OPEN
    | PRINTS
    | {
        "zero_optimization": ZERO3
        | {"offload_optimizer": ON_GPU, "offload_param": ON_GPU}
        | {"zero_quantized_weights": False, "zero_quantized_gradients": False}
    },
    "ms-swift zero2 autotp of one rank": BATCH
    | CLIPS
    | OPEN
    | PRINTS
    | {"zero_optimization": ZERO2 | {"offload_optimizer": ON_GPU}, "tensor_parallel": {"autotp_size": 1}},
    "axolotl zero1": BATCH | OPEN | ADAMW | {"zero_optimization": {"stage": 1, "overlap_comm": True}},
    "axolotl zero3": BATCH | CLIPS | OPEN | {"zero_optimization": ZERO3 | LEAN},
    "axolotl zero3 cpuoffload all": BATCH
    | CLIPS
    | {
        "bf16": {"enabled": True},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": AUTO_SIZES
        | {"stage": 3, "sub_group_size": 0, "max_live_parameters": 0, "max_reuse_distance": 0}
        | {"gather_16bit_weights_on_model_save": True, "offload_optimizer": TO_CPU, "offload_param": TO_CPU},
    },
    "transformers zero2": BATCH
    | CLIPS
    | OPEN
    | ADAMW
    | PRINTS
    | {"scheduler": WARMUP, "zero_optimization": ZERO2 | {"offload_optimizer": TO_CPU}},
    "accelerate zero3": BATCH
    | CLIPS
    | OPEN
    | PRINTS
    | {
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True, "adam_w_mode": True}},
        "zero_optimization": ZERO3
        | {"stage3_gather_16bit_weights_on_model_save": "auto", "offload_optimizer": TO_CPU | {"nvme_path": "/nvme"}},
    },
    "llava zero3 offload": BATCH
    | CLIPS
    | ADAMW
    | {
        "fp16": {"enabled": "auto"} | SCALE,
        "bf16": {"enabled": True},
        "scheduler": WARMUP,
        "steps_per_print": 1e5,
        "zero_optimization": ZERO3 | {"offload_optimizer": TO_CPU, "offload_param": TO_CPU},
    },
    "internvl stage 1": BATCH
    | CLIPS
    | {
        "fp16": {"enabled": "auto", "auto_cast": True} | SCALE | {"initial_scale_power": 32},
        "bf16": {"enabled": "auto"},
        "wall_clock_breakdown": True,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.999], "eps": 1e-8}},
        "zero_optimization": ZERO2 | {"stage": 1, "reduce_bucket_size": 1e9, "allgather_bucket_size": 1e9},
    },
    "fastchat stage 3": BATCH
    | {
        "fp16": {"enabled": "auto"} | SCALE,
        "zero_optimization": {"stage": 3, "sub_group_size": 1e12, "stage3_prefetch_bucket_size": 5e8}
        | {"offload_optimizer": TO_CPU, "offload_param": TO_CPU},
    },
    "a remark": {"_comment": "why", "zero_optimization": {"stage": 2}, "train_batch_size": 4},
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_for_deepspeed_is_taken_and_deepspeed_reads_what_is_written(deepspeed_reads, name):
    file = FILES[name]
    config = settings_from_ds_config(json.loads(json.dumps(file)), name=name)
    recipe, _ = resolved_recipe(decided(), cluster(num_gpus=4), find_model("qwen2-vl-2b"), ds_config=config)
    written = deepspeed_config(recipe, num_gpus=4, base=config)
    assert written is not None
    read = deepspeed_reads(written, num_gpus=4)
    zero = file["zero_optimization"]
    assert (recipe.zero_stage, read.zero_config.stage) == (zero["stage"], zero["stage"])
    device = zero.get("offload_optimizer", {}).get("device", "none")
    assert recipe.offload_optimizer is Offload(device)
    if zero.get("reduce_bucket_size") == "auto":
        assert read.zero_config.reduce_bucket_size == 1536**2  # hidden_size of qwen2-vl-2b
    if "sub_group_size" in zero:
        assert read.zero_config.sub_group_size == zero["sub_group_size"]
    if "fp16" in file or "bf16" in file:
        assert recipe.precision is Precision.BF16
    assert recipe.optimizer is OptimizerKind.ADAMW


def test_a_sub_group_size_of_0_makes_every_parameter_a_group_as_deepspeed_does():
    stage3 = pytest.importorskip("deepspeed.runtime.zero.stage3")
    from types import SimpleNamespace

    from vlmplan.engines.parameters import sub_group_elements

    numels = [7 * 11, 13, 5 * 3, 2]
    for limit in (0, 1, 5, 20, 10**9):
        parameters = [SimpleNamespace(partition_numel=lambda numel=numel: -(-numel // 4)) for numel in numels]
        engine = SimpleNamespace(sub_group_size=limit)
        groups = stage3.DeepSpeedZeroOptimizer_Stage3._create_fp16_sub_groups(engine, parameters)
        sizes = [sum(parameter.partition_numel() for parameter in group) for group in groups]
        assert sub_group_elements(numels, 4, limit) == sizes
    assert len(sub_group_elements(numels, 4, 0)) == len(numels)


FSDP2 = {"_note": "x", "fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2}}
ACCELERATE = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "fsdp_config": {}, "num_processes": 2}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (FSDP2, ["fsdp and fsdp_config", "FSDP"]),
        (ACCELERATE, ["accelerate"]),
        ({"model_type": "llama", "architectures": ["x"], "hidden_size": 8}, ["config.json", "--model"]),
        ({"peft_type": "LORA", "lora_alpha": 8}, ["adapter_config.json"]),
        ({"schema": "vlmplan.plan/1", "recipe": {}}, ["plan of vlmplan", "--plan"]),
        ({"output_dir": "x", "per_device_train_batch_size": 1, "learning_rate": 1e-5}, ["training arguments"]),
        ({"x": 1, "y": 2}, ["none of its keys (x, y)"]),
    ],
)
def test_a_file_that_is_none_of_deepspeeds_is_refused_by_what_it_looks_like(content, words):
    with pytest.raises(InputError) as caught:
        settings_from_ds_config(content, name="other.json")
    for word in ["other.json is no DeepSpeed file", *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 8\n", ["accelerate"]),
        ("deepspeed_config:\n  zero_stage: 3\ncompute_environment: LOCAL_MACHINE\n", ["accelerate"]),
        ("### model\nmodel_name_or_path: x\nfinetuning_type: lora\ntemplate: qwen\n", ["LLaMA-Factory"]),
        ("base_model: x\ndatasets: []\n", ["axolotl", "--config takes"]),
        ("checkpointer: {}\ndataset: {}\nlora_alpha: 16\n", ["torchtune"]),
        ("#!/bin/bash\n# DeepSpeed\ndeepspeed train.py\n", ["script", "--config"]),
        ("zero_optimization:\n  stage: 2\n", ["YAML", "JSON"]),
        ("a: [1\n", ["not JSON"]),
    ],
)
def test_a_yaml_file_is_refused_by_what_it_looks_like(tmp_path: Path, text: str, words: list[str]):
    path = tmp_path / "other.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        settings_from_ds_config(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_all_mistakes_of_a_file_come_in_one_message():
    file = {
        "train_batch_size": 0,
        "sequence_parallel_size": 0,
        "zero_optimisation": 1,
        "optimizer": {"type": "Lamb"},
        "bf16": {"enabled": True},
        "fp16": {"enabled": True, "autocast": 1},
        "zero_optimization": {
            "stage": 3,
            "zero_quantized_weights": True,
            "overlap_comm": "auto",
            "mics_shard_size": 2,
            "offload_param": {"device": "nvme", "pin": True},
        },
    }
    with pytest.raises(InputError) as caught:
        settings_from_ds_config(file, name="my.json")
    text = str(caught.value)
    assert text.startswith("my.json has 11 mistakes: (1) ")
    assert "\n" not in text
    for word in (
        *("train_batch_size is 0", "sequence_parallel_size is 0", "'zero_optimisation'", "optimizer.type", "both true"),
        *("'autocast'", "zero_quantized_weights is true", "overlap_comm is", "mics_shard_size", "nvme_path", "'pin'"),
    ):
        assert word in text


def test_a_former_key_of_aio_is_said_not_to_be_read(deepspeed_reads):
    file = {"train_batch_size": 1, "aio": {"block_size": 2**20, "thread_count": 4}}
    config = settings_from_ds_config(file, name="my.json")
    assert "DeepSpeed does not read aio.thread_count" in " ".join(config.notes)
    deepspeed_reads(file)
    with pytest.raises(InputError, match=r"'thread_counts'.*in aio of my.json"):
        settings_from_ds_config({"aio": {"thread_counts": 4}}, name="my.json")


def test_a_key_that_deepspeed_does_not_read_is_said_and_one_that_is_near_or_elsewhere_is_refused():
    zero = {"zero_optimization": {"stage": 2}}
    plain = settings_from_ds_config(zero, name="my.json")
    config = settings_from_ds_config({"num_gpus": 4, "same_network": True} | zero, name="my.json")
    assert replace(config, notes=()) == replace(plain, notes=())
    assert "DeepSpeed does not read num_gpus and same_network" in " ".join(config.notes)
    for slip, meant in {"zero_optimisation": "zero_optimization", "sub_group_size": "zero_optimization.sub_"}.items():
        with pytest.raises(InputError, match=f"knows no key '{slip}' and would ignore it; did you mean '{meant}"):
            settings_from_ds_config({slip: 1} | zero, name="my.json")
    with pytest.raises(InputError, match=r"none of its keys \(gpus, nodes\)"):
        settings_from_ds_config({"gpus": 8, "nodes": 9}, name="my.json")


def test_contradictions_with_options_come_in_one_message_too():
    config = settings_from_ds_config(
        {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2},
        name="my.json",
    )
    options = {"zero_stage": 3, "precision": Precision.FP16, "micro_batch": 3, "optimizer": OptimizerKind.SGD}
    with pytest.raises(InputError) as caught:
        resolved_recipe(decided(**options), cluster(num_gpus=2), find_model("smollm2-135m"), ds_config=config)
    for word in ("3 mistakes", "--zero-stage 3", "--precision fp16", "--micro-batch 3"):
        assert word in str(caught.value)


def test_what_changes_nothing_is_said():
    file = {"zero_optimization": {"stage": 2}, "steps_per_print": 7, "wall_clock_breakdown": True, "scheduler": WARMUP}
    config = settings_from_ds_config(file, name="my.json")
    notes = "\n".join(config.notes)
    for word in ("steps_per_print changes neither memory nor time", "waits for the GPU", "scheduler is not used"):
        assert word in notes


def test_deepspeeds_own_checkpointing_which_nobody_calls_changes_nothing():
    """Published files ask for it beside transformers, whose models call torch's."""
    section = {"partition_activations": True, "cpu_checkpointing": True, "number_checkpoints": None}
    config = settings_from_ds_config({"zero_optimization": {"stage": 3}, "activation_checkpointing": section}, name="f")
    assert any("activation_checkpointing.cpu_checkpointing change neither" in note for note in config.notes)
