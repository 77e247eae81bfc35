"""A model's folder that is no longer what was planned, or never had what it says, is told before ranks start."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_calls import call
from vlmplan.launch.model_folder import model_folder_problems
from vlmplan.models import find_model
from vlmplan.models.stored_weights import left_out_weights, stored_sizes
from vlmplan.models.tree import model_tree
from vlmplan.plan import Plan, plan_from_estimate
from vlmplan.request import parse
from vlmplan.requested import requested_estimate

SHAPE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
LLAMA = {"model_type": "llama", **SHAPE, "num_attention_heads": 4, "max_position_embeddings": 64}
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


def write_weights(path: Path, sizes: dict[str, int]) -> None:
    """A file with the header of these weights, and none of their values."""
    tensors = {name: {"dtype": "BF16", "shape": [size], "data_offsets": [0, 0]} for name, size in sizes.items()}
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def sizes_of(folder: Path) -> dict[str, int]:
    return {one.name: one.parameter.numel for one in model_tree(find_model(str(folder))).parameters()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    write_weights(tmp_path / FILE, sizes_of(tmp_path))
    return tmp_path


def planned(folder: Path) -> Plan:
    asked = {"model": str(folder), "gpu": "rtx-4090", "method": "lora", "seq_len": 16}
    return plan_from_estimate(requested_estimate(parse(asked), ())[0])


def problems(plan: Plan, folder: Path, *, random_weights: bool = False) -> list[str]:
    return list(model_folder_problems(plan, folder, random_weights=random_weights))


def test_a_folder_as_it_was_planned_has_no_problem(folder: Path):
    plan = planned(folder)
    assert problems(plan, folder) == []
    assert list(left_out_weights(plan.workload.model, folder)) == []
    assert stored_sizes(folder) == sizes_of(folder)


def _without_weights(folder: Path) -> None:
    (folder / FILE).unlink()


def _with_fewer_layers(folder: Path) -> None:
    sizes = sizes_of(folder)
    write_weights(folder / FILE, {name: size for name, size in sizes.items() if ".layers.2." not in name})


def _cut_off(folder: Path) -> None:
    written = (folder / FILE).read_bytes().replace(b'"data_offsets": [0, 0]', b'"data_offsets": [0, 9]', 1)
    (folder / FILE).write_bytes(written)


def _not_fetched(folder: Path) -> None:
    (folder / FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def _narrower(folder: Path) -> None:
    write_weights(folder / FILE, sizes_of(folder) | {"model.norm.weight": 16})


def _of_another_config(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 2, "torch_dtype": "float32"}))
    write_weights(folder / FILE, sizes_of(folder))


def _with_a_shard_missing(folder: Path) -> None:
    places = {name: f"model-0000{1 + (place > 4)}-of-00002.safetensors" for place, name in enumerate(sizes_of(folder))}
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    (folder / FILE).rename(folder / "model-00001-of-00002.safetensors")


def _with_an_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    write_weights(folder / "adapter_model.safetensors", {"model.norm.weight": 3})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without_weights, "has no weights"),
        (_with_fewer_layers, "lacks 9 weights that config.json asks for, such as model.layers.2."),
        (_cut_off, "bytes by its header; download it again"),
        (_not_fetched, "is Git LFS's pointer to the weights, which are not there; git lfs pull fetches them"),
        (_narrower, "has model.norm.weight with 16 elements, and config.json makes 32 of it"),
        (_of_another_config, "says num_hidden_layers 2 in place of 3, for which the plan was not made; plan again"),
        (_with_a_shard_missing, "lacks model-00002-of-00002.safetensors, which its index names"),
        (_with_an_adapter, "has an adapter in it, adapter_config.json"),
    ],
)
def test_what_no_run_can_begin_with_is_one_sentence(folder: Path, change: Callable[[Path], None], said: str):
    plan = planned(folder)
    change(folder)
    [problem] = problems(plan, folder)
    assert said in problem
    assert problems(plan, folder, random_weights=True) == []


def test_a_configuration_that_a_run_has_written_makes_the_same_weights(folder: Path):
    plan = planned(folder)
    written = LLAMA | {"dtype": "bfloat16", "transformers_version": "5.23.0", "use_cache": False, "rope_theta": 1e4}
    (folder / "config.json").write_text(json.dumps(written))
    assert problems(plan, folder) == []


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, b"\x02\0\0\0\0\0\0\0[]", b"\x04\0\0\0\0\0\0\0null"])
def test_files_that_are_no_safetensors_are_left_to_the_trainer(folder: Path, content: bytes):
    (folder / FILE).write_bytes(content)
    assert problems(planned(folder), folder) == []


def test_layers_that_the_configuration_has_no_place_for_are_told(folder: Path):
    values: dict[str, Any] = LLAMA | {"num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(values))
    plan = planned(folder)
    assert problems(plan, folder) == []
    [note] = left_out_weights(plan.workload.model, folder)
    assert "has 9 weights that its config.json has no place for, such as model.layers.2." in note
    assert find_model(str(folder)).notes == (note,)


@pytest.mark.parametrize("change", [_with_fewer_layers, _narrower, _with_a_shard_missing, _with_an_adapter])
def test_whoever_reads_the_folder_is_told_what_launch_refuses(folder: Path, change: Callable[[Path], None]):
    assert find_model(str(folder)).notes == ()
    change(folder)
    [problem] = problems(planned(folder), folder)
    words = (str(folder), "--gpu", "rtx-4090", "--json")
    shown = call("models", str(folder), "--json").document["model"]["notes"]
    ranked = call("models", *words).document["models"][0]["notes"]
    estimated = call("estimate", "--model", *words).document["caveats"]
    searched = call("recommend", "--model", *words).document["caveats"]
    assert [problem] == shown == ranked == estimated == [said for said in searched if "folder" in said]
    run = ("--seq-len", "16", "--dummy-data", "20", "--output-dir", str(folder / "run"), "--dry-run", "--json")
    looked = call("launch", "--model", str(folder), "--gpu", "cpu:2", *run).document
    assert problem in looked["problems"]
    assert problem not in looked["notes"]


def test_a_folder_without_weights_is_described_by_its_configuration_alone(folder: Path):
    _without_weights(folder)
    _with_an_adapter(folder)
    (folder / "adapter_model.safetensors").unlink()
    assert find_model(str(folder)).notes == ()


def test_a_configuration_of_which_no_model_can_be_made_is_refused_once(folder: Path):
    (folder / "config.json").write_text(json.dumps(LLAMA | {"num_attention_heads": 0}))
    found = call("estimate", "--model", str(folder), "--gpu", "rtx-4090")
    assert found.err.count("num_attention_heads") == 1, found
