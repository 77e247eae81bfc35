"""Plans: written and read without loss, and refused in one sentence when they are not sound."""

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_cases import RECIPES, cluster, plan
from vlmplan.deepspeed_config import NEVER_PLANNED, deepspeed_config, settings_from_ds_config
from vlmplan.errors import InputError, UnavailableError, UnknownNameError, VlmplanError
from vlmplan.estimation import estimate
from vlmplan.files import write_atomically
from vlmplan.hardware import Offer, Pricing
from vlmplan.plan import SCHEMA, Plan, plan_from_estimate, plan_from_json, plan_text, read_plan, write_plan
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, OptimizerKind, Precision
from vlmplan.recipe.from_json import recipe_from_json
from vlmplan.recipe.libraries import TorchVersion, TransformersVersion
from vlmplan.units import Choice
from vlmplan.versions import CHECKED_VERSIONS
from vlmplan.workload import ModelFiles, Workload

ROOT = Path(__file__).parents[1]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def written(item: Plan) -> dict:
    return json.loads(plan_text(item))


def changed(values: dict, path: str, value: object) -> dict:
    """``values`` with the value at a dotted path replaced, or removed if ``value`` is ``...``."""
    result = json.loads(json.dumps(values))
    *parents, last = path.split(".")
    place = result
    for name in parents:
        place = place[name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return result


# -- round trips -----------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(recipe=RECIPES, num_gpus=st.integers(1, 16), num_nodes=st.integers(1, 4))
def test_a_plan_read_back_is_the_same_plan(recipe, num_gpus, num_nodes):
    item = plan(recipe, num_gpus, num_nodes)
    assert plan_from_json(written(item)) == item
    assert plan_text(plan_from_json(written(item))) == plan_text(item)


@given(recipe=RECIPES)
def test_a_recipe_read_back_is_the_same_recipe(recipe):
    assert recipe_from_json(json.loads(json.dumps(recipe.as_json()))) == recipe


@given(
    workload=st.builds(
        Workload,
        model=st.builds(
            ModelFiles,
            id=st.text(min_size=1),
            hub_id=st.none() | st.text(),
            config=st.dictionaries(st.text(), st.none() | st.integers() | st.text()),
            preprocessor=st.none() | st.dictionaries(st.text(), st.booleans()),
            notes=st.lists(st.text()).map(tuple),
            not_counted=st.lists(st.text()).map(tuple),
        ),
        seq_len=st.integers(1, 10**6),
        images_per_sample=st.integers(0, 100),
        audios_per_sample=st.integers(0, 100),
        audio_seconds=st.floats(0.01, 1e4),
        num_samples=st.integers(1, 10**9),
        epochs=st.floats(0.01, 1e6),
        global_batch=st.none() | st.integers(1, 10**6),
    )
)
def test_any_workload_survives(workload):
    assert plan_from_json(written(plan(workload=workload))).workload == workload


def test_a_plan_file_is_read_back(tmp_path):
    path = tmp_path / "new folder" / "plan.json"
    write_plan(plan(), path)
    assert read_plan(path) == plan()


def test_an_estimate_becomes_a_plan():
    workload = Workload(model=ModelFiles(id="tiny", config=LLAMA), seq_len=128, num_samples=210)
    recipe = Recipe(zero_stage=2, micro_batch=2, grad_accum=3)
    result = estimate(workload, recipe, cluster(5))
    offer = Offer(gpu_id="a100-sxm4-80gb", num_gpus=5, provider="p", usd_per_hour=2.0, pricing=Pricing.ON_DEMAND)
    item = plan_from_estimate(result, offer=offer, usd=0.5)
    assert item.samples_per_step == 2 * 3 * 5
    assert item.expected.num_steps == 210 // (2 * 3 * 5)
    assert item.expected.peak_allocated_bytes == result.peak_allocated_bytes
    assert sum(item.expected.components_at_peak.values()) == result.peak_allocated_bytes
    assert item.ds_config is not None
    assert item.ds_config["train_batch_size"] == 30
    assert item.offer is not None
    assert (item.offer.provider, item.expected.usd) == ("p", 0.5)
    assert item.environment == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert plan_from_json(written(item)) == item


def test_a_plan_tells_what_the_device_shows_beside_what_it_needs():
    """Pages that expandable segments keep while there is room are shown; the native allocator's blocks are needed."""
    workload = Workload(model=ModelFiles(id="tiny", config=LLAMA), seq_len=128, num_samples=210)
    for recipe in (Recipe(zero_stage=2), Recipe(zero_stage=2, expandable_segments=False)):
        found = estimate(workload, recipe, cluster(2))
        item = plan_from_estimate(found)
        assert item.expected.peak_device_bytes == found.device.device_bytes
        shown = found.reserved_with_room_bytes + found.device.overhead_bytes
        assert item.expected.shown_device_bytes == shown
        assert (shown > item.expected.peak_device_bytes) == recipe.expandable_segments
        older = written(item)
        del older["expected"]["reserved_with_room_bytes"]
        assert plan_from_json(older).expected.shown_device_bytes == item.expected.peak_device_bytes


def test_the_users_own_ds_config_stays_in_the_plan():
    workload = Workload(model=ModelFiles(id="tiny", config=LLAMA), seq_len=128)
    base = settings_from_ds_config({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "steps_per_print": 7})
    item = plan_from_estimate(estimate(workload, Recipe(zero_stage=2), cluster(2)), base=base)
    assert item.ds_config is not None
    assert item.ds_config["steps_per_print"] == 7


@pytest.mark.parametrize("name", NEVER_PLANNED)
def test_no_plan_makes_deepspeed_write_elsewhere_ask_servers_or_run_other_code(name):
    made = plan(Recipe(zero_stage=2, micro_batch=3))
    values = made.as_json()
    values["ds_config"] = {**values["ds_config"], name: {"output_path": "/elsewhere"}}
    with pytest.raises(InputError, match=f"the plan's ds_config has {name}, which vlmplan writes into no plan"):
        plan_from_json(values)


def test_what_no_plan_has_is_left_out_of_the_users_own_file_and_said():
    base = settings_from_ds_config({"csv_monitor": {"enabled": True, "output_path": "/mine"}, "steps_per_print": 7})
    config = deepspeed_config(Recipe(zero_stage=2), num_gpus=2, base=base)
    assert config is not None
    assert (config["steps_per_print"], "csv_monitor" in config) == (7, False)
    assert any("csv_monitor is left out of a plan; for curves" in note for note in base.notes)
    of_files = settings_from_ds_config({"checkpoint": {"parallel_write": {"pipeline_stage": True}}}).notes
    assert any(note.endswith("checkpoint is left out of a plan") for note in of_files)


def test_buffers_for_nvme_hold_the_largest_weight_of_the_model():
    config = LLAMA | {"vocab_size": 4_000_000}
    workload = Workload(model=ModelFiles(id="wide", config=config), seq_len=8)
    recipe = Recipe(zero_stage=3, offload_params=Offload.NVME, nvme_path="/nvme")
    item = plan_from_estimate(estimate(workload, recipe, cluster(2)))
    assert item.ds_config is not None
    block = item.ds_config["zero_optimization"]["offload_param"]
    assert block["buffer_size"] == 4_000_000 * 64 // 2


def test_checked_versions_are_those_of_the_constraints_file():
    lines = (line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {name: version for name, version in lines if name in CHECKED_VERSIONS}
    assert pinned == CHECKED_VERSIONS


def test_every_checked_library_is_one_that_training_needs():
    project = (ROOT / "pyproject.toml").read_text()
    for name in CHECKED_VERSIONS:
        assert f'"{name}>=' in project


@pytest.mark.parametrize(("name", "releases"), [("torch", TorchVersion), ("transformers", TransformersVersion)])
def test_no_other_minor_release_is_installed_of_what_a_plan_depends_on(name: str, releases: type[Choice]):
    first, *_, (major, minor) = [tuple(map(int, release.value.split("."))) for release in releases]
    assert f'"{name}>={first[0]}.{first[1]},<{major}.{minor + 1}"' in (ROOT / "pyproject.toml").read_text()


def test_a_plan_names_the_versions_that_its_recipe_is_for():
    recipe = Recipe(torch_version=TorchVersion.V2_15, transformers_version=TransformersVersion.V5_24)
    workload = Workload(model=ModelFiles(id="small", config=LLAMA), seq_len=8)
    item = plan_from_estimate(estimate(workload, recipe.with_changes(zero_stage=None), cluster(1)))
    assert item.versions == {**CHECKED_VERSIONS, "torch": "2.15.0", "transformers": "5.24.0"}
    assert plan_from_json(written(item)) == item


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("schema", "vlmplan.plan/2", ["schema", "vlmplan.plan/2", SCHEMA]),
        ("schema", ..., ["schema", SCHEMA]),
        ("recipe.micro_batch", "3", ["micro_batch", '"3"', "whole number"]),
        ("recipe.micro_batch", 0, ["--micro-batch", "0"]),
        ("recipe.precision", "fp8", ["--precision", "fp8", "bf16"]),
        ("recipe.zero_stage", "2", ["zero_stage", '"2"']),
        ("recipe.train_vision", 1, ["train_vision", "true or false"]),
        ("recipe.micro_bach", 1, ["micro_bach", "micro_batch"]),
        ("recipe.zero.reduce_bucket_sise", 1, ["reduce_bucket_sise", "reduce_bucket_size"]),
        ("recipe.zero", 7, ["zero", "7", "object"]),
        ("hardware.gpus_per_node", ..., ["hardware.gpus_per_node", "missing"]),
        ("hardware.num_nodes", 0, ["hardware.num_nodes", "0"]),
        ("hardware.vendor", "intel", ["hardware.vendor", "intel", "nvidia"]),
        ("expected.phases", {}, ["expected.phases", "list"]),
        ("expected.phases", [1], ["expected.phases[0]", "1"]),
        ("expected.step_seconds", "1 s", ["expected.step_seconds"]),
        ("expected.peak_allocated_bytes", -1, ["expected.peak_allocated_bytes", "-1"]),
        ("workload.epochs", 0, ["--epochs", "0"]),
        ("workload.seq_len", None, ["workload.seq_len", "null"]),
        ("workload.colour", "red", ["workload", "'colour'"]),
        ("model.config", None, ["model.config", "null"]),
        ("model.notes", [1], ["model.notes"]),
        ("offer.usd_per_hour", None, ["offer.usd_per_hour"]),
        ("environment", {"LD_PRELOAD": "x.so"}, ["LD_PRELOAD", "PYTORCH_ALLOC_CONF"]),
        ("environment", {"PYTORCH_ALLOC_CONF": "$(reboot)"}, ["PYTORCH_ALLOC_CONF", "reboot"]),
        ("more", 1, ["more"]),
    ],
)
def test_a_damaged_plan_is_one_sentence(path, value, words):
    with pytest.raises(InputError) as caught:
        plan_from_json(changed(written(plan()), path, value), source="my plan")
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("recipe.micro_batch", 4),
        ("recipe.precision", "fp16"),
        ("recipe.offload_optimizer", "cpu"),
        ("recipe.zero.reduce_bucket_size", 5),
        ("recipe.zero_stage", 3),
        ("recipe.zero_stage", "none"),
        ("hardware.gpus_per_node", 5),
        ("ds_config.gradient_clipping", 0.5),
        ("ds_config.train_micro_batch_size_per_gpu", 4),
        ("ds_config.zero_optimization.offload_optimizer", {"device": "cpu"}),
        ("ds_config", None),
    ],
)
def test_a_plan_whose_ds_config_says_something_else_is_refused(path, value):
    with pytest.raises(InputError, match="ds_config"):
        plan_from_json(changed(written(plan()), path, value))


@pytest.mark.parametrize("optimizer", list(OptimizerKind))
def test_the_optimizer_is_the_recipes_own(optimizer):
    item = plan(Recipe(zero_stage=2, optimizer=optimizer, method=Method.LORA, precision=Precision.BF16_PURE))
    assert plan_from_json(written(item)).recipe.optimizer is optimizer


@given(data=st.data())
def test_no_plan_with_a_value_changed_leads_to_a_traceback(data):
    values = written(plan())
    section = data.draw(st.sampled_from(sorted(values)))
    junk = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([]) | st.just({})
    path = section
    if isinstance(values[section], dict) and values[section] and data.draw(st.booleans()):
        path += "." + data.draw(st.sampled_from(sorted(values[section])))
    try:
        plan_from_json(changed(values, path, data.draw(junk)))
    except VlmplanError as error:
        assert str(error).count("\n") == 0  # noqa: PT017


def test_the_difference_between_ds_config_and_recipe_is_named_to_the_last_key():
    values = written(plan(Recipe(zero_stage=3), num_gpus=2))
    values["ds_config"]["zero_optimization"]["stage3_max_reuse_distance"] = 12345
    with pytest.raises(InputError, match=r"means zero\.stage3_max_reuse_distance 12345, its recipe \d+$"):
        plan_from_json(values)


@pytest.mark.parametrize(
    ("path", "value"),
    [("hardware.num_nodes", 1e39), ("hardware.num_nodes", 10**6), ("hardware.gpus_per_node", 10**5)],
)
def test_a_plan_for_more_machines_than_there_are_is_refused(path: str, value: float):
    with pytest.raises(InputError, match=f"{path} is .* a whole number of at most"):
        plan_from_json(changed(written(plan(Recipe(zero_stage=2), num_gpus=2)), path, value))


def test_files_that_are_no_plan_are_named(tmp_path):
    with pytest.raises(UnavailableError, match=r"plan\.json does not exist"):
        read_plan(tmp_path / "plan.json")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {}}')
    with pytest.raises(InputError, match=r"ds\.json has no schema"):
        read_plan(tmp_path / "ds.json")


def test_unknown_recipe_keys_name_the_nearest():
    with pytest.raises(UnknownNameError, match="grad_accum"):
        recipe_from_json({"grad_acum": 2})


# -- writing ---------------------------------------------------------------------------------------------------------


def test_nothing_is_overwritten_unless_asked(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("mine")
    with pytest.raises(InputError, match="--force"):
        write_plan(plan(), path)
    assert path.read_text() == "mine"
    write_plan(plan(), path, force=True)
    assert read_plan(path) == plan()


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnavailableError, match="No space left"):
        write_plan(plan(), path, force=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "old"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match=r"plan\.json cannot be written"):
        write_plan(plan(), tmp_path / "file" / "plan.json")
    with pytest.raises(InputError, match="folder"):
        write_plan(plan(), tmp_path)


def test_the_umask_decides_who_may_read(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", "", mode=0o777)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o750


def test_reading_a_plan_needs_none_of_the_planner_s_model_code():
    import subprocess
    import sys

    code = (
        "import sys, vlmplan.plan, vlmplan.emit; "
        "parts = ('vlmplan.architecture', 'vlmplan.memory', 'torch'); "
        "heavy = [name for name in sys.modules if name.startswith(parts)]; "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
