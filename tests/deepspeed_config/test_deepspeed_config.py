"""ds_config.json: what is written is what DeepSpeed reads, and what it reads is what a recipe says."""

import contextlib
import json
import os
import re
from dataclasses import fields, replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_cases import DEEPSPEED_RECIPES
from vlmplan.deepspeed_config import deepspeed_config, fixed_by_file, merged_recipe, settings_from_ds_config
from vlmplan.errors import InputError, UnavailableError, UnknownNameError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, OptimizerKind, Precision
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.recipe.zero import ZeroSettings

COVERED = "zero_stage offload_optimizer offload_params precision micro_batch grad_accum gradient_clipping zero".split()
"""The fields of a recipe that a ds_config.json says."""

AGRI_R1 = {
    "train_micro_batch_size_per_gpu": 10,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "none"},
        "offload_param": {"device": "none"},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 5e8,
        "reduce_bucket_size": 2e8,
        "stage3_prefetch_bucket_size": 2e8,
        "stage3_param_persistence_threshold": 1e5,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
        "round_robin_gradients": True,
    },
    "gradient_clipping": 0.3,
    "steps_per_print": 10,
    "wall_clock_breakdown": False,
    "dump_state": False,
}
"""A published ds_zero3.json (training of Qwen2.5-VL-3B on 4 A800)."""


@pytest.fixture(scope="session")
def deepspeed_reads():
    """DeepSpeed's own parser, for any number of ranks."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    pytest.importorskip("deepspeed")
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    def read(config: dict, num_gpus: int = 1) -> DeepSpeedConfig:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(comm, "get_rank", lambda *_: 0)
            patch.setattr(comm, "get_world_size", lambda *_: num_gpus)
            return DeepSpeedConfig(json.loads(json.dumps(config)))

    return read


def recipe_of(config: dict, recipe: Recipe | None = None, num_gpus: int = 1, **more: object) -> Recipe:
    return merged_recipe(settings_from_ds_config(config), recipe or Recipe(), num_gpus=num_gpus, **more)


# -- recipe → ds_config ----------------------------------------------------------------------------------------------


def test_plain_pytorch_has_no_ds_config():
    assert deepspeed_config(Recipe(zero_stage=None), num_gpus=1) is None


@pytest.mark.parametrize(("stage", "precision"), product(range(4), Precision))
@pytest.mark.parametrize("offload", list(Offload))
def test_deepspeed_reads_back_what_the_recipe_says(deepspeed_reads, stage, precision, offload):
    if stage == 0 and precision is Precision.BF16_PURE:
        pytest.skip("refused by a rule")
    zero = ZeroSettings(
        reduce_bucket_size=2 * 3 * 5,
        allgather_bucket_size=2 * 3 * 7,
        overlap_comm=stage != 3,
        contiguous_gradients=False,
        stage3_prefetch_bucket_size=11,
        stage3_param_persistence_threshold=13,
        stage3_max_live_parameters=17,
        stage3_max_reuse_distance=19,
        sub_group_size=23,
    )
    recipe = Recipe(
        zero_stage=stage,
        precision=precision,
        micro_batch=2,
        grad_accum=3,
        gradient_clipping=0.25,
        offload_optimizer=offload if stage else Offload.NONE,
        offload_params=offload if stage == 3 else Offload.NONE,
        nvme_path="/nvme",
        zero=zero,
    )
    config = deepspeed_config(recipe, num_gpus=5)
    assert config is not None
    read = deepspeed_reads(config, num_gpus=5)
    assert (read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps) == (30, 2, 3)
    assert read.gradient_clipping == 0.25
    assert read.float16_config.enabled is (precision is Precision.FP16)
    assert read.bfloat16_config.enabled is (precision in (Precision.BF16, Precision.BF16_PURE))
    assert read.bfloat16_config.bf16_master_weights_and_grads is (precision is Precision.BF16_PURE)
    assert read.bfloat16_config.bf16_optimizer_states is (precision is Precision.BF16_PURE)
    assert read.zero_force_ds_cpu_optimizer is True
    assert read.zero_config.stage == stage
    for field in fields(ZeroSettings):
        assert getattr(read.zero_config, field.name.removeprefix("stage3_")) == getattr(zero, field.name), field.name
    blocks = {"offload_optimizer": recipe.offload_optimizer, "offload_param": recipe.offload_params}
    for key, wanted in blocks.items():
        block = getattr(read.zero_config, key)
        assert (Offload.NONE if block is None else Offload(block.device)) is wanted
        if wanted is not Offload.NONE:
            assert block.pin_memory is True
        if wanted is Offload.NVME:
            assert str(block.nvme_path) == "/nvme"


def test_fp16_scales_its_loss_dynamically(deepspeed_reads):
    read = deepspeed_reads(deepspeed_config(Recipe(zero_stage=2, precision=Precision.FP16), num_gpus=1))
    assert read.float16_config.loss_scale == 0
    assert read.float16_config.initial_dynamic_scale() == 65536


def test_every_value_is_written_out_and_none_is_auto():
    text = json.dumps(deepspeed_config(Recipe(zero_stage=3), num_gpus=2))
    assert "auto" not in text
    assert "null" not in text
    for field in fields(ZeroSettings):
        assert f'"{field.name}"' in text


@pytest.mark.parametrize(
    ("optimizer", "is_untested"),
    [
        (OptimizerKind.ADAMW, False),
        (OptimizerKind.SGD, True),
        (OptimizerKind.ADAMW_8BIT, True),
        (OptimizerKind.PAGED_ADAMW_8BIT, True),
        (OptimizerKind.ADAFACTOR, True),
    ],
)
def test_only_optimizers_that_deepspeed_has_not_tested_are_allowed_untested(optimizer, is_untested):
    config = deepspeed_config(Recipe(zero_stage=1, optimizer=optimizer), num_gpus=1)
    assert config is not None
    assert config["zero_allow_untested_optimizer"] is is_untested


def test_offload_to_nvme_without_a_place_names_the_option():
    with pytest.raises(InputError, match="--nvme-path"):
        deepspeed_config(Recipe(zero_stage=3, offload_optimizer=Offload.NVME), num_gpus=1)


def test_buffers_for_parameters_on_nvme_hold_the_largest_shard():
    recipe = Recipe(zero_stage=3, offload_params=Offload.NVME, nvme_path="/nvme")
    config = deepspeed_config(recipe, num_gpus=4, largest_parameter=2 * 3 * 5 * 7 * 10**7 + 1)
    assert config is not None
    assert config["zero_optimization"]["offload_param"]["buffer_size"] == 2 * 3 * 5 * 7 * 10**7 // 4 + 1


@settings(max_examples=50)
@given(recipe=DEEPSPEED_RECIPES, num_gpus=st.integers(1, 64))
def test_recipe_to_ds_config_and_back_is_the_same(recipe, num_gpus):
    config = deepspeed_config(recipe, num_gpus=num_gpus)
    assert config is not None
    back = recipe_of(json.loads(json.dumps(config)), num_gpus=num_gpus)
    recipe = recipe.with_changes(zero=replace(recipe.zero, reduce_scatter=recipe.scatters_gradients))
    for name in COVERED:
        assert getattr(back, name) == getattr(recipe, name), name


@settings(max_examples=50)
@given(recipe=DEEPSPEED_RECIPES, num_gpus=st.integers(1, 64))
def test_writing_what_was_read_changes_nothing(recipe, num_gpus):
    if recipe.task is not None and recipe.task.is_ms_swifts_grpo:  # which fetches nothing ahead, whatever the file says
        recipe = recipe.with_changes(zero=replace(recipe.zero, stage3_prefetch_bucket_size=0))
    config = deepspeed_config(recipe, num_gpus=num_gpus)
    assert config is not None
    base = settings_from_ds_config(config)
    again = deepspeed_config(merged_recipe(base, recipe, num_gpus=num_gpus), num_gpus=num_gpus, base=base)
    is_untested = recipe.optimizer not in (OptimizerKind.ADAMW, OptimizerKind.MUON)
    assert json.dumps(again) == json.dumps(config | {"zero_allow_untested_optimizer": is_untested})


# -- ds_config → settings --------------------------------------------------------------------------------------------


def test_a_published_zero_3_config_is_understood(deepspeed_reads):
    parsed = settings_from_ds_config(AGRI_R1)
    assert parsed.zero_stage == 3
    assert parsed.precision is Precision.BF16
    assert (parsed.micro_batch, parsed.grad_accum, parsed.gradient_clipping) == (10, 4, 0.3)
    assert parsed.offload_optimizer is parsed.offload_params is Offload.NONE
    assert parsed.zero == ZeroSettings(
        reduce_bucket_size=200_000_000,
        overlap_comm=True,
        round_robin_gradients=True,
        stage3_prefetch_bucket_size=200_000_000,
        sub_group_size=500_000_000,
    )
    recipe = merged_recipe(parsed, Recipe(), num_gpus=4)
    config = deepspeed_config(recipe, num_gpus=4, base=parsed)
    assert config is not None
    read = deepspeed_reads(config, num_gpus=4)
    assert read.train_batch_size == 160
    assert read.steps_per_print == 10  # what the recipe does not decide is kept


@pytest.mark.parametrize("stage", range(4))
def test_what_a_config_leaves_out_is_deepspeeds_default(deepspeed_reads, stage):
    config = {"train_batch_size": 8, "zero_optimization": {"stage": stage}}
    read, recipe = deepspeed_reads(config), recipe_of(config)
    for field in fields(ZeroSettings):
        assert getattr(recipe.zero, field.name) == getattr(read.zero_config, field.name.removeprefix("stage3_"))
    assert recipe.gradient_clipping == read.gradient_clipping
    assert recipe.precision is Precision.FP32
    assert (recipe.micro_batch, recipe.grad_accum) == (
        read.train_micro_batch_size_per_gpu,
        read.gradient_accumulation_steps,
    )


def test_without_zero_optimization_the_stage_is_0():
    assert recipe_of({"train_batch_size": 1}).zero_stage == 0


def test_deprecated_names_mean_the_new_ones(deepspeed_reads):
    config = {
        "train_batch_size": 1,
        "bfloat16": {"enabled": True},
        "zero_optimization": {"stage": 3, "cpu_offload": True, "cpu_offload_param": True, "max_live_parameters": 7},
    }
    read, recipe = deepspeed_reads(config), recipe_of(config)
    assert recipe.offload_optimizer.value == read.zero_config.offload_optimizer.device == "cpu"
    assert recipe.offload_params.value == read.zero_config.offload_param.device == "cpu"
    assert recipe.zero.stage3_max_live_parameters == read.zero_config.max_live_parameters == 7
    assert recipe.precision is Precision.BF16


def test_an_old_true_for_zero_optimization_is_stage_1():
    assert settings_from_ds_config({"zero_optimization": True}).zero_stage == 1


@pytest.mark.parametrize(
    ("name", "kind"), [("AdamW", OptimizerKind.ADAMW), ("Adam", OptimizerKind.ADAMW), ("SGD", OptimizerKind.SGD)]
)
def test_a_named_optimizer_is_understood_and_its_auto_values_are_left_out(name, kind):
    parsed = settings_from_ds_config({"optimizer": {"type": name, "params": {"lr": 1e-5, "betas": "auto"}}})
    assert parsed.optimizer is kind
    assert parsed.optimizer_params == {"lr": 1e-5}


def test_what_the_trainer_builds_itself_is_not_handed_to_deepspeed():
    base = settings_from_ds_config({"optimizer": {"type": "AdamW"}, "scheduler": {"type": "WarmupLR", "params": {}}})
    config = deepspeed_config(Recipe(zero_stage=2), num_gpus=1, base=base)
    assert config is not None
    assert not {"optimizer", "scheduler"} & set(config)


# -- mistakes --------------------------------------------------------------------------------------------------------

ZERO = "zero_optimization"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({ZERO: {"stage": 4}}, ["zero_optimization.stage", "4", "0, 1, 2 or 3"]),
        ({ZERO: {"stage": "3"}}, ["zero_optimization.stage", '"3"', "0, 1, 2 or 3"]),
        ({ZERO: {"stage": True}}, ["zero_optimization.stage", "true"]),
        ({ZERO: {"reduce_bucket_size": -1}}, ["zero_optimization.reduce_bucket_size", "-1"]),
        ({ZERO: {"reduce_bucket_size": 1.5}}, ["zero_optimization.reduce_bucket_size", "1.5", "whole"]),
        ({ZERO: {"reduce_bucket_size": "5e8"}}, ["zero_optimization.reduce_bucket_size", '"5e8"']),
        ({ZERO: {"overlap_comm": 1}}, ["zero_optimization.overlap_comm", "1", "true or false"]),
        ({ZERO: {"stage": 3, "stage3_max_live_params": 1}}, ["stage3_max_live_params", "stage3_max_live_parameters"]),
        ({ZERO: []}, ["zero_optimization", "[]", "object"]),
        ({ZERO: {"offload_optimizer": {"device": "gpu"}}}, ["offload_optimizer.device", "gpu", "none, cpu, nvme"]),
        ({ZERO: {"offload_optimizer": {"device": "nvme"}}}, ["offload_optimizer", "nvme_path"]),
        (
            {ZERO: {"offload_optimizer": {"divice": "cpu"}}},
            ["zero_optimization.offload_optimizer", "'divice'", "'device'"],
        ),
        ({ZERO: {"cpu_offload": True, "offload_optimizer": {}}}, ["cpu_offload and offload_optimizer"]),
        ({ZERO: {"zenflow": {}}}, ["zenflow"]),
        ({ZERO: {"zero_quantized_weights": True}}, ["zero_quantized_weights", "true", "false"]),
        ({ZERO: {"zero_hpz_partition_size": 0}}, ["zero_hpz_partition_size", "0", "1 or more"]),
        ({ZERO: {"mics_shard_size": 8}}, ["mics_shard_size", "removed", "zero_hpz_partition_size"]),
        ({ZERO: {"allgather_bucket_size": "auto"}}, ["zero_optimization.allgather_bucket_size", "auto"]),
        (
            {ZERO: {"stage": 2, "stage3_prefetch_bucket_size": "auto"}},
            ["stage3_prefetch_bucket_size", "at stage 3 only"],
        ),
        ({"train_micro_batch_size_per_gpu": 0}, ["train_micro_batch_size_per_gpu", "0", "1 or more"]),
        ({"gradient_clipping": "1"}, ["gradient_clipping", '"1"']),
        ({"gradient_clipping": -1}, ["gradient_clipping", "-1"]),
        ({"gradient_acumulation_steps": 2}, ["gradient_acumulation_steps", "gradient_accumulation_steps"]),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, ["bf16.enabled", "fp16.enabled"]),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, ["bf16_master_weights_and_grads"]),
        ({"fp16": {"enabled": 1}}, ["fp16.enabled", "1"]),
        ({"amp": {"enabled": True}}, ["amp", "removed"]),
        ({"torch_autocast": {"enabled": True}}, ["torch_autocast.enabled"]),
        ({"data_types": {"grad_accum_dtype": "fp32"}}, ["data_types.grad_accum_dtype"]),
        ({"optimizer": {"type": "OneBitAdam"}}, ["optimizer.type", "OneBitAdam", "AdamW"]),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, ["adam_w_mode"]),
    ],
)
def test_a_mistake_is_one_sentence_with_key_and_value(config, words):
    with pytest.raises(InputError) as caught:
        settings_from_ds_config(config, name="my.json")
    text = str(caught.value)
    assert "\n" not in text
    for word in ["my.json", *words]:
        assert word in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"stage": 2,  // or 3\n}', ["comment", "line 1"]),
        ('{\n/* why */ "a": 1}', ["comment", "line 2"]),
        ('{"a": 1,}', ["not JSON", "column 9"]),
        ("", ["empty"]),
        ("[1]", ["[1]", "object"]),
        ('"auto"', ["object"]),
        ('{"a": NaN}', ["NaN"]),
        ('{"a": 1, "a": 2}', ["a twice"]),
        ('{"url": "http://x",}', ["not JSON"]),
        ("[" * 100_000, ["nested"]),
    ],
)
def test_a_damaged_file_is_one_sentence_with_its_name(tmp_path, text, words):
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        settings_from_ds_config(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_a_missing_file_a_folder_and_bytes_are_told_apart(tmp_path):
    with pytest.raises(UnavailableError, match=r"absent\.json does not exist"):
        settings_from_ds_config(tmp_path / "absent.json")
    with pytest.raises(UnavailableError, match="cannot be read"):
        settings_from_ds_config(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(InputError, match="UTF-8"):
        settings_from_ds_config(tmp_path / "bytes.json")


def test_a_file_is_read_like_its_content(tmp_path):
    path = tmp_path / "ds_zero3.json"
    path.write_text(json.dumps(AGRI_R1))
    from_file, from_dict = settings_from_ds_config(path), settings_from_ds_config(AGRI_R1)
    assert from_file.zero == from_dict.zero
    assert from_file.content == from_dict.content


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda items: (
            st.lists(items, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["stage", ZERO, "bf16", "enabled", "offload_optimizer", "device", "optimizer", "type", "x"]
                ),
                items,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_no_content_leads_to_a_traceback(values):
    for config in ({"train_batch_size": 4, ZERO: values}, values if isinstance(values, dict) else {"bf16": values}):
        with contextlib.suppress(InputError):
            settings_from_ds_config(config)


# -- merging with the command line -----------------------------------------------------------------------------------


def test_the_file_wins_over_what_nobody_asked_for():
    recipe = recipe_of(AGRI_R1, Recipe(method=Method.LORA, micro_batch=1, zero_stage=2), num_gpus=4)
    assert (recipe.method, recipe.zero_stage, recipe.micro_batch, recipe.grad_accum) == (Method.LORA, 3, 10, 4)


def test_a_file_that_says_nothing_clips_muons_updates_as_deepspeed_does():
    silent = settings_from_ds_config({"optimizer": {"type": "Muon"}, "zero_optimization": {"stage": 2}})
    chosen = DecidedRecipe(optimizer=OptimizerKind.MUON).recipe()
    assert chosen.gradient_clipping == 0
    assert merged_recipe(silent, chosen, num_gpus=2).gradient_clipping == 1
    assert fixed_by_file(silent, hidden_size=None).recipe().gradient_clipping == 1
    off = settings_from_ds_config({"optimizer": {"type": "Muon"}, "gradient_clipping": 0})
    assert fixed_by_file(off, hidden_size=None).recipe().gradient_clipping == 0


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("zero_stage", 2, "--zero-stage 2"),
        ("zero_stage", None, "--zero-stage none"),
        ("precision", Precision.FP16, "--precision fp16"),
        ("micro_batch", 3, "--micro-batch 3"),
        ("grad_accum", 3, "--grad-accum 3"),
        ("offload_params", Offload.CPU, "--offload-params cpu"),
        ("gradient_clipping", 1.0, "--gradient-clipping 1.0"),
    ],
)
def test_an_option_that_contradicts_the_file_is_refused_by_both_names(name, value, option):
    parsed = settings_from_ds_config(AGRI_R1, name="ds_zero3.json")
    with pytest.raises(InputError, match=re.escape(option)) as caught:
        merged_recipe(parsed, Recipe(**{name: value}), num_gpus=4, given=[name])
    assert "ds_zero3.json" in str(caught.value)


def test_an_option_that_says_the_same_is_fine():
    parsed = settings_from_ds_config(AGRI_R1)
    assert merged_recipe(parsed, Recipe(zero_stage=3), num_gpus=4, given=["zero_stage"]).zero_stage == 3


def test_an_option_fills_in_what_the_file_leaves_out():
    recipe = recipe_of({ZERO: {"stage": 2}}, Recipe(precision=Precision.BF16, micro_batch=7), given=["precision"])
    assert (recipe.precision, recipe.micro_batch) == (Precision.BF16, 7)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, (4, 4)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, (8, 2)),
        ({"train_batch_size": 64}, (16, 1)),
        ({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}, (4, 3)),
        ({"train_micro_batch_size_per_gpu": 4}, (4, 1)),
    ],
)
def test_batch_sizes_follow_as_deepspeed_infers_them(deepspeed_reads, sizes, expected):
    recipe, read = recipe_of(sizes, num_gpus=4), deepspeed_reads(sizes, num_gpus=4)
    assert (recipe.micro_batch, recipe.grad_accum) == expected
    assert (read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps) == expected


@pytest.mark.parametrize(
    "sizes",
    [
        {"train_batch_size": 65, "train_micro_batch_size_per_gpu": 4},
        {"train_batch_size": 3},
        {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4},
    ],
)
def test_batch_sizes_that_do_not_multiply_are_refused_as_deepspeed_does(deepspeed_reads, sizes):
    with pytest.raises(AssertionError):
        deepspeed_reads(sizes, num_gpus=4)
    with pytest.raises(InputError, match="train_batch_size"):
        recipe_of(sizes, num_gpus=4)


def test_a_global_batch_on_the_command_line_sets_the_accumulation():
    recipe = recipe_of({"train_micro_batch_size_per_gpu": 2}, num_gpus=4, global_batch=48)
    assert (recipe.micro_batch, recipe.grad_accum) == (2, 6)
    assert recipe_of({}, Recipe(micro_batch=3), num_gpus=4, global_batch=48).grad_accum == 4
    with pytest.raises(InputError, match="--global-batch 48"):
        recipe_of({"train_batch_size": 64}, num_gpus=4, global_batch=48)


def test_unknown_keys_name_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'reduce_bucket_size'.*in zero_optimization"):
        settings_from_ds_config({ZERO: {"reduce_bucketsize": 5}})


def test_second_copies_of_weights_are_read_and_written():
    said = settings_from_ds_config({ZERO: {"stage": 3, "zero_hpz_partition_size": 8}})
    recipe = merged_recipe(said, Recipe(zero_stage=3), num_gpus=16)
    assert recipe.hpz == 8
    assert deepspeed_config(recipe, num_gpus=16)[ZERO]["zero_hpz_partition_size"] == 8
    assert "zero_hpz_partition_size" not in deepspeed_config(recipe.with_changes(hpz=1), num_gpus=16)[ZERO]


def test_second_copies_on_the_command_line_and_in_the_file_have_to_agree():
    said = settings_from_ds_config({ZERO: {"stage": 3, "zero_hpz_partition_size": 8}})
    with pytest.raises(InputError, match="zero_hpz_partition_size is 8, but --hpz 4 was given"):
        merged_recipe(said, Recipe(zero_stage=3, hpz=4), num_gpus=16, given={"hpz"})


def test_deepspeed_knows_the_key_of_second_copies_and_has_removed_mics():
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    assert config.DeepSpeedZeroConfig(stage=3, zero_hpz_partition_size=8).zero_hpz_partition_size == 8
    removed = pytest.importorskip("deepspeed.runtime.config")._REMOVED_ZERO_CONFIG_KEYS
    assert {"mics_shard_size", "mics_hierarchical_params_gather"} <= removed.keys()
