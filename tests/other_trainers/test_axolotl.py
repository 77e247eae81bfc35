"""What axolotl's keys mean, as its source has it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from vlmplan.cli.check import check
from vlmplan.data_rules import Order
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.recipe.choices import Method
from vlmplan.request import parse
from vlmplan.run.saving import Interval

SEES, READS = "qwen2.5-vl-3b", "qwen2.5-0.5b"
BATCH: dict[str, Any] = {"micro_batch_size": 2, "gradient_accumulation_steps": 4, "sequence_len": 2048, "datasets": []}
FULL: dict[str, Any] = BATCH | {"base_model": READS, "attn_implementation": "flash_attention_2"}
SHARDS: dict[str, Any] = {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}
LORA: dict[str, Any] = BATCH | {"adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_modules": ["q_proj"]}
QLORA: dict[str, Any] = LORA | {"adapter": "qlora", "load_in_4bit": True}


@pytest.fixture
def read(tmp_path):
    def config(values: dict[str, Any], model: str = READS, **asked: Any) -> TrainerConfig:
        path = tmp_path / "train.yml"
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        return read_trainer_config(path, Asked(model=model, find_model=find_model, **{"num_gpus": 1, **asked}))

    return config


def refused(read, values: dict[str, Any], *words: str, model: str = READS) -> None:
    with pytest.raises(InputError) as caught:
        read(values, model, num_gpus=8)
    for word in words:
        assert word in str(caught.value)


# -- optimizers ------------------------------------------------------------------------------------------------------


def test_arguments_of_an_optimizer_are_text_or_a_table(read):
    plain = read(FULL).options
    for arguments in ("eps=1e-8", {"eps": "1e-8"}, {"eps": 1e-8, "betas": [0.9, 0.95]}):
        assert read(FULL | {"optim_args": arguments}).options == plain
    sgd = FULL | {"optimizer": "sgd"}
    assert read(sgd | {"optim_args": {"momentum": 0.9}}).options["optimizer"] == "sgd"
    refused(read, sgd | {"optim_args": {"momentum": 0}}, "without a momentum")
    refused(read, FULL | {"optim_args": ["eps"]}, "text of names and values is needed")


# -- types of weights ------------------------------------------------------------------------------------------------


def test_weights_and_their_copies_stay_in_the_type_of_the_computation(read):
    options = read(FULL).options
    assert (options["weight_dtype"], options["precision"], options["uses_autocast"]) == ("model", "bf16", True)
    wide = read(FULL | {"bf16": False}).options
    assert (wide["precision"], "uses_autocast" in wide, "weight_dtype" in wide) == ("fp32", False, False)


def test_adapters_are_float32_unless_peft_is_told_otherwise(read):
    assert read(LORA).options["adapter_dtype"] == "float32"
    assert read(LORA | {"peft_autocast_adapter_dtype": False}).options["adapter_dtype"] == "model"


@pytest.mark.parametrize(
    ("keys", "precision"),
    [
        ({}, "bf16"),
        ({"bf16": "auto"}, "bf16"),
        ({"bf16": "auto", "fp16": True}, "fp16"),
        ({"bf16": True, "fp16": True}, "bf16"),
        ({"bf16": None}, "fp32"),
        ({"bf16": False, "bfloat16": True}, "bf16"),
    ],
)
def test_bf16_goes_before_fp16_unless_it_is_left_to_the_card(read, keys, precision):
    assert read(LORA | keys).options["precision"] == precision


def test_embeddings_that_stay_wide_without_flash_attention_are_refused_of_whole_models_alone(read):
    for attention in ("sdpa", "eager", None):
        refused(read, FULL | {"attn_implementation": attention}, "norms stay float32", "flash_attention_2")
        assert read(LORA | {"attn_implementation": attention}).options["precision"] == "bf16"
    casting = FULL | {"attn_implementation": None, "deepspeed": "deepspeed_configs/zero2.json"}
    assert read(casting).ds_config is not None


def test_scaled_gradients_of_16_bit_weights_are_refused(read):
    refused(read, FULL | {"bf16": False, "fp16": True}, "fp16 is set")


def test_what_is_not_packed_of_a_4_bit_model_is_16_bit_again(read):
    options = read(QLORA).options
    assert (options["method"], options["upcasts_frozen"], options["use_double_quant"]) == ("qlora", False, True)
    plain = QLORA | {"bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}}
    assert read(plain).options["use_double_quant"] is False


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (LORA | {"adapter": "qlora"}, "adapter is"),
        (LORA | {"load_in_4bit": True}, "load_in_4bit is true"),
        (FULL | {"load_in_8bit": True}, "8-bit weights are loaded for adapter: lora alone"),
        (QLORA | {"load_in_8bit": True}, "8-bit weights are loaded for adapter: lora alone"),
        (LORA | {"load_in_8bit": True, "lora_qkv_kernel": True}, "kernels of LoRA are on"),
        (LORA | {"load_in_8bit": True, "bf16": False, "fp16": False}, "without bf16 or fp16"),
        (LORA | {"adapter": "llama-adapter"}, "lora and qlora are planned"),
        ({key: value for key, value in LORA.items() if key != "lora_r"}, "lora_r is missing"),
        (LORA | {"lora_target_modules": None}, "no module would have an adapter"),
        (QLORA | {"bnb_config_kwargs": {"bnb_4bit_quant_storage": "uint8", "odd": 1}}, "odd"),
    ],
)
def test_adapters_that_axolotl_or_vlmplan_does_not_have_are_refused(read, values, word):
    refused(read, values, word)


def test_checkpoints_are_reentrant_unless_the_file_says_otherwise(read):
    eight_bits = LORA | {"load_in_8bit": True}
    options = read(eight_bits | {"gradient_checkpointing": True}).options
    assert (options["method"], options["checkpoint_kind"], options["upcasts_frozen"]) == (
        "lora-8bit",
        "reentrant",
        False,
    )
    told = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    assert read(LORA | {"gradient_checkpointing": True}).options["checkpoint_kind"] == "reentrant"
    for values in (eight_bits | told, eight_bits, LORA | told):
        assert "checkpoint_kind" not in read(values).options


# -- what is adapted and trained -------------------------------------------------------------------------------------


def test_targets_are_names_a_pattern_or_all_linears(read):
    assert read(LORA).options["lora_targets"] == "q_proj"
    assert read(LORA | {"lora_target_modules": "model.layers.*.q_proj"}).options["lora_targets"].startswith("regex:")
    assert read(LORA | {"lora_target_linear": True}).options["lora_targets"] == "all-linear"
    refused(read, LORA | {"lora_target_linear": True}, "lora_target_linear", model=SEES)


def test_modules_are_adapted_in_every_part_unless_what_sees_is_frozen(read):
    parts = ("train_vision", "train_projector", "train_language")
    assert [read(LORA, SEES).options[name] for name in parts] == [True, True, True]
    assert [read(LORA | {"freeze_mm_modules": True}, SEES).options[name] for name in parts] == [False, False, True]
    language = FULL | {"unfrozen_parameters": ["^model.language_model.*", "^lm_head.*"]}
    assert [read(language, SEES).options[name] for name in parts] == [False, False, True]
    refused(read, FULL | {"unfrozen_parameters": ["^lm_head.*"]}, "unfrozen_parameters")


def test_axolotls_own_kernels_are_named_unless_they_are_off(read):
    def notes(keys: dict[str, Any]) -> list[str]:
        return [note for note in read(LORA | keys).notes if "own kernels of LoRA" in note]

    assert "on by default" in notes({})[0]
    assert "on:" in notes({"lora_mlp_kernel": True})[0]
    assert not notes(dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"), False))
    assert not notes({"trust_remote_code": True})
    refused(read, LORA | {"trust_remote_code": True, "lora_o_kernel": True}, "trust_remote_code is true; and kernels")


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "row", "pads_to"),
    [
        ({}, 2048, 64),
        ({"sequence_len": 2000}, 2048, 64),
        ({"sequence_len": 2000, "pad_to_multiple_of": 8}, 2000, 8),
        ({"sequence_len": 2000, "pad_to_sequence_len": False}, 2000, 1),
        ({"sequence_len": 1000, "pad_to_sequence_len": True}, 1024, 1024),
        ({"sequence_len": 1000, "sample_packing": True}, 1024, 1024),
    ],
)
def test_rows_are_padded_to_a_multiple(read, keys, row, pads_to):
    config = read(FULL | keys)
    assert (config.options["seq_len"], config.data_rules.pads_to) == (row, pads_to)
    assert any("rows are padded" in note for note in config.notes) is (row != keys.get("sequence_len", 2048))


def test_samples_are_packed_into_one_row_with_flash_attention_alone(read):
    assert read(FULL | {"sample_packing": True}).options["batching"] == "packed"
    assert read(FULL | {"batch_flattening": True}).options["batching"] == "padding-free"
    assert "batching" not in read(FULL | {"batch_flattening": "auto", "micro_batch_size": 1}).options
    assert "batching" not in read(LORA | {"batch_flattening": "auto"}).options
    refused(read, LORA | {"sample_packing": True}, "sample_packing is true", "flash_attention_2")


@pytest.mark.parametrize("flag", ["flash_attention", "sdp_attention", "eager_attention", "xformers_attention"])
def test_older_flags_of_attention_name_an_implementation(read, flag):
    names = {"flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager"}
    if flag in names:
        assert read(LORA | {flag: True}).options["attention"] == names[flag]
    else:
        refused(read, LORA | {flag: True}, "attn_implementation")
    refused(read, LORA | {flag: True, "attn_implementation": "sdpa"}, "an older key")


def test_images_are_there_with_a_processor_alone_and_of_one_size(read):
    assert read(LORA, SEES).options["images_per_sample"] == 0
    sees = LORA | {"processor_type": "AutoProcessor"}
    assert "images_per_sample" not in read(sees, SEES).options
    assert "image_size" not in read(sees, SEES).options  # no one size is in its config.json
    assert read(sees | {"image_size": 512}, SEES).options["image_size"] == "512x512"
    assert read(sees | {"image_size": [640, 480]}, SEES).options["image_size"] == "640x480"
    for odd in (0, [640], [640, -480], "large"):
        refused(read, sees | {"image_size": odd}, "image_size is", model=SEES)
    side = find_model("gemma-3-4b").config["vision_config"]["image_size"]
    assert read(sees, "gemma-3-4b").options["image_size"] == f"{side}x{side}"
    limited = sees | {"processor_kwargs": {"max_pixels": 256 * 256}}
    assert read(limited, SEES).options["image_size"] == "256x256"


def test_long_samples_are_dropped_unless_they_are_cut(read):
    assert read(FULL).data_rules.drops_long is True
    assert read(FULL | {"excess_length_strategy": "truncate"}).data_rules.drops_long is False
    assert read(LORA | {"processor_type": "AutoProcessor"}, SEES).data_rules.drops_long is False


@pytest.mark.parametrize(("pads", "expected"), [(None, True), (True, True), (False, False)])
def test_packed_rows_of_samples_are_padded_to_the_whole_length_unless_told_otherwise(tmp_path, pads, expected):
    turns = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]
    (tmp_path / "data.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 5, encoding="utf-8")
    packs = FULL | {"sample_packing": True, "pad_to_sequence_len": pads}
    (tmp_path / "train.yml").write_text(yaml.safe_dump(packs), encoding="utf-8")
    request = parse({"config": tmp_path / "train.yml", "data": tmp_path / "data.jsonl", "gpu": "l4:1"})
    assert request.from_data is not None
    rules = request.from_data.source.rules
    assert (rules.packs, rules.pads, rules.pads_to) == (True, expected, 1)


# -- batches, evaluation, checkpoints --------------------------------------------------------------------------------


def test_two_keys_say_the_batch_and_its_product_is_not_read_and_does_not_do_alone(read):
    assert read(FULL).options["grad_accum"] == 4
    alone = {key: value for key, value in FULL.items() if key != "gradient_accumulation_steps"}
    assert read(alone).options["grad_accum"] == 1
    config = read(alone | {"batch_size": 8})
    assert config.options["grad_accum"] == 1
    assert any("batch_size is not read" in note for note in config.notes)
    refused(read, FULL | {"batch_size": 8}, "axolotl takes one of the two")
    product = {key: value for key, value in alone.items() if key != "micro_batch_size"} | {"batch_size": 8}
    refused(read, product, "batch_size is 8; axolotl takes it beside micro_batch_size or")


def test_it_evaluates_where_there_are_samples_and_a_key_says_when(read):
    assert "eval_batch" not in read(FULL | {"val_set_size": 0.1}).options
    assert "eval_batch" not in read(FULL | {"evals_per_epoch": 2}).options
    evaluates = FULL | {"val_set_size": 0.1, "evals_per_epoch": 2}
    assert (read(evaluates).options["eval_batch"], read(evaluates).options["eval_keeps"]) == (2, "loss")
    assert read(evaluates | {"eval_batch_size": 5}).options["eval_batch"] == 5
    assert read(evaluates | {"num_epochs": 2}).options["eval_every"] == 1 / 4
    assert read(evaluates | {"evals_per_epoch": None, "eval_steps": 40}).options["eval_every"] == 40
    assert read(evaluates | {"evals_per_epoch": None, "eval_strategy": "epoch"}).options["eval_every"] == "epoch"
    assert read(evaluates).options["eval_on_start"] is True
    assert read(evaluates | {"eval_batch_size": 5, "sample_packing": True}).options["eval_batch"] == 2
    alone = evaluates | {"eval_batch_size": 5, "sample_packing": True, "eval_sample_packing": False}
    assert read(alone).options["eval_batch"] == 5
    assert "eval_batch" not in read(evaluates | {"evals_per_epoch": None, "eval_strategy": "no"}).options


@pytest.mark.parametrize(
    ("keys", "interval", "every"),
    [
        ({}, Interval.EPOCHS, None),
        ({"save_steps": 50}, Interval.STEPS, 50),
        ({"saves_per_epoch": 2, "num_epochs": 4}, Interval.STEPS, 1 / 8),
        ({"saves_per_epoch": 1}, Interval.EPOCHS, None),
        ({"save_strategy": "no"}, Interval.NEVER, None),
    ],
)
def test_checkpoints_come_once_an_epoch_unless_a_key_says_otherwise(read, keys, interval, every):
    saving = read(FULL | keys).saving
    assert (saving.interval, saving.keep_last) == (interval, 4)
    assert every is None or saving.every == every


def test_the_best_model_is_kept_where_saving_and_evaluation_go_together(read):
    evaluates = FULL | {"val_set_size": 0.1, "load_best_model_at_end": True, "saves_per_epoch": 2, "num_epochs": 2}
    assert read(evaluates | {"evals_per_epoch": 4}).saving.keeps_best is True
    assert read(evaluates | {"evals_per_epoch": 3}).saving.keeps_best is False
    assert read(evaluates).saving.keeps_best is False
    assert read(evaluates | {"evals_per_epoch": 4, "val_set_size": None}).saving.keeps_best is False


def test_loaders_are_as_many_as_gpus_unless_something_is_said_of_them(read):
    assert read(FULL, num_gpus=4).loader_workers == 4
    assert read(FULL | {"dataloader_pin_memory": True}, num_gpus=4).loader_workers == 0
    assert read(FULL | {"dataloader_num_workers": 3}, num_gpus=4).loader_workers == 3


def test_samples_in_the_order_of_the_file(read):
    orders = [
        read(FULL | keys).data_rules.order for keys in ({}, {"group_by_length": True}, {"curriculum_sampling": True})
    ]
    assert orders == [Order.RANDOM, Order.BY_LENGTH, Order.SEQUENTIAL]


# -- memory ----------------------------------------------------------------------------------------------------------


def test_segments_grow_unless_a_variable_says_otherwise(read, tmp_path):
    assert read(FULL).options["expandable_segments"] is True
    (tmp_path / "train.yml").write_text(yaml.safe_dump(FULL), encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text("PYTORCH_ALLOC_CONF=max_split_size_mb:64 axolotl train train.yml\n", encoding="utf-8")
    config = read_trainer_config(script, Asked(num_gpus=1, find_model=find_model))
    assert config.options["expandable_segments"] is False


def test_offloading_moves_inputs_of_checkpointed_layers_of_whole_models(read):
    for keys in (
        {"gradient_checkpointing": "offload"},
        {"gradient_checkpointing": True, "activation_offloading": True},
    ):
        options = read(FULL | keys).options
        assert (options["activation_checkpointing"], options["offload_activations"]) == (True, True)
        refused(read, LORA | keys, "none is computed again")
    hidden = {"gradient_checkpointing": True, "activation_offloading": "hidden_states"}
    assert read(LORA | hidden).options["offload_activations"] is True
    refused(read, FULL | {"activation_offloading": True}, "gradient_checkpointing alone")
    refused(read, FULL | {"gradient_checkpointing": "offload_disk"}, "moved to disk")


LIGER = {
    "plugins": ["axolotl.integrations.liger.LigerPlugin"],
    "liger_rms_norm": True,
    "liger_rope": True,
    "liger_glu_activation": True,
}


def test_liger_is_its_plugins_and_its_keys(read):
    assert read(FULL | LIGER).options["liger_layers"] is True
    assert read(FULL | LIGER).options["loss"] == "model"
    assert read(FULL | LIGER | {"liger_fused_linear_cross_entropy": True}).options["loss"] == "liger"
    without = {key: value for key, value in LIGER.items() if key != "plugins"}
    assert "liger_layers" not in read(FULL | without).options
    refused(read, FULL | LIGER | {"liger_rope": None}, "some of Liger's layers", "liger_rope")
    assert read(FULL | LIGER | {"liger_rope": None}, SEES).options["liger_layers"] is True


CUTS = {"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]}


def test_cut_cross_entropy_is_planned_as_ligers_loss_of_models_that_have_one(read):
    config = read(FULL | CUTS)
    assert (config.options["loss"], "liger_layers" in config.options) == ("liger", False)
    assert any("planned as Liger's fused loss" in note for note in config.notes)
    assert read(FULL | CUTS | {"cut_cross_entropy": False}).options["loss"] == "model"
    both = LIGER | {"plugins": [*LIGER["plugins"], *CUTS["plugins"]]}
    assert (read(FULL | both).options["loss"], read(FULL | both).options["liger_layers"]) == ("liger", True)
    refused(read, LORA | CUTS, "cut_cross_entropy of gpt2", model="gpt2")
    refused(read, LORA | CUTS, "cut_cross_entropy of granite", model="granite-3.3-8b")  # whose logits are scaled
    refused(read, LORA | CUTS | {"bf16": False}, "bf16 or fp16 alone")
    assert (
        read(FULL | CUTS | {"attn_implementation": "sdpa"}).options["loss"] == "liger"
    )  # which has embeddings cast back


@pytest.mark.parametrize("model", ["apertus-8b", "seed-oss-36b", "lfm2-350m", "lfm2-8b-a1b", "mistral-small-3.2-24b"])
def test_cut_cross_entropy_is_there_for_models_that_liger_has_no_loss_for(read, model):
    assert read(LORA | CUTS, model).options["loss"] == "liger"
    with_loss = LIGER | {"liger_fused_linear_cross_entropy": True}
    refused(read, LORA | with_loss, "Liger's fused loss of model_type", model=model)
    assert read(LORA | with_loss | {"plugins": [*LIGER["plugins"], *CUTS["plugins"]]}, model).options["loss"] == "liger"


@pytest.mark.parametrize(
    ("model", "caution"),
    [
        ("apertus-8b", ""),
        ("lfm2-350m", "short convolutions let the first tokens of a sample of a row see the sample before"),
        ("qwen3.5-4b", "axolotl's own forward keeps them apart"),
    ],
)
def test_packed_rows_of_models_that_axolotl_packs_are_planned_with_what_samples_see(tmp_path, model, caution):
    path = tmp_path / "train.yml"
    keys = {"base_model": model, "sample_packing": True, "attn_implementation": "flash_attention_2"}
    path.write_text(yaml.safe_dump(LORA | keys), encoding="utf-8")
    result = CliRunner().invoke(check, [str(path), "--model", model, "--gpu", "h200:1"])
    said = " ".join(result.output.split())
    assert (result.exit_code, "packed kept on the GPU" in said, caution in said) == (0, True, True), result.output
    assert ("--batching packed: in" in said) is bool(caution)


def test_a_config_that_cuts_cross_entropy_of_apertus_is_checked(tmp_path):
    path = tmp_path / "train.yml"
    path.write_text(yaml.safe_dump(LORA | CUTS | {"base_model": "apertus-8b"}), encoding="utf-8")
    result = CliRunner().invoke(check, [str(path), "--model", "apertus-8b", "--gpu", "h200:1"])
    assert (result.exit_code, "Liger's fused loss" in result.output) == (0, True), result.output


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"rl": "ebft"}, "rl is ebft, which is not planned"),
        ({"output_dir": None}, "output_dir has no value"),
        ({"save_steps": 5, "saves_per_epoch": 2}, "save_steps is 5; and saves_per_epoch is set too"),
        ({"test_datasets": [{"path": "p"}], "val_set_size": 0.1}, "val_set_size is 0.1; and test_datasets"),
        ({"evals_per_epoch": 2, "eval_strategy": "epoch"}, 'eval_strategy is "epoch"; and evals_per_epoch'),
        ({"val_set_size": 0, "eval_strategy": "epoch"}, "and val_set_size is 0"),
        ({"save_strategy": "best"}, "metric_for_best_model alone"),
        ({"early_stopping_patience": 3, "save_steps": 5}, "with eval_steps alone"),
        ({"streaming": True}, "with max_steps alone"),
        ({"sample_packing": True, "batch_flattening": True}, "batch_flattening is true; and sample_packing"),
        ({"plugins": ["my.own.Plugin"]}, "my.own.Plugin"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2"),
        ({"fsdp_config": {"reshard_after_forward": True}}, "FSDP1 has a strategy there"),
        (SHARDS | {"deepspeed": "deepspeed_configs/zero2.json"}, "and deepspeed is set too"),
        ({"fsdp_version": 2, "fsdp_config": {"mixed_precision_policy": "fp32"}}, "mixed_precision_policy"),
        ({"fsdp_version": 2, "fsdp_config": {"auto_wrap_policy": "SIZE_BASED_WRAP"}}, "auto_wrap_policy"),
        (SHARDS | {"fp16": True, "bf16": False}, "scaled gradients"),
        ({"optimizer": "muon"}, "optimizer is"),
        ({"torch_compile": True}, "torch.compile"),
        ({"shrink_embeddings": True}, "number of embeddings"),
        ({"sequence_lenn": 1}, "unknown key 'sequence_lenn'; did you mean 'sequence_len'"),
    ],
)
def test_what_is_not_planned_is_refused_by_its_name(read, keys, word):
    refused(read, FULL | keys, word)


# -- FSDP2 -----------------------------------------------------------------------------------------------------------


def test_fsdp2_leaves_trained_weights_in_16_bit_and_has_the_ends_in_the_root(read):
    told = {"offload_params": True, "reshard_after_forward": False, "activation_checkpointing": True}
    for section in (told | {"fsdp_version": 2}, {f"fsdp_{key}": value for key, value in told.items()} | {"version": 2}):
        options = read(FULL | {"attn_implementation": "sdpa", "fsdp_config": section}).options
        expected = {"fsdp": True, "precision": "bf16-pure", "shard_units": "layers", "sync_each_batch": False}
        expected |= {"reshard_after_forward": False, "activation_checkpointing": True}
        expected |= dict.fromkeys(("offload_params", "offload_optimizer"), "cpu")
        assert {name: options.get(name) for name in expected} == expected
        assert not {"weight_dtype", "uses_autocast"} & options.keys()
    assert read(FULL | SHARDS | {"bf16": False}).options["precision"] == "fp32"


def test_keys_that_its_schema_drops_and_the_size_that_all_gpus_have_change_nothing(read):
    dropped = {"sharding_strategy": "FULL_SHARD", "limit_all_gathers": True, "cpu_offload": True, "odd": 1}
    section = SHARDS["fsdp_config"] | dropped
    assert read(FULL | SHARDS | {"fsdp_config": section, "dp_shard_size": 1}).options == read(FULL | SHARDS).options


def test_layers_of_the_language_model_may_be_units_alone(read):
    def units(names: str) -> object:
        return read(FULL | SHARDS | {"fsdp_config": {"transformer_layer_cls_to_wrap": names}}, SEES).options

    language, vision = "Qwen2_5_VLDecoderLayer", "Qwen2_5_VLVisionBlock"
    assert units(language)["shard_units"] == "language-layers"
    assert units(f"{vision},{language}")["shard_units"] == "layers"
    with pytest.raises(InputError, match=f"or {language}, those of its language model"):
        units(vision)
    checkpoints = {"transformer_layer_cls_to_wrap": language, "activation_checkpointing": True}
    assert read(FULL | SHARDS | {"fsdp_config": checkpoints}, SEES).options["vision_activation_checkpointing"] is False


def test_a_loss_that_reads_the_head_has_it_from_the_root(read):
    fuses = LIGER | {"liger_fused_linear_cross_entropy": True}
    assert read(FULL | SHARDS | fuses, SEES).options["loss"] == "liger"


def test_without_a_version_it_is_fsdp1_whose_shards_are_float32(read):
    section = {"fsdp_offload_params": True, "fsdp_use_orig_params": False, "fsdp_backward_prefetch": "BACKWARD_PRE"}
    options = read(FULL | {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": section}).options
    told = {"flat_parameters": "on-demand", "uses_orig_params": False, "offload_params": "cpu", "precision": "bf16"}
    assert {name: options[name] for name in told} == told
    packed = LORA | {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": section, "adapter": "qlora"}
    options = read(packed | {"load_in_4bit": True, "peft_autocast_adapter_dtype": False}).options
    assert {name: options[name] for name in told} == told
    assert (options["method"], options["shard_units"], options["shards_packed"]) == ("qlora", "layers", True)
    assert "adapter_dtype" not in options


def test_each_matrix_of_an_adapter_is_a_unit_under_fsdp2(read):
    """In float32, as peft makes it, or in 16 bit; whole models have float32 nowhere."""
    options = read(LORA | SHARDS).options
    assert (options["shard_units"], options["precision"]) == ("layers-and-adapters", "bf16")
    assert "adapter_dtype" not in options
    narrow = read(LORA | SHARDS | {"peft_autocast_adapter_dtype": False}).options
    assert narrow["adapter_dtype"] == "model"
    whole = read(LORA | SHARDS, method=Method.FULL).options
    assert (whole["shard_units"], whole["precision"]) == ("layers", "bf16-pure")
    refused(read, LORA | SHARDS | {"peft_use_dora": True}, "not planned with DoRA's lengths")


def test_4_bit_weights_are_sharded_by_fsdp2_unless_they_are_kept_in_bytes(read):
    packed = LORA | SHARDS | {"adapter": "qlora", "load_in_4bit": True}
    assert read(packed).options["shards_packed"] is True
    assert read(packed | {"bnb_config_kwargs": {"bnb_4bit_quant_storage": "uint8"}}).options["shards_packed"] is False


def test_an_option_that_names_another_engine_goes_before_the_files_fsdp(read):
    shards = FULL | {"fsdp_config": {"offload_params": True}, "fsdp_version": 2}
    config = read(shards, uses_deepspeed=True)
    assert any("FSDP is left out" in note for note in config.notes)


def test_sizes_of_one_are_what_everybody_has(read):
    alone = dict.fromkeys(("tensor_parallel_size", "context_parallel_size", "dp_replicate_size"), 1)
    assert read(FULL | alone).options == read(FULL).options


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"dp_shard_size": 4}, 4),
        ({"dp_replicate_size": 2}, 4),
        ({"dp_replicate_size": 2, "dp_shard_size": 4}, 4),
        ({"dp_shard_size": 8}, None),
    ],
)
def test_copies_of_the_model_follow_from_either_size(read, sizes, expected):
    found = read(FULL | SHARDS | sizes, num_gpus=8)
    assert found.options.get("dp_shard_size") == expected


@pytest.mark.parametrize(
    ("sizes", "num_gpus", "word"),
    [
        ({"dp_shard_size": 3}, 8, "8 GPUs cannot be several copies"),
        ({"dp_replicate_size": 2}, None, "say those with --gpu"),
        ({"dp_replicate_size": 4, "dp_shard_size": 4}, 8, "it has to be 8, all GPUs"),
        ({"fsdp_version": 1, "dp_shard_size": 4}, 8, "dp_shard_size is 4; accelerate takes it with FSDP2 alone"),
    ],
)
def test_copies_of_the_model_that_are_not_whole_are_refused(read, sizes, num_gpus, word):
    with pytest.raises(InputError, match=word):
        read(FULL | SHARDS | sizes, num_gpus=num_gpus)


# -- scripts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "processes"),
    [
        ("axolotl train train.yml", None),
        ("axolotl train train.yml --num-processes 4", 4),
        ("axolotl train train.yml --launcher torchrun -- --nproc_per_node=2 --nnodes=2", 4),
        ("accelerate launch --num_processes 4 -m axolotl.cli.train train.yml", 4),
        ("torchrun --nproc_per_node=2 -m axolotl.cli.train train.yml", 2),
        ("axolotl train train.yml --micro-batch-size 2 --learning-rate=1e-5 --launcher python", 1),
    ],
)
def test_its_command_names_a_file_and_goes_before_it(tmp_path, command, processes):
    (tmp_path / "train.yml").write_text(yaml.safe_dump(FULL | {"micro_batch_size": 1}), encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text(f"{command}\n", encoding="utf-8")
    config = read_trainer_config(script, Asked(num_gpus=8, find_model=find_model))
    assert config.options["micro_batch"] == (2 if "micro-batch" in command else 1)
    assert config.loader_workers == 8
    started = [note for note in config.notes if f"starts {processes} process" in note]
    assert len(started) == (processes is not None)


def test_a_batch_that_its_deepspeed_file_says_otherwise_is_refused_in_its_words(tmp_path):
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 3}', encoding="utf-8")
    (tmp_path / "train.yml").write_text(yaml.safe_dump(FULL | {"deepspeed": "ds.json"}), encoding="utf-8")
    with pytest.raises(InputError, match="micro_batch_size is 2, but train_micro_batch_size_per_gpu of "):
        parse({"config": tmp_path / "train.yml", "gpu": "l4:1"})


def test_deepspeed_files_of_its_checkout_are_known_by_their_paths(read):
    config = read(FULL | {"deepspeed": "deepspeed_configs/zero3_bf16_cpuoffload_all.json"})
    assert config.ds_config is not None
    assert (config.ds_config.zero_stage, Path(config.ds_config.source).parts[0]) == (3, "deepspeed_configs")


def test_adapters_beside_trained_embeddings_under_zero_3_are_told_by_the_keys_of_the_file(tmp_path):
    zero_3 = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    beside = {"base_model": READS, "lora_modules_to_save": ["embed_tokens", "lm_head"], "bf16": True, "num_epochs": 1}
    (tmp_path / "zero3.json").write_text(json.dumps(zero_3), encoding="utf-8")
    file = tmp_path / "train.yml"
    file.write_text(yaml.safe_dump(LORA | beside | {"deepspeed": "zero3.json"}), encoding="utf-8")
    found = CliRunner().invoke(check, [str(file), "--gpu", "a100-sxm4-80gb:2"])
    assert "(in a file: modules_to_save) under ZeRO-3" in str(found.exception)
