"""NeMo AutoModel's recipes: as people have them, and what of them is refused."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_calls import call
from other_trainers.nemo_automodel.shipped_recipes import KEPT, outcomes, recipes, table
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.editing.nemo_keys import OFFLOADS, nemo_changes
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, Precision
from vlmplan.workload import Workload

LINEARS = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
COMPONENTS = "nemo_automodel.components"
TEXT: dict[str, Any] = {
    "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
    "step_scheduler": {"global_batch_size": 64, "local_batch_size": 4, "num_epochs": 2, "ckpt_every_steps": 50},
    "model": {
        "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
        "pretrained_model_name_or_path": "llama-3.2-1b",
        "torch_dtype": "bf16",
        "attn_implementation": "sdpa",
    },
    "distributed": {"strategy": "fsdp2", "dp_size": "none", "tp_size": 1, "cp_size": 1},
    "loss_fn": {"_target_": f"{COMPONENTS}.loss.masked_ce.MaskedCrossEntropy"},
    "dataset": {"_target_": f"{COMPONENTS}.datasets.llm.squad.make_squad_dataset", "seq_length": 1024},
    "dataloader": {"_target_": "torchdata.stateful_dataloader.StatefulDataLoader", "shuffle": True, "num_workers": 2},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1e-5, "betas": [0.9, 0.95]},
    "clip_grad_norm": {"max_norm": 0.5},
}
LORA = {"peft": {"_target_": f"{COMPONENTS}._peft.lora.PeftConfig", "target_modules": "*_proj", "dim": 16}}
SEES: dict[str, Any] = {
    "recipe": "FinetuneRecipeForVLM",
    "model": {
        "_target_": "nemo_automodel.NeMoAutoModelForImageTextToText.from_pretrained",
        "pretrained_model_name_or_path": "qwen2.5-vl-3b",
    },
    "freeze_config": {"freeze_embeddings": True, "freeze_vision_tower": True, "freeze_language_model": False},
    "processor": {"max_pixels": 602112},
}


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    """Sections of later parts go key by key over those of earlier ones."""
    found: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            is_section = isinstance(value, dict) and isinstance(found.get(key), dict)
            found[key] = found[key] | value if is_section else value
    return found


def read(folder: Path, *parts: dict[str, Any], gpus: int | None = 8) -> TrainerConfig:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(merged(TEXT, *parts)), encoding="utf-8")
    return read_trainer_config(path, Asked(num_gpus=gpus, find_model=find_model))


def options(folder: Path, *parts: dict[str, Any], gpus: int | None = 8) -> dict[str, Any]:
    return dict(read(folder, *parts, gpus=gpus).options)


def test_sgd_is_planned_with_the_state_that_momentum_is(tmp_path):
    plain = {"optimizer": {"_target_": "torch.optim.SGD", "betas": None}}
    with pytest.raises(InputError, match=r"without optimizer.momentum it has no state: not planned"):
        read(tmp_path, plain)
    assert read(tmp_path, plain, {"optimizer": {"momentum": 0.9}}).options["optimizer"] == "sgd"


def test_packed_rows_are_as_long_as_said_by_flash_attention(tmp_path):
    packed = {"packed_sequence": {"packed_sequence_size": 2048}}
    found = read(tmp_path, packed)
    assert (found.options["seq_len"], found.options["attention"]) == (2048, "flash_attention_2")
    assert found.data_rules.packs
    assert any("Transformer Engine's" in note for note in found.notes)
    plain = read(tmp_path, {"packed_sequence": {"packed_sequence_size": 0, "split_across_pack": True}})
    assert (plain.options["seq_len"], plain.options["attention"], plain.data_rules.packs) == (1024, "sdpa", False)
    neat = read(tmp_path, packed, {"packed_sequence": {"packing_strategy": "neat"}})
    assert neat.options == found.options
    with pytest.raises(InputError, match=r"takes rows of thd with model.backend.attn: te alone"):
        read(tmp_path, packed, {"model": {"backend": {"attn": "sdpa"}}})
    with pytest.raises(InputError, match=r"packing_strategy is \"other\".* thd and neat are"):
        read(tmp_path, packed, {"packed_sequence": {"packing_strategy": "other"}})


def test_a_recipe_of_text_is_read_as_it_stands(tmp_path):
    found = read(tmp_path)
    wanted = {
        "model": "llama-3.2-1b",
        "method": "full",
        "precision": "bf16-pure",
        "fsdp": True,
        "reduces_in_float32": True,
        "sync_each_batch": False,
        "shard_units": "layers-last-whole",
        "compiled_norms": True,
        "micro_batch": 4,
        "global_batch": 64,
        "epochs": 2.0,
        "seq_len": 1024,
        "loss": "full",
        "optimizer": "adamw",
        "fuses_optimizer": False,
        "activation_checkpointing": False,
        "attention": "sdpa",
    }
    assert {name: found.options.get(name) for name in wanted} == wanted
    assert (found.trainer, found.gradient_clipping, found.loader_workers) == ("NeMo AutoModel", 0.5, 2)
    assert found.saving.every == 50


def test_every_key_means_something_has_no_effect_or_is_told(tmp_path):
    found = read(tmp_path, LORA)
    told = {setting.key for setting in found.said} | set(found.idle)
    assert {"optimizer.lr", "optimizer.betas", "dataset._target_"} <= set(found.idle)
    assert {"peft.dim", "peft.target_modules", "dataset.seq_length", "loss_fn._target_"} <= told - set(found.idle)


def test_float32_weights_are_masters_that_are_computed_with_in_bf16(tmp_path):
    wide = {"model": {"torch_dtype": "float32"}}
    assert options(tmp_path, wide)["precision"] == "bf16"
    assert options(tmp_path, wide, {"step_scheduler": {"global_batch_size": 4}}, gpus=1)["precision"] == "fp32"
    with pytest.raises(InputError, match="float32 of which some are frozen"):
        read(tmp_path, wide, LORA)


def test_on_one_gpu_nothing_is_sharded_or_cast(tmp_path):
    found = options(tmp_path, gpus=1)
    assert (found["zero_stage"], found["precision"], "fsdp" in found) == ("none", "bf16-pure", False)


@pytest.mark.parametrize(
    ("changes", "units"),
    [
        ({}, ("layers-last-whole", True)),
        ({"distributed": {"reshard_after_forward": False}}, ("layers", False)),
        (SEES, ("language-layers-last-whole", True)),
        (merged(SEES, {"freeze_config": {"freeze_vision_tower": False}}), ("layers-last-whole", True)),
        (merged(SEES, {"distributed": {"multimodal": {"frozen_sharding": "per_layer"}}}), ("layers-last-whole", True)),
    ],
    ids=["text", "without-resharding", "frozen-encoder", "trained-encoder", "frozen-encoder-by-layers"],
)
def test_units_are_layers_and_frozen_encoders_are_the_roots(changes, units, tmp_path):
    found = options(tmp_path, changes)
    assert (found["shard_units"], found["reshard_after_forward"]) == units


def test_copies_of_the_model_share_the_gpus(tmp_path):
    assert options(tmp_path, {"distributed": {"dp_replicate_size": 2}}, gpus=8)["dp_shard_size"] == 4
    for none in ("none", 1):
        assert "dp_shard_size" not in options(tmp_path, {"distributed": {"dp_replicate_size": none}}, gpus=8)


def test_the_encoder_is_frozen_with_what_lies_inside_of_it(tmp_path):
    """The projector of Qwen2.5-VL is inside of ``visual``, that of Gemma 3 is beside ``vision_tower``."""
    of_qwen = read(tmp_path, SEES)
    of_gemma = options(tmp_path, SEES, {"model": {"pretrained_model_name_or_path": "gemma-3-4b"}})
    frozen = [(one["train_vision"], one["train_projector"]) for one in (of_qwen.options, of_gemma)]
    assert frozen == [(False, False), (False, True)]
    assert any("freeze_embeddings is true, but" in note for note in of_qwen.notes)
    assert (of_qwen.options["image_size"], of_qwen.options["batches_on_gpu"]) == ("775x775", "turn-float32")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "parts"),
        ({"model": {"force_hf": True, "use_liger_kernel": False}}, None),
        ({"model": {"pretrained_model_name_or_path": "mistral-7b"}}, None),
        ({"model": {"pretrained_model_name_or_path": "mistral-7b"}, "distributed": {"strategy": "ddp"}}, "parts"),
        (SEES, "parts"),
        (merged(SEES, {"model": {"pretrained_model_name_or_path": "qwen3-vl-2b"}}), "parts"),
    ],
    ids=["own", "forced", "text-of-transformers", "ddp", "sees", "sees-by-its-own-class"],
)
def test_whole_layers_run_again_in_text_models_of_transformers_alone(changes, kind, tmp_path):
    found = options(tmp_path, changes, {"distributed": {"activation_checkpointing": True}})
    assert (found["activation_checkpointing"], found.get("checkpoint_kind")) == (True, kind)


def test_norms_are_compiled_in_its_own_llama_and_qwen2(tmp_path):
    named = ("llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "mistral-7b")
    models = [{"model": {"pretrained_model_name_or_path": name, "use_liger_kernel": False}} for name in named]
    assert ["compiled_norms" in options(tmp_path, model) for model in models] == [True, True, False, False]
    assert "compiled_norms" not in options(tmp_path, models[0], {"model": {"force_hf": True}})


def test_adapters_keep_inputs_alone_and_are_in_the_type_of_the_weights(tmp_path):
    found = options(tmp_path, LORA)
    wanted = {"method": "lora", "lora_rank": 16, "lora_alpha": 32, "fused_adapters": True, "precision": "bf16-pure"}
    assert {name: found[name] for name in wanted} == wanted
    assert options(tmp_path, LORA, gpus=1)["adapter_dtype"] == "model"
    assert "fused_adapters" not in options(tmp_path, LORA, {"peft": {"use_memory_efficient_lora": False}})


@pytest.mark.parametrize(
    ("peft", "targets"),
    [
        ({"target_modules": ["*.q_proj", "*.v_proj"]}, "q_proj,v_proj"),
        ({"target_modules": None}, LINEARS),
        ({"target_modules": "*"}, f"{LINEARS},lm_head"),
        (
            {"target_modules": None, "match_all_linear": True},
            "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj,lm_head",
        ),
        ({"target_modules": None, "exclude_modules": ["*lm_head", "*.mlp.*"]}, "q_proj,k_proj,v_proj,o_proj"),
    ],
    ids=["named", "none", "star", "all", "excluded"],
)
def test_patterns_mean_the_linears_whose_whole_name_they_match(peft, targets, tmp_path):
    assert options(tmp_path, LORA, {"peft": peft})["lora_targets"] == targets


REFUSED = {
    "tensor-parallel": ({"distributed": {"tp_size": 2}}, "distributed.tp_size is 2; weights that GPUs share"),
    "pipeline": ({"distributed": {"pp_size": 2}}, "distributed.pp_size is 2; layers on several GPUs"),
    "experts": ({"distributed": {"ep_size": 8}}, "distributed.ep_size is 8; experts that GPUs share"),
    "replicated": (
        {"distributed": {"dp_replicate_size": 8}},
        r"dp_replicate_size is 8; several GPUs have to share each",
    ),
    "megatron": ({"distributed": {"strategy": "megatron_fsdp"}}, 'strategy is "megatron_fsdp"; not planned; fsdp2'),
    "selective": ({"distributed": {"activation_checkpointing": "selective"}}, "true, full and false are"),
    "fp8": ({"fp8": {"enabled": True}}, "fp8.enabled is true; products in 8 bit: not planned"),
    "4-bit": ({"quantization": {"load_in_4bit": True}}, "load_in_4bit is true; weights that bitsandbytes packs"),
    "packed": (
        merged(SEES, {"packed_sequence": {"pack_size": 4096}}),
        "samples with images that are packed: not planned; 0 is",
    ),
    "loss": ({"loss_fn": {"_target_": "a.FusedLinearCrossEntropy"}}, "loss_fn._target_ is .*; not planned"),
    "narrow-loss": ({"loss_fn": {"fp32_upcast": False}}, "a loss of logits in 16 bit"),
    "optimizer": ({"optimizer": {"_target_": "dion.Muon"}}, 'optimizer._target_ is "dion.Muon"; not planned'),
    "own-model": ({"model": {"pretrained_model_name_or_path": "qwen3-30b-a3b"}}, "has an implementation of its own"),
    "other-lists": (
        merged(SEES, {"model": {"pretrained_model_name_or_path": "qwen3-vl-2b"}, "freeze_config": None}),
        "an encoder of this type that is not frozen in the root",
    ),
    "dropout": (merged(LORA, {"peft": {"dropout": 0.1}}), "peft.dropout is 0.1; dropout behind adapters"),
    "some": (merged(LORA, {"peft": {"target_modules": "*.0.*.q_proj"}}), "some of the modules called q_proj"),
    "batch": ({"step_scheduler": {"global_batch_size": 60}}, "a multiple of step_scheduler.local_batch_size 4 on 8"),
    "slip": ({"step_scheduler": {"local_batchsize": 1}}, "unknown key 'step_scheduler.local_batchsize'"),
    "others": ({"model": {"mtp_depth": 2}}, "model.mtp_depth: not planned, as what that changes"),
    "recipe": ({"recipe": "KnowledgeDistillationRecipeForVLM"}, "recipe is KnowledgeDistillationRecipeForVLM"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_plan_is_refused_by_key_and_value(name, tmp_path):
    changes, sentence = REFUSED[name]
    with pytest.raises(InputError, match=sentence):
        read(tmp_path, changes)


def test_what_belongs_to_parallelism_has_no_effect_where_there_is_none(tmp_path):
    sections = {"distributed": {"moe": {"reshard_after_forward": True}, "pipeline": {"pp_schedule": "1f1b"}}}
    assert {"distributed.moe.reshard_after_forward", "distributed.pipeline.pp_schedule"} <= set(
        read(tmp_path, sections).idle
    )


def test_evaluation_is_that_of_the_validation_set(tmp_path):
    evaluated = {
        "step_scheduler": {"val_every_steps": 10},
        "validation_dataset": {"limit_dataset_samples": 64},
        "validation_dataloader": {"batch_size": 2},
    }
    found = options(tmp_path, evaluated)
    assert (found["eval_batch"], found["eval_every"], found["eval_samples"]) == (2, 10, 64)
    assert "eval_batch" not in options(tmp_path, {"step_scheduler": {"val_every_steps": 10}})


@pytest.mark.parametrize("gpu", ["h100-sxm:8", "h100-sxm:1"])
@pytest.mark.parametrize("changes", [{}, LORA, SEES], ids=["full", "lora", "sees"])
def test_estimate_and_check_plan_it(changes, gpu, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(merged(TEXT, changes)), encoding="utf-8")
    estimated = call("estimate", "--config", str(path), "--gpu", gpu, "--json").document
    checked = call("check", str(path), "--gpu", gpu, "--json").document
    assert estimated["recipe"]["micro_batch"] == 4
    assert checked["estimate"]["peak_device_bytes"] == estimated["peak_device_bytes"]


def test_the_recipes_that_are_shipped_are_read_or_refused_as_is_kept(tmp_path):
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert outcomes(recipes(), tmp_path) == kept
    assert Counter(one == "read" for one in kept.values()) == {True: 85, False: 222}
    page = Path(__file__).parents[3] / "docs" / "tasks" / "nemo-automodel.md"
    assert "\n".join(table(kept)) in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "processes"),
    [
        ("automodel recipe.yaml", None),
        ("automodel finetune llm -c recipe.yaml --nproc-per-node 2", 2),
        ("uv run automodel recipe.yaml --nproc-per-node=2", 2),
        ("torchrun --nproc-per-node=2 -m nemo_automodel.cli.app recipe.yaml", 2),
        ("torchrun --nproc-per-node=2 examples/llm_finetune/finetune.py --config recipe.yaml", 2),
    ],
)
def test_a_command_is_its_recipe_with_its_keys_before_the_files(tmp_path, command: str, processes: int | None):
    alone = options(tmp_path)
    path = tmp_path / "run.sh"
    path.write_text(f"{command} --step_scheduler.local_batch_size 2 --model.torch_dtype=float32\n", encoding="utf-8")
    found = read_trainer_config(path, Asked(num_gpus=8, find_model=find_model))
    changed = options(tmp_path, {"step_scheduler": {"local_batch_size": 2}, "model": {"torch_dtype": "float32"}})
    assert (dict(found.options), alone["micro_batch"]) == (changed, 4)
    assert any(f"starts {processes} processes" in note for note in found.notes) is (processes is not None)


def test_a_fix_changes_the_keys_of_the_recipe_that_say_it():
    model = find_model("llama-3.2-1b")
    before = Recipe(
        method=Method.LORA,
        fsdp=True,
        precision=Precision.BF16_PURE,
        micro_batch=4,
        grad_accum=2,
        lora_rank=16,
        activation_checkpointing=False,
    )
    samples = Workload(model=model, seq_len=512)
    after = before.with_changes(
        micro_batch=1,
        grad_accum=8,
        lora_rank=8,
        activation_checkpointing=True,
        offload_params=Offload.CPU,
        offload_optimizer=Offload.CPU,
    )
    values = merged(TEXT, LORA)
    found = nemo_changes(values, (before, samples), (after, samples), 8)
    assert found == {
        "step_scheduler": {"local_batch_size": 1},
        "distributed": {"activation_checkpointing": True, "offload_policy": OFFLOADS},
        "peft": {"dim": 8},
    }
    back = nemo_changes(values, (after, samples), (before, samples), 8)
    assert back["distributed"] == {"activation_checkpointing": False, "offload_policy": None}
    for other in (before.with_changes(tiled_mlp=True), before.with_changes(offload_params=Offload.CPU)):
        with pytest.raises(InputError, match="have no key for it"):
            nemo_changes(values, (before, samples), (other, samples), 8)
    without = {key: value for key, value in values.items() if key != "distributed"}
    with pytest.raises(InputError, match="the file has no section distributed"):
        nemo_changes(without, (before, samples), (after, samples), 8)


@pytest.mark.sweep
def test_a_recipe_that_does_not_fit_is_changed_where_it_stands(tmp_path):
    large = {"step_scheduler": {"local_batch_size": 8}, "dataset": {"seq_length": 2048}}
    path, fits = tmp_path / "recipe.yaml", tmp_path / "fits.yaml"
    path.write_text(yaml.safe_dump(merged(TEXT, large)), encoding="utf-8")
    assert call("check", str(path), "--gpu", "rtx-4090:4", "--fix", "--write", str(fits)).code == 0
    changed = yaml.safe_load(fits.read_text(encoding="utf-8"))
    assert changed["step_scheduler"]["local_batch_size"] < 8
    assert call("check", str(fits), "--gpu", "rtx-4090:4").code == 0
    (tmp_path / "run.sh").write_text("automodel recipe.yaml\n", encoding="utf-8")
    assert "change recipe.yaml" in call("check", str(tmp_path / "run.sh"), "--gpu", "rtx-4090:4", "--fix").err
