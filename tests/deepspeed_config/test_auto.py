"""An "auto" is what transformers makes of it: its own class on the same files, with the same options and models."""

import copy
import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_files import nested
from planned import cluster, decided
from vlmplan.deepspeed_config import KEYS, deepspeed_config, settings_from_ds_config
from vlmplan.deepspeed_config.auto import OPTION_OF_AUTO, SIZES_FROM_MODEL, auto_problem
from vlmplan.deepspeed_config.keys import Kind
from vlmplan.errors import InputError
from vlmplan.models import find_model, packaged_models
from vlmplan.models.hidden_size import hidden_size_of
from vlmplan.recipe.choices import Precision
from vlmplan.request import parse
from vlmplan.request.setup import fixed_recipe, resolved_recipe

MODELS = ("smollm2-135m", "qwen2-vl-2b", "gpt2", "llava-1.5-7b")
"""A hidden size of its own, one in the flat file that older Qwen-VL has, one under another name, one of text_config."""
FILLED_BY_ACCELERATE = "zero_optimization.stage3_gather_16bit_weights_on_model_save"


@pytest.fixture(scope="module")
def transformers_fills():
    """The file after both steps of transformers' class, and what it finds to contradict the options."""
    pytest.importorskip("deepspeed")
    from transformers import CONFIG_MAPPING
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    made = {}

    def fill(file: dict, model: str, *, num_gpus: int, micro_batch: int, grad_accum: int, precision: Precision) -> dict:
        if model not in made:
            files = find_model(model)
            made[model] = CONFIG_MAPPING[files.model_type].from_dict(copy.deepcopy(dict(files.config)))
        is_bf16 = precision in (Precision.BF16, Precision.BF16_PURE)
        arguments = SimpleNamespace(
            world_size=num_gpus,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=grad_accum,
            max_grad_norm=1.0,
            learning_rate=1e-5,
            adam_beta1=0.9,
            adam_beta2=0.999,
            adam_epsilon=1e-8,
            weight_decay=0.0,
            save_on_each_node=False,
            bf16=is_bf16,
            bf16_full_eval=False,
            fp16=precision is Precision.FP16,
            fp16_full_eval=False,
            get_warmup_steps=lambda _: 3,
        )
        held = HfTrainerDeepSpeedConfig(copy.deepcopy(file))
        held.trainer_config_process(arguments)
        held.trainer_config_finalize(arguments, SimpleNamespace(config=made[model]), 100)
        return held.config

    return fill


def merged(first: dict, second: dict) -> dict:
    return first | {
        key: merged(first[key], value) if isinstance(first.get(key), dict) and isinstance(value, dict) else value
        for key, value in second.items()
    }


def at(values: dict, path: str) -> object:
    for name in path.split("."):
        values = values.get(name, {})
    return values


def ours(file: dict, model: str, options: dict, num_gpus: int) -> tuple[dict, Precision]:
    files = find_model(model)
    config = settings_from_ds_config(copy.deepcopy(file))
    recipe, _ = resolved_recipe(decided(**options), cluster("a100-sxm4-80gb", num_gpus), files, ds_config=config)
    written = deepspeed_config(recipe, num_gpus=num_gpus, base=config)
    assert written is not None
    assert recipe.micro_batch == written["train_micro_batch_size_per_gpu"]
    return written, recipe.precision


def same(file: dict, model: str, options: dict, num_gpus: int, fills) -> None:
    """Every "auto" of the file has the value that transformers gives it, where a written file has the key."""
    written, precision = ours(file, model, options, num_gpus)
    theirs = fills(
        file,
        model,
        num_gpus=num_gpus,
        micro_batch=written["train_micro_batch_size_per_gpu"],
        grad_accum=written["gradient_accumulation_steps"],
        precision=precision,
    )
    for path in (*OPTION_OF_AUTO, *SIZES_FROM_MODEL):
        if (
            at(file, path) == "auto"
            and not path.startswith(("optimizer", "scheduler"))
            and path != FILLED_BY_ACCELERATE
        ):
            assert at(theirs, path) != "auto", path
            assert at(written, path) == at(theirs, path), path


TOP = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
PRECISIONS = ("bf16.enabled", "fp16.enabled")
SETTINGS = tuple(path for path in OPTION_OF_AUTO if path.startswith(("optimizer", "scheduler")))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stage", range(4))
def test_a_file_that_is_all_auto_is_what_transformers_makes_of_it(transformers_fills, model, stage):
    file: dict = {"zero_optimization": {"stage": stage}}
    sizes = SIZES_FROM_MODEL if stage == 3 else {"zero_optimization.reduce_bucket_size"}
    for path in (*TOP, *PRECISIONS, *SETTINGS, *sizes):
        file = merged(file, nested(path))
    same(file, model, {}, 4, transformers_fills)


@pytest.mark.sweep
@settings(max_examples=60)
@given(
    paths=st.sets(st.sampled_from((*TOP, *PRECISIONS, *SETTINGS, "zero_optimization.reduce_bucket_size"))),
    stage_3=st.sets(st.sampled_from(sorted(SIZES_FROM_MODEL))),
    model=st.sampled_from(MODELS),
    num_gpus=st.integers(1, 9),
    micro_batch=st.none() | st.integers(1, 5),
    grad_accum=st.none() | st.integers(1, 5),
    precision=st.none() | st.sampled_from(list(Precision)),
)
def test_any_part_of_a_file_may_be_auto(
    transformers_fills, paths, stage_3, model, num_gpus, micro_batch, grad_accum, precision
):
    file: dict = {"zero_optimization": {"stage": 3 if stage_3 else 2}}
    for path in paths | stage_3:
        file = merged(file, nested(path))
    options = {"micro_batch": micro_batch, "grad_accum": grad_accum, "precision": precision}
    if precision is not None and not paths & set(PRECISIONS):
        file = merged(file, nested("bf16.enabled"))
    given_options = {name: value for name, value in options.items() if value is not None}
    same(file, model, given_options, num_gpus, transformers_fills)


UNTOUCHED = [path for path, key in KEYS.items() if "auto" not in key.only and auto_problem(path, stage=3) is not None]


@pytest.mark.parametrize("path", UNTOUCHED)
def test_an_auto_that_transformers_leaves_is_refused_by_name(transformers_fills, path):
    file = merged({"zero_optimization": {"stage": 3}}, nested(path))
    if KEYS[path].kind not in (Kind.OBJECT, Kind.ANY):  # of a whole section transformers makes a traceback
        filled = transformers_fills(
            file, "smollm2-135m", num_gpus=1, micro_batch=1, grad_accum=1, precision=Precision.BF16
        )
        assert at(filled, path) == "auto"
    with pytest.raises(InputError) as caught:
        settings_from_ds_config(file, name="my.json")
    assert f'my.json: {path} is "auto"' in str(caught.value)


@pytest.mark.parametrize("path", ["stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"])
@pytest.mark.parametrize("stage", range(3))
def test_sizes_of_stage_3_are_filled_in_at_stage_3_only(transformers_fills, path, stage):
    file = {"zero_optimization": {"stage": stage, path: "auto"}}
    filled = transformers_fills(file, "smollm2-135m", num_gpus=1, micro_batch=1, grad_accum=1, precision=Precision.FP32)
    assert filled == file
    with pytest.raises(InputError, match="at stage 3 only"):
        settings_from_ds_config(file)


@pytest.mark.sweep
def test_the_hidden_size_is_the_one_that_transformers_finds():
    pytest.importorskip("transformers")
    from transformers import CONFIG_MAPPING

    num_seen = 0
    for name in packaged_models():
        try:
            files = find_model(name)
        except InputError:  # its classes come with the checkpoint
            continue
        if files.model_type not in CONFIG_MAPPING:
            continue
        config = CONFIG_MAPPING[files.model_type].from_dict(copy.deepcopy(dict(files.config)))
        parts = [config, getattr(config, "text_config", None)]
        theirs = next(part.hidden_size for part in parts if hasattr(part, "hidden_size"))
        assert hidden_size_of(files.config) == theirs, name
        num_seen += 1
    assert num_seen > 60


@pytest.mark.parametrize(
    ("config", "hidden_size"),
    [
        ({"hidden_size": 7, "text_config": {"hidden_size": 5}}, 7),
        ({"hidden_sizes": [3, 11, 2]}, 11),
        ({"text_config": {"hidden_sizes": [3, 13]}}, 13),
        ({"model_type": "gpt2", "n_embd": 17}, 17),
        ({"vision_config": {"hidden_size": 5}}, None),
    ],
)
def test_the_hidden_size_is_looked_for_in_the_order_of_transformers(config, hidden_size):
    assert hidden_size_of(config) == hidden_size


def test_a_model_without_a_hidden_size_names_all_sizes_that_need_it():
    file = {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}}
    with pytest.raises(InputError, match="hidden_size") as caught:
        settings_from_ds_config(file).zero_settings(3)
    for name in ("reduce_bucket_size", "stage3_prefetch_bucket_size"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("blocks", "option", "expected"),
    [
        ({"bf16": {"enabled": "auto"}}, None, Precision.BF16),
        ({"fp16": {"enabled": "auto"}}, None, Precision.BF16),  # accelerate turns bf16 on where the file says nothing
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": False}}, None, Precision.FP16),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": False}}, Precision.FP32, Precision.FP32),
        ({"bf16": {"enabled": "auto"}}, Precision.BF16_PURE, Precision.BF16_PURE),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": "auto"}}, None, Precision.BF16),
        ({"bf16": {"enabled": "auto"}}, Precision.FP16, Precision.FP16),
    ],
)
def test_precision_is_the_options_where_the_file_leaves_it_open(blocks, option, expected):
    options = {} if option is None else {"precision": option}
    config = settings_from_ds_config(blocks | {"zero_optimization": {"stage": 2}})
    files = find_model("smollm2-135m")
    recipe, _ = resolved_recipe(decided(**options), cluster("a100-sxm4-80gb", 2), files, ds_config=config)
    assert recipe.precision is expected


@pytest.mark.parametrize(
    ("blocks", "option"),
    [
        ({"bf16": {"enabled": True}, "fp16": {"enabled": "auto"}}, Precision.FP16),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": False}}, Precision.FP16),
        ({"bf16": {"enabled": False}, "fp16": {"enabled": "auto"}}, Precision.BF16),
    ],
)
def test_precision_that_the_file_rules_out_is_refused_with_both(blocks, option):
    config = settings_from_ds_config(blocks | {"zero_optimization": {"stage": 2}}, name="my.json")
    with pytest.raises(InputError, match=f"my.json.*--precision {option.value} was given"):
        resolved_recipe(
            decided(precision=option), cluster("a100-sxm4-80gb", 2), find_model("smollm2-135m"), ds_config=config
        )


@pytest.mark.parametrize(
    ("blocks", "option"),
    itertools.product(({"bf16": {"enabled": "auto"}}, {"fp16": {"enabled": "auto"}}), (None, "fp16")),
)
def test_a_search_takes_the_same_resolution_as_an_estimate(tmp_path, blocks, option):
    path = tmp_path / "ds.json"
    sizes = dict.fromkeys((name.rpartition(".")[2] for name in SIZES_FROM_MODEL), "auto")
    import json

    path.write_text(json.dumps(blocks | {"zero_optimization": {"stage": 3} | sizes} | dict.fromkeys(TOP, "auto")))
    files = find_model("qwen2-vl-2b")
    fixed = fixed_recipe(parse({"ds_config": path, "precision": option}), files)
    recipe, _ = resolved_recipe(fixed, cluster("a100-sxm4-80gb", 4), files)
    options = {} if option is None else {"precision": Precision(option)}
    config = settings_from_ds_config(path)
    alone, _ = resolved_recipe(decided(**options), cluster("a100-sxm4-80gb", 4), files, ds_config=config)
    assert not {"micro_batch", "grad_accum", "gradient_clipping"} & fixed.names
    assert (recipe.zero, recipe.precision, recipe.zero_stage) == (alone.zero, alone.precision, 3)
