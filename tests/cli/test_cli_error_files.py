"""Files that are wrong, given to the command line: ds_config.json, catalogs, model folders, and where plans go."""

import copy
import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from cli_calls import DOES_NOT_FIT, DONE, MENDABLE, TINY, call, folder_of, refusal, says
from laws import law
from vlmplan.errors import VlmplanError
from vlmplan.estimation import Estimator
from vlmplan.models.packaged import packaged_files
from vlmplan.recipe import Recipe
from vlmplan.request import WorkloadRequest
from vlmplan.request.samples import workload_of
from vlmplan.workload import ModelFiles

MODEL = "smollm2-135m"
DIGITS = "1" + "0" * 5000
"""More than Python turns into an integer."""


def written(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def refused_file(option: str, name: str, *words: str) -> str:
    return refusal("estimate", "--model", MODEL, "--gpu", "rtx-4090:2", option, name, *words, "--json")


# -- ds_config.json --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["empty", "{...}"]),
        (" \n", ["empty", "{...}"]),
        ("[2]", ["[2]", "{...}"]),
        ('"zero"', ['"zero"', "{...}"]),
        ("null", ["null", "{...}"]),
        ("{stage: 2}", ["not JSON", "column 2"]),
        ('{\n// why\n"fp16": {}}', ["comment", "line 2"]),
        (b"\xff\xfe\x00\x80", ["UTF-8"]),
        ("[" * 100_000, ["nested too deeply"]),
        ('{"train_batch_size": ' + DIGITS + "}", ["thousands of digits"]),
        ('{"train_batch_size": 1' + "0" * 400 + "}", ["train_batch_size is 1", "at most"]),
        ('{"train_batch_size": 0}', ["train_batch_size is 0", "1 or more"]),
        ('{"train_micro_batch_size_per_gpu": 2000000000}', ["train_micro_batch_size_per_gpu is 2000000000", "at most"]),
        ('{"train_batch_size": 8.5}', ["train_batch_size is 8.5", "whole number"]),
        ('{"train_batch_size": 7}', ["7 samples", "train_batch_size", "2 GPU(s)"]),
        (
            '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}',
            ["32", "24"],
        ),
        ('{"steps_per_print": "auto"}', ["steps_per_print", '"auto"', "write the value"]),
        ('{"zero_optimization": {"overlap_comm": "auto"}}', ["zero_optimization.overlap_comm", '"auto"']),
        ('{"zero_optimization": [3]}', ["zero_optimization is [3]", "{...}"]),
        ('{"zero_optimization": {"stage": 4}}', ["zero_optimization.stage is 4", "0, 1, 2 or 3"]),
        ('{"zero_optimization": {"stage": "2"}}', ['zero_optimization.stage is "2"', "0, 1, 2 or 3"]),
        ('{"zero_optimization": {"stage": true}}', ["zero_optimization.stage is true", "0, 1, 2 or 3"]),
        ('{"zero_optimization": {"stag": 2}}', ["'stag'", "'stage'", "zero_optimization"]),
        ('{"zero_optimisation": {}}', ["'zero_optimisation'", "'zero_optimization'"]),
        ('{"zero_optimization": {}, "zero_optimization": {}}', ["zero_optimization", "twice"]),
        ('{"zero_optimization": {"reduce_bucket_size": -5}}', ["reduce_bucket_size is -5", "1 or more"]),
        ('{"zero_optimization": {"reduce_bucket_size": NaN}}', ["NaN"]),
        ('{"zero_optimization": {"reduce_bucket_size": 1e400}}', ["reduce_bucket_size", "whole number"]),
        ('{"zero_optimization": {"reduce_bucket_size": 1e300}}', ["reduce_bucket_size", "at most"]),
        ('{"gradient_clipping": "1.0"}', ['gradient_clipping is "1.0"', "number"]),
        ('{"gradient_clipping": 1' + "0" * 400 + "}", ["gradient_clipping is 1", "number"]),
        ('{"bf16": "yes"}', ['bf16 is "yes"', "{...}"]),
        ('{"bf16": {"enabled": "true"}}', ['bf16.enabled is "true"', "true or false"]),
        ('{"bf16": {"enabled": true}, "fp16": {"enabled": true}}', ["bf16.enabled", "fp16.enabled", "false"]),
        ('{"optimizer": {"type": "Lion"}}', ['optimizer.type is "Lion"', "AdamW"]),
        ('{"tensor_parallel": {"autotp_size": 4}}', ["tensor_parallel", "no memory model"]),
        ('{"zero_optimization": {"stage": 3, "offload_optimizer": "cpu"}}', ['offload_optimizer is "cpu"', "{...}"]),
        ('{"zero_optimization": {"stage": 3, "offload_param": {"device": "disk"}}}', ['device is "disk"', "nvme"]),
        (
            '{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}',
            ["zero_optimization.offload_param.device cpu", "stage 3"],
        ),
    ],
)
def test_a_ds_config_that_cannot_be_taken_as_it_is_names_key_and_value(content: str | bytes, parts: Sequence[str]):
    says(refused_file("--ds-config", written("ds.json", content)), *parts)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--zero-stage", "3"], ["zero_optimization.stage is 2", "--zero-stage 3"]),
        (["--zero-stage", "none"], ["DeepSpeed", "--zero-stage none"]),
        (["--precision", "fp16"], ["bf16", "--precision fp16"]),
        (["--micro-batch", "3"], ["train_micro_batch_size_per_gpu is 2", "--micro-batch 3"]),
        (["--global-batch", "7"], ["7 samples", "--global-batch"]),
    ],
)
def test_options_that_contradict_the_ds_config_name_both(words: Sequence[str], parts: Sequence[str]):
    content = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 2}
    says(refused_file("--ds-config", written("ds.json", json.dumps(content)), *words), "ds.json", *parts)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--zero-stage", "none"], ["--zero-stage 2", "--zero-stage none"]),
        (["--precision", "fp16"], ["--precision bf16", "--precision fp16"]),
        (["--global-batch", "24"], ["train_batch_size is 32", "--global-batch 24"]),
    ],
)
def test_a_search_holds_to_the_ds_config_too(words: Sequence[str], parts: Sequence[str]):
    content = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_batch_size": 32}
    name = written("ds.json", json.dumps(content))
    says(refusal("recommend", "--model", MODEL, "--gpu", "rtx-4090", "--ds-config", name, *words), "ds.json", *parts)


@pytest.mark.parametrize("option", ["--ds-config", "--catalog"])
def test_a_file_that_is_not_there_or_is_a_folder_is_named(option: str):
    says(refused_file(option, "nowhere.json"), "nowhere.json")
    Path("folder").mkdir()
    says(refused_file(option, "folder"), "folder", "irectory")
    Path("loop").symlink_to("loop")
    says(refused_file(option, "loop"), "loop")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read and write everything")
def test_a_file_that_may_not_be_read_or_a_folder_that_may_not_be_written_is_named():
    Path(written("secret.json", "{}")).chmod(0)
    says(refused_file("--ds-config", "secret.json"), "secret.json", "ermission")
    Path("closed").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    says(refusal(*RECOMMEND, "--out", "closed"), "closed/plan.json", "ermission")


# -- catalogs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["empty", "gpus", "offers"]),
        ("# nothing\n", ["empty", "gpus", "offers"]),
        ("gpus: [1, {", ["not YAML", "line 2"]),
        ("gpus:\n\tmy: 1\n", ["not YAML", "line 2"]),
        ("- a\n", ['["a"]', "an object"]),
        ("hello", ['"hello"', "an object"]),
        (b"\xff\xfe\x00", ["UTF-8"]),
        ("gpus: \0", ["not YAML"]),
        ("gpu: {}", ["'gpu'", "'gpus'"]),
        ("gpus: t4", ['gpus is "t4"', "an object"]),
        ("gpus: {mine: 3}", ["gpus.mine is 3", "an object"]),
        ("gpus: {4090: {name: x}}", ["4090", "quotes"]),
        ("gpus: {mine: {memory_mb: 1}}", ["'memory_mb'", "'memory_mib'"]),
        ("gpus: {mine: {memory_mib: lots}}", ['memory_mib is "lots"', "number"]),
        ("gpus: {mine: {memory_mib: -5}}", ["memory_mib is -5", "at least"]),
        ("gpus: {mine: {memory_mib: .nan}}", ["memory_mib is NaN", "number"]),
        ("gpus: {mine: {memory_mib: 1" + "0" * 400 + "}}", ["memory_mib is 1", "number"]),
        ("gpus: {mine: {memory_mib: " + DIGITS + "}}", ["thousands of digits"]),
        ("gpus: {}\ngpus: {}", ["twice"]),
        ("schema: other/2", ["other/2", "vlmplan.catalog/1"]),
        ("offers: {a: 1}", ["offers is", "list"]),
        ("offers: [3]", ["offers[0] is 3", "an object"]),
        ("offers: [{gpu: t4}]", ["offers[0]", "num_gpus", "usd_per_hour"]),
        ("offers: [{gpu: t4, usd_per_hour: -1}]", ["usd_per_hour is -1", "at least 0"]),
        ("offers: [{gpu: t4, pricing: cheap}]", ['pricing is "cheap"', "on_demand"]),
        ("discounts: [{provider: runpod, fraction: 2}]", ["fraction is 2", "0 to 1"]),
        ("hide: [nobody-of-this-name]", ["'nobody-of-this-name'", "hide[0]"]),
        ("gpus: &a {x: *a}", ["*a"]),
        ("gpus: *nowhere", ["undefined alias"]),
        ("[" * 5000, ["nested too deeply"]),
    ],
)
def test_a_catalog_that_cannot_be_read_names_key_and_value(content: str | bytes, parts: Sequence[str]):
    says(refused_file("--catalog", written("mine.yaml", content)), "mine.yaml", *parts)


def test_a_catalog_runs_no_code():
    name = written("mine.yaml", "gpus: !!python/object/apply:os.mkdir [made-by-yaml]")
    says(refused_file("--catalog", name), "mine.yaml", "tag")
    assert not Path("made-by-yaml").exists()


# -- files of other trainers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["check"], ["recommend", "--config"]])
def test_what_a_trainers_file_means_is_told_with_the_file(command: list[str]):
    Path("lf.yaml").write_text(
        "stage: sft\nfinetuning_type: lora\nbf16: true\nmodel_name_or_path: smollm2-135m\nlora_target: nope\n"
    )
    words = (*command, "lf.yaml", "--gpu", "rtx-4090")
    assert refusal(*words).startswith("vlmplan: lf.yaml: --lora-targets nope: no layer of this model has such a name")
    assert refusal(*words, "--lora-targets", "nought").startswith("vlmplan: --lora-targets nought: no layer")


# -- model folders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ("", ["is empty"]),
        ("{", ["not JSON", "at its end"]),
        ("[]", ["holds []", "a JSON object"]),
        ("{}", ["model_type"]),
        ('{"a":' * 100_000, ["nested too deeply"]),
        ('{"model_type": "llama", "hidden_size": ' + DIGITS + "}", ["thousands of digits"]),
        (TINY | {"hidden_size": "big"}, ['hidden_size is "big"', "an integer is needed"]),
        (TINY | {"hidden_size": -1}, ["hidden_size is -1", "positive integer"]),
        (TINY | {"hidden_size": None}, ["hidden_size", "an integer is needed"]),
        (TINY | {"hidden_size": 2.5}, ["hidden_size is 2.5", "an integer is needed"]),
        (TINY | {"hidden_size": 10**400}, ["hidden_size is 1", "at most"]),
        (TINY | {"num_hidden_layers": 10**6}, ["num_hidden_layers is 1000000", "1,000"]),
        (TINY | {"hidden_act": "nosuch"}, ["'nosuch'", "silu", "config.json"]),
        (TINY | {"hidden_act": "gelu_newer"}, ["'gelu_newer'", "'gelu_new'"]),
        (TINY | {"hidden_act": 3}, ["hidden_act is 3", "string"]),
        (TINY | {"tie_word_embeddings": "yes"}, ['tie_word_embeddings is "yes"', "true or false"]),
        ({"model_type": "llava", "text_config": 3}, ["text_config is 3", "mapping"]),
        ({"model_type": "llava", "text_config": {"model_type": [1]}}, ["text_config.model_type is [1]", "string"]),
    ],
)
def test_a_config_that_describes_no_model_names_key_and_value(config: Any, parts: Sequence[str]):
    folder_of("model", config)
    says(refusal("estimate", "--model", "./model", "--gpu", "t4", "--json"), "config.json", *parts)


def test_a_folder_without_a_config_says_what_is_needed():
    Path("model").mkdir()
    says(refusal("estimate", "--model", "./model", "--gpu", "t4"), "model", "config.json")


@pytest.mark.parametrize("settings_text", ["", "{", "[]", '{"patch_size": 0}', '{"min_pixels": "x"}'])
def test_broken_image_settings_are_refused(settings_text: str):
    files = packaged_files("qwen2-vl-2b")
    folder_of("model", dict(files.config), preprocessor_config=settings_text)
    refusal("estimate", "--model", "./model", "--gpu", "h100-sxm")


FAMILIES = ("blip2-opt-2.7b", "gemma-3-4b", "internvl3-1b", "llama-3.2-1b", "llama-3.2-11b-vision", "llava-1.5-7b")
FAMILIES += ("llava-onevision-0.5b", "mixtral-8x7b", "ovis2-1b", "phi-3-mini", "qwen-vl-chat", "qwen2-vl-2b")


def places(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


FILES = {
    alias: {"config": packaged_files(alias).config, "preprocessor": packaged_files(alias).preprocessor or {}}
    for alias in FAMILIES
}
PLACES = [
    (alias, file, path)
    for alias, files in FILES.items()
    for file, values in files.items()
    for path in places(values)
    if path != ("model_type",)
]


@law(
    quick=30,
    thorough=120,
    place=st.sampled_from(PLACES),
    value=st.sampled_from(["x", "", -1, 0, 1, 2.5, True, None, [], [1], ["x"], {}, {"a": 1}, 10**8, 10**400, ...]),
)
def test_any_value_at_any_place_of_a_config_gives_a_model_or_a_sentence(place: tuple, value: Any):
    alias, file, path = place
    changed = copy.deepcopy(dict(FILES[alias][file]))
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    if value is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    files = ModelFiles(id=alias, **(FILES[alias] | {file: changed}))
    sentence = "a model"
    try:
        estimator = Estimator(workload_of(files, WorkloadRequest(seq_len=1024, image_size=(224, 224))), Recipe())
        estimator.trace(Recipe(), (8, 0))
    except VlmplanError as error:
        sentence = str(error)
    assert sentence
    assert "\n" not in sentence


# -- where plans go --------------------------------------------------------------------------------------------------

RECOMMEND = ("recommend", "--model", MODEL, "--gpu", "rtx-4090:1", "--method", "lora", "--json")


@pytest.mark.sweep
def test_existing_files_are_overwritten_only_with_force():
    assert call(*RECOMMEND, "--out", "plans").code == DONE
    names = sorted(path.name for path in Path("plans").iterdir())
    Path("plans/plan.json").write_text("mine")
    Path("plans/launch.sh").unlink()
    says(refusal(*RECOMMEND, "--out", "plans"), "plans/plan.json", "--force")
    assert Path("plans/plan.json").read_text() == "mine"
    assert not Path("plans/launch.sh").exists()
    assert call(*RECOMMEND, "--out", "plans", "--force").code == DONE
    assert sorted(path.name for path in Path("plans").iterdir()) == names
    assert json.loads(Path("plans/plan.json").read_text())["schema"] == "vlmplan.plan/1"


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_plan_folder_that_cannot_be_one_is_refused_and_left_alone(force: tuple[str, ...]):
    written("file", "mine")
    says(refusal(*RECOMMEND, "--out", "file", *force), "file", "folder")
    says(refusal(*RECOMMEND, "--out", "file/deeper", *force), "file/deeper")
    assert Path("file").read_text() == "mine"
    Path("plans/launch.sh").mkdir(parents=True)
    says(refusal(*RECOMMEND, "--out", "plans", *force), "plans/launch.sh", "folder")
    assert [path.name for path in Path("plans").iterdir()] == ["launch.sh"]


@pytest.mark.sweep
def test_nothing_is_written_when_nothing_fits_or_the_plan_cannot_be_one():
    found = call("recommend", "--model", "llama-3.1-70b", "--gpu", "t4:1", "--out", "plans", "--json")
    assert (found.code, Path("plans").exists()) == (DOES_NOT_FIT, False)
    words = ("--zero-stage", "3", "--offload-params", "nvme")
    says(refusal(*RECOMMEND, *words, "--out", "plans", code=MENDABLE), "--nvme-path")
    assert not Path("plans").exists()
