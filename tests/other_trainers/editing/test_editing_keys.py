"""Which keys and variables of a file change for another recipe."""

import json
from pathlib import Path
from typing import Any

import pytest

from vlmplan.catalog import load_catalog
from vlmplan.errors import InputError
from vlmplan.other_trainers import open_trainer_config
from vlmplan.other_trainers.editing.engine import deepspeed_changes
from vlmplan.other_trainers.editing.keys import KeyChanges, Setup, key_changes
from vlmplan.other_trainers.editing.patch import Patch, patched
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Method, Offload, OptimizerKind
from vlmplan.request import configured_request, own_request, requested_cluster
from vlmplan.request.setup import requested_setup

LLAMA_FACTORY: dict[str, Any] = {
    "model_name_or_path": "qwen2.5-0.5b",
    "stage": "sft",
    "finetuning_type": "full",
    "cutoff_len": 512,
    "bf16": True,
}
MS_SWIFT: dict[str, Any] = {"model": "qwen2.5-0.5b", "tuner_type": "full", "torch_dtype": "bfloat16", "max_length": 512}
TRL: dict[str, Any] = {
    "model_name_or_path": "qwen2.5-0.5b",
    "dataset_name": "d",
    "max_length": 512,
    "dtype": "bfloat16",
}
TRAINER: dict[str, Any] = {"output_dir": "o", "per_device_train_batch_size": 4, "bf16": True}
AXOLOTL: dict[str, Any] = {
    "base_model": "qwen2.5-0.5b",
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "sequence_len": 512,
    "flash_attention": True,
}
TRAINERS = {"llamafactory": LLAMA_FACTORY, "swift": MS_SWIFT, "trl": TRL, "Trainer": TRAINER}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def changed(name: str, values: dict[str, Any], gpu: str = "l4:1", **fields: Any) -> tuple[KeyChanges, Patch]:
    """The keys that change where the recipe's ``fields`` do, and the file with them."""
    path = Path(name)
    if path.suffix == ".sh":
        words = [word for key, value in values.items() for word in (f"--{key}", str(value))]
        path.write_text(" ".join(["swift", "sft", *words]) + "\n", encoding="utf-8")
    else:
        path.write_text(json.dumps(values, indent=2), encoding="utf-8")
    opened = open_trainer_config(path)
    model = (
        {}
        if "model" in values or "model_name_or_path" in values or "base_model" in values
        else {"model": "qwen2.5-0.5b"}
    )
    from vlmplan.models import find_model

    request = configured_request(own_request({"gpu": gpu, **model}), opened, find_model)
    machine = requested_cluster(request.hardware, load_catalog(()))
    found = requested_setup(request, machine, find_model("qwen2.5-0.5b"))
    before = Setup(recipe=found.recipe, workload=found.workload, cluster=found.cluster)
    after = Setup(recipe=found.recipe.with_changes(**fields), workload=found.workload, cluster=found.cluster)
    assert request.configured is not None
    keys = key_changes(opened, request.configured.config, before, after)
    return keys, patched(opened, keys, path)


@pytest.mark.parametrize("name", TRAINERS)
def test_the_batch_and_checkpointing_have_each_trainers_key(name):
    is_on = name in ("swift", "trl", "llamafactory")
    fields = {"micro_batch": 2, "grad_accum": 4, "activation_checkpointing": not is_on}
    keys, patch = changed("x.json", TRAINERS[name], **fields, vision_activation_checkpointing=not is_on)
    own = {"llamafactory": {"disable_gradient_checkpointing": True}}
    assert keys.values == {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        **own.get(name, {"gradient_checkpointing": not is_on}),
    }
    assert json.loads(patch.files[0].after) == TRAINERS[name] | dict(keys.values)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llamafactory", {"finetuning_type": "lora"}),
        ("swift", {"tuner_type": "lora"}),
        ("trl", {"use_peft": True, "lora_target_modules": ["all-linear"]}),
    ],
)
def test_a_run_that_gets_adapters_has_the_trainers_own_defaults(name, expected):
    keys, _ = changed("x.json", TRAINERS[name], method=Method.LORA)
    assert dict(keys.values) == expected


def test_axolotl_has_no_defaults_of_adapters_and_is_given_all():
    keys, patch = changed("x.json", AXOLOTL, method=Method.QLORA, lora_rank=4)
    assert keys.values["adapter"] == "qlora"
    assert (keys.values["load_in_4bit"], keys.values["lora_r"], keys.values["lora_alpha"]) == (True, 4, 8)
    assert (keys.values["lora_target_modules"], keys.values["lora_mlp_kernel"]) == ("all-linear", False)
    assert json.loads(patch.files[0].after) == AXOLOTL | dict(keys.values)


def test_axolotls_older_keys_go_where_newer_ones_come():
    keys, _ = changed("x.json", AXOLOTL, method=Method.LORA, attention=AttentionImplementation.SDPA)
    assert (keys.values["attn_implementation"], keys.values["flash_attention"]) == ("sdpa", None)
    offloads = AXOLOTL | {"gradient_checkpointing": "offload"}
    keys, _ = changed("x.json", offloads, offload_activations=False)
    assert keys.values == {"gradient_checkpointing": True}
    product = {key: value for key, value in AXOLOTL.items() if key != "gradient_accumulation_steps"} | {"batch_size": 1}
    keys, _ = changed("x.json", product, grad_accum=4)
    assert keys.values == {"gradient_accumulation_steps": 4, "batch_size": None}


def test_a_script_that_starts_axolotl_is_left_as_it_is():
    Path("train.yml").write_text(json.dumps(AXOLOTL), encoding="utf-8")
    Path("run.sh").write_text("axolotl train train.yml\n", encoding="utf-8")
    opened = open_trainer_config(Path("run.sh"))
    with pytest.raises(InputError, match=r"change train\.yml"):
        patched(opened, KeyChanges(values={"micro_batch_size": 2}), Path("run.sh"))


def test_names_that_the_file_has_stay():
    older = {"model": "qwen2.5-0.5b", "train_type": "full", "torch_dtype": "bfloat16", "max_length": 512}
    assert dict(changed("x.json", older, method=Method.LORA)[0].values) == {"train_type": "lora"}


def test_a_trainer_is_not_asked_for_what_it_cannot_do():
    with pytest.raises(InputError, match="it has no loss in chunks"):
        changed("x.json", LLAMA_FACTORY, loss=LossKind.CHUNKED)
    with pytest.raises(InputError, match=r"Hugging Face Trainer 5\.23's file has no key for it"):
        changed("x.json", TRAINER, method=Method.LORA)


def test_the_allocators_variable_is_set_where_the_file_can_set_one():
    name, text = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
    for values, key in ((TRL, "env"), (MS_SWIFT, "ENV")):
        keys, patch = changed("x.json", values, expandable_segments=True)
        assert keys.variables == {name: text}
        assert json.loads(patch.files[0].after)[key] == {name: text}
    _, patch = changed("x.sh", MS_SWIFT, expandable_segments=True)
    assert patch.files[0].after.startswith(f"{name}={text} \\\nswift sft ")
    with pytest.raises(InputError, match="variables are set where the trainer is started"):
        changed("x.json", LLAMA_FACTORY, expandable_segments=True)


def test_deepspeed_on_one_gpu_needs_llama_factorys_launcher():
    keys, patch = changed("x.json", LLAMA_FACTORY, zero_stage=3, offload_optimizer=Offload.CPU)
    assert keys.deepspeed is not None
    assert keys.deepspeed["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert any("FORCE_TORCHRUN=1" in note for note in patch.notes)
    assert json.loads(patch.files[0].after)["deepspeed"] == "x.deepspeed.json"


def test_of_a_deepspeed_file_only_what_differs_changes():
    before = Recipe(zero_stage=3, offload_optimizer=Offload.CPU, micro_batch=4, grad_accum=2)
    content = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": False},
            "stage3_prefetch_bucket_size": "auto",
            "stage3_max_live_parameters": 5,
        },
    }
    plainer = before.with_changes(zero_stage=2, offload_optimizer=Offload.NONE, micro_batch=2, grad_accum=4)
    assert deepspeed_changes(content, before, plainer, num_gpus=1) == {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": 2, "offload_optimizer": None, "stage3_prefetch_bucket_size": None},
    }
    eight_bit = before.with_changes(optimizer=OptimizerKind.ADAMW_8BIT)
    assert deepspeed_changes({"zero_allow_untested_optimizer": False}, before, eight_bit, num_gpus=1) == {
        "zero_allow_untested_optimizer": True
    }
    with pytest.raises(InputError, match="NVMe"):
        deepspeed_changes(content, before, before.with_changes(offload_params=Offload.NVME), num_gpus=1)
