import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import vlmplan
from cli_calls import call, refusal
from hub_server import Answer, isolated_cache, running_hub
from vlmplan.architecture.adapters import AdapterSettings, add_lora
from vlmplan.architecture.families import FAMILIES
from vlmplan.architecture.images import image_shape
from vlmplan.cli.models import count, models
from vlmplan.errors import InputError, UnavailableError, UnknownNameError, nearest
from vlmplan.models import find_model, packaged_models
from vlmplan.models.facts import LORA_RANK
from vlmplan.models.packaged import packaged_files
from vlmplan.models.tree import model_tree

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    isolated_cache(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)

    def invoke(*args: str) -> Result:
        result = CliRunner().invoke(models, args)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def document(run: Run, *args: str) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0
    return json.loads(result.output)


def rows(run: Run, *args: str) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in document(run, *args)["models"]}


# The list


def test_every_packaged_model_is_listed_or_listed_as_not_supported(run: Run):
    found = document(run)
    assert found["schema"] == "vlmplan.models/1"
    listed = {row["id"] for row in found["models"]}
    unsupported = {row["id"] for row in found["unsupported"]}
    siblings = {row["id"]: row["model"] for row in found["siblings"]}
    assert set(siblings.values()) <= listed
    plannable = {alias for alias in packaged_models() if packaged_files(alias).model_type in FAMILIES}
    assert listed == plannable - set(siblings)
    assert listed | unsupported | set(siblings) == set(packaged_models())
    assert not listed & unsupported
    assert all(row["reason"] for row in found["unsupported"])


def test_a_row_has_parameters_context_image_tokens_and_hub_id(run: Run):
    row = rows(run)["qwen2-vl-2b"]
    assert row["num_params"] == 2_208_985_600
    assert row["num_params_by_part"] == {"vision": 631_183_360, "projector": 34_087_936, "language": 1_543_714_304}
    assert row["context_length"] == 32768
    assert row["image"]["num_tokens"] == 16 * 16
    assert row["image"]["num_patches"] == 32 * 32
    assert row["hub_id"] == "Qwen/Qwen2-VL-2B-Instruct"


def test_parts_add_up(run: Run):
    for row in rows(run).values():
        assert sum(row["num_params_by_part"].values()) == row["num_params"]


def test_text_models_have_no_image(run: Run):
    found = rows(run)
    assert found["gpt2"]["image"] is None
    assert not found["gpt2"]["takes_images"]
    assert all((row["image"] is not None) is row["takes_images"] for row in found.values())


def test_image_size_is_an_option(run: Run):
    assert document(run, "--image-size", "1024x768")["image_size"] == "1024x768"
    found = rows(run, "--image-size", "1024x768")
    for alias in ("qwen2-vl-2b", "internvl3-1b", "llava-1.5-7b"):
        model = find_model(alias)
        expected = image_shape(model.config, model.preprocessor, width=1024, height=768)
        assert found[alias]["image"]["num_tokens"] == expected.num_tokens
    with pytest.raises(InputError, match="--image-size"):
        run("--image-size", "big")


def test_a_size_that_a_processor_refuses_leaves_the_model_in_the_list(run: Run):
    row = rows(run, "qwen2-vl", "--image-size", "4000x10")["qwen2-vl-2b"]
    assert row["takes_images"]
    assert row["image"] is None
    assert "refused" in run("qwen2-vl", "--image-size", "4000x10").output


def test_words_look_at_alias_hub_id_and_family(run: Run):
    assert set(rows(run, "qwen3", "vl", "moe", "instruct")) == {"qwen3-vl-235b-a22b", "qwen3-vl-30b-a3b"}
    assert "pixtral-12b" in rows(run, "mistral-community")
    assert set(rows(run, "gemma-3", "1b")) == {"gemma-3-1b"}


def test_checkpoints_built_like_another_are_seen_by_their_names(run: Run):
    assert "llama-3.3-70b" not in rows(run)
    assert set(rows(run, "llama-3.3")) == {"llama-3.3-70b"}
    assert rows(run, "llama-3.3")["llama-3.3-70b"]["hub_id"] == "meta-llama/Llama-3.3-70B-Instruct"
    assert "checkpoints built like one of these: 3; a word of" in run("--family", "gemma2").output
    assert "checkpoints built like" not in run("gemma-2").output


def test_family_narrows_the_list(run: Run):
    assert {row["model_type"] for row in rows(run, "--family", "llava", "--family", "gpt2").values()} == {
        "llava",
        "gpt2",
    }
    with pytest.raises(UnknownNameError, match="did you mean 'qwen2_vl'"):
        run("--family", "qwen2-vl")


@pytest.mark.sweep
def test_size_bounds_are_inclusive_and_split_the_list(run: Run):
    everything = rows(run)
    small, large = rows(run, "--max-params", "2208985600"), rows(run, "--min-params", "2208985601")
    assert set(small) | set(large) == set(everything)
    assert not set(small) & set(large)
    assert "qwen2-vl-2b" in small
    assert document(run, "--max-params", "1B")["unsupported"] == []


@pytest.mark.sweep
def test_vision_splits_the_list(run: Run):
    seeing, reading = rows(run, "--vision"), rows(run, "--no-vision")
    assert set(seeing) | set(reading) == set(rows(run))
    assert not set(seeing) & set(reading)
    assert "gpt2" in reading
    assert "pixtral-12b" in seeing


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("name", lambda row: row["id"]),
        ("params", lambda row: row["num_params"]),
        ("context", lambda row: row["context_length"]),
        ("tokens", lambda row: row["image"]["num_tokens"] if row["image"] else 0),
    ],
)
def test_rows_come_in_the_order_asked_for(run: Run, sort: str, key: Callable[[dict[str, Any]], Any]):
    found = [key(row) for row in document(run, "--sort", sort)["models"]]
    assert found == sorted(found)


def test_words_of_no_model_get_the_nearest(run: Run):
    with pytest.raises(UnknownNameError, match="unknown model 'qwen2vl 2b'"):
        run("qwen2vl", "2b")


def test_a_variant_of_a_packaged_model_is_told_that_model_first():
    assert nearest("qwen3-8b-instruct-2507", packaged_models())[0] == "qwen3-8b"


def test_the_table_is_plain_when_piped_and_has_the_numbers_of_the_json(run: Run):
    lines = run("qwen2-vl").output.splitlines()
    assert lines[0].split()[:3] == ["model", "family", "params"]
    line = next(line for line in lines if line.startswith("qwen2-vl-2b"))
    assert line.split("  ")[0] == "qwen2-vl-2b"
    for text in ("qwen2_vl", "2.21 B", "631 M", "34.1 M", "1.54 B", "32,768", "256", "Qwen/Qwen2-VL-2B-Instruct"):
        assert text in line
    assert not any(line != line.rstrip() for line in lines)


def test_what_is_not_supported_is_listed_apart_with_the_reason(run: Run):
    output = run("minicpm-v-2").output
    assert output.startswith("0 models")
    assert "the classes of minicpmv come with the checkpoint, as code that vlmplan does not run" in output


def test_states_behind_cross_attention_are_shown_beside_the_tokens(run: Run):
    assert "1 + 6,404 seen across" in run("llama-3.2-11b").output


# One model


def test_a_name_shows_one_model(run: Run):
    by_alias, by_id = document(run, "qwen2-vl-2b"), document(run, "Qwen/Qwen2-VL-2B-Instruct")
    assert by_alias["schema"] == by_id["schema"] == "vlmplan.models/1"
    assert by_alias["model"]["num_params"] == by_id["model"]["num_params"]
    assert by_alias["model"]["source"] == "packaged with vlmplan (verbatim)"


def test_one_model_shows_layers_ties_and_linears(run: Run):
    model = document(run, "qwen2-vl-2b")["model"]
    assert model["ties_embeddings"]
    layers = {stack["name"]: stack["num_layers"] for stack in model["stacks"]}
    assert layers == {"model.visual.blocks": 32, "model.language_model.layers": 28}
    linears = {(linear["name"], linear["part"]): linear for linear in model["linears"]}
    assert linears["k_proj", "language"] == {
        "name": "k_proj",
        "part": "language",
        "in_features": 1536,
        "out_features": 2 * 128,
        "count": 28,
        "is_head": False,
    }
    assert linears["qkv", "vision"]["count"] == 32
    assert linears["lm_head", "language"]["is_head"]


@pytest.mark.parametrize(
    "alias", ["gpt2", "llama-3.2-1b", "qwen2-vl-2b", "gemma-3-4b", "llama-3.2-11b-vision", "internvl3-1b"]
)
@pytest.mark.parametrize("targets", ["all-linear", "attention"])
def test_lora_counts_are_those_of_the_adapted_tree(run: Run, alias: str, targets: str):
    found = document(run, alias)["model"]["lora"]["targets"][targets]
    tree = model_tree(find_model(alias))
    before = {id(entry.parameter) for entry in tree.parameters()}
    add_lora(tree, AdapterSettings(rank=LORA_RANK), targets=targets)
    added = [entry for entry in tree.parameters() if id(entry.parameter) not in before]
    assert found["num_params"] == sum(entry.parameter.numel for entry in added)
    assert found["num_modules"] == len(added) / 2


def test_all_linear_adapts_every_linear_but_the_head(run: Run):
    for alias in ("qwen2-vl-2b", "llama-3.2-1b", "idefics2-8b"):
        model = document(run, alias)["model"]
        linears = [linear for linear in model["linears"] if not linear["is_head"]]
        found = model["lora"]["targets"]["all-linear"]
        assert found["num_modules"] == sum(linear["count"] for linear in linears)
        widths = sum(linear["count"] * (linear["in_features"] + linear["out_features"]) for linear in linears)
        assert found["num_params"] == LORA_RANK * widths


def test_weights_of_linears_are_no_more_than_all_parameters(run: Run):
    for alias in ("gpt2", "qwen2-vl-2b", "mixtral-8x7b"):
        model = document(run, alias)["model"]
        weights = sum(item["count"] * item["in_features"] * item["out_features"] for item in model["linears"])
        assert weights <= model["num_params"]


def test_one_model_in_words_has_the_numbers_of_the_json(run: Run):
    output = run("qwen2-vl-2b", "--image-size", "1024x768").output
    for text in (
        "qwen2-vl-2b (Qwen/Qwen2-VL-2B-Instruct): 2.21 B parameters, model_type qwen2_vl",
        "config.json: packaged with vlmplan (verbatim)",
        "context: 32,768 tokens",
        "one image of 1024x768: 999 tokens, 3,996 patches",
        "one weight (tied)",
        "2,208,985,600",
        "28 model.language_model.layers",
        "--lora-targets attention (q_proj,k_proj,v_proj,o_proj): 112 modules",
    ):
        assert text in output


def test_notes_are_shown(run: Run):
    assert "note: The config.json of qwen2-vl-72b is put together" in run("qwen2-vl-72b").output


def test_a_folder_is_shown_like_a_packaged_model(run: Run, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(dict(find_model("gpt2").config)), encoding="utf-8")
    model = document(run, "./mine")["model"]
    assert model["num_params"] == document(run, "gpt2")["model"]["num_params"]
    assert document(run, "mine")["model"]["source"].startswith("the file ")


def test_a_model_on_the_hub_is_shown_with_its_commit(run: Run, monkeypatch: pytest.MonkeyPatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    body = json.dumps(dict(find_model("gpt2").config)).encode()
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.put("org/name", "config.json", Answer(body=body, headers={"X-Repo-Commit": commit}))
        model = document(run, "org/name")["model"]
    assert model["id"] == model["hub_id"] == "org/name"
    assert model["source"].endswith("commit 0123456789ab")


def test_names_that_are_nothing_are_errors(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnavailableError, match="HF_HUB_OFFLINE"):
        run("org/name")
    with pytest.raises(UnavailableError, match="does not exist"):
        run("./none")
    with pytest.raises(InputError, match="cannot be planned"):
        run("molmo-7b-d")


# Counts


@given(st.integers(0, 10**6), st.sampled_from([("", 1), ("k", 10**3), ("M", 10**6), ("b", 10**9), ("T", 10**12)]))
def test_a_count_is_its_digits_times_its_letter(number: int, letter: tuple[str, int]):
    assert count(f" {number}{letter[0]} ") == pytest.approx(number * letter[1])


def test_fractions_and_powers_are_counts():
    assert (count("1.5B"), count("7e9"), count("0.5 m")) == (1.5e9, 7e9, 5e5)


@pytest.mark.parametrize("text", ["", "B", "7Q", "-1", "1.5.2B", "nan"])
def test_other_text_is_no_count(text: str):
    with pytest.raises(click.BadParameter):
        count(text)


def test_a_wrong_count_is_a_usage_error(run: Run):
    result = run("--min-params", "many")
    assert result.exit_code == 2
    assert "7B, 500M" in result.output


@pytest.mark.parametrize(
    "words",
    [("--family", "llama"), ("--no-vision",), ("--min-params", "7B"), ("--max-params", "9B"), ("--sort", "params")],
)
def test_what_narrows_the_list_is_refused_beside_one_model(run: Run, words: tuple[str, ...]):
    for more in ((), ("--gpu", "t4")):
        result = run("gpt2", *words, *more)
        assert result.exit_code == 2
        assert f"gpt2 names one model, and {words[0]} is of their list" in " ".join(result.output.split())


def test_an_image_of_another_size_is_not_left_out_of_what_can_be_trained(run: Run):
    result = run("qwen2-vl-2b", "--gpu", "t4", "--image-size", "2000x2000")
    assert result.exit_code == 2
    assert "with --gpu samples have images of 448x448" in " ".join(result.output.split())


# Speed


def children_seconds() -> float:
    """Processor time of this process' children: it does not grow while others use the machine."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.sweep
def test_the_list_takes_about_a_second_at_most():
    path = str(Path(vlmplan.__file__).parents[1])
    start = children_seconds()
    subprocess.run(
        [sys.executable, "-c", "from vlmplan.cli.models import models; models([], standalone_mode=False)"],
        env={"PYTHONPATH": path},
        capture_output=True,
        check=True,
    )
    assert children_seconds() - start < 2.0


def test_as_many_models_are_known_as_are_listed():
    listed = call("models", "--json").document
    known = len(listed["models"]) + len(listed["siblings"])
    for words in (("estimate", "--model", "wholly-elsewhere", "--gpu", "t4"), ("models", "wholly-elsewhere")):
        assert f"; {known} are known" in refusal(*words)


def test_an_unknown_model_is_told_by_every_command_what_can_be_named():
    told = {refusal(*words) for words in (("models", "nosuch"), ("recommend", "--model", "nosuch"))}
    assert len(told) == 1
    assert "or as a folder" in told.pop()
