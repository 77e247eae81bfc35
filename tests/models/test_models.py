import csv
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_server import Answer, FakeHub, isolated_cache, running_hub
from model_table import TABLE
from planned import model_files
from vlmplan import models as models_module
from vlmplan.architecture.families import FAMILIES
from vlmplan.architecture.model import Part
from vlmplan.errors import InputError, MissingPackageError, UnavailableError, UnknownNameError, VlmplanError
from vlmplan.models import context_length, described, find_model, found_model, packaged_models, takes_images
from vlmplan.models import probe as model_probe
from vlmplan.models.description import brings_own_code
from vlmplan.models.hub_names import CONFIG, MAX_BYTES, PREPROCESSOR, PROCESSOR, HubId, hub_id
from vlmplan.models.packaged import PackagedModel, alias_by_repo_name, nearest_aliases, packaged_files
from vlmplan.models.tree import model_tree

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 77,
}
QWEN2_VL = "qwen2-vl-2b"


@pytest.fixture(autouse=True)
def no_files_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolated_cache(monkeypatch, tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def write_model(folder: Path, config: object, **more: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"config": config, **more}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder


def table_rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


ROWS = {row["short_name"]: row for row in table_rows()}


# Packaged models


def own_models() -> dict[str, PackagedModel]:
    return {alias: model for alias, model in packaged_models().items() if not model.is_sibling}


SIBLINGS = [model for model in packaged_models().values() if model.is_sibling]


def test_the_index_names_every_packaged_folder():
    folders = {path.name for path in (files("vlmplan") / "data" / "models").iterdir() if path.is_dir()}
    assert set(own_models()) == folders == set(ROWS)


def test_a_sibling_has_files_of_a_model_of_its_own_which_name_the_source():
    for model in SIBLINGS:
        assert model.folder in own_models()
        source = (files("vlmplan") / "data" / "models" / model.folder / "SOURCE.txt").read_text(encoding="utf-8")
        changed = "".join(f", {name}" for name in model.changes)
        assert f"\nsame sizes: {model.hub_id}{changed.replace(', ', ', but for ', 1)}: github:" in source, model.alias
        assert model.hub_id is not None


def test_a_sibling_is_named_and_loaded_as_itself_with_what_its_configuration_changes():
    for model in SIBLINGS:
        found, other = find_model(model.alias), find_model(model.folder)
        assert (found.id, found.hub_id) == (model.alias, model.hub_id)
        assert found.hub_id != other.hub_id
        keys = found.config.keys() | other.config.keys()
        differing = {key for key in keys if found.config.get(key) != other.config.get(key)}
        assert differing == set(model.changes), model.alias
        assert (found.preprocessor, found.video_settings) == (other.preprocessor, other.video_settings)
        assert find_model(str(model.hub_id)).config == found.config


def test_siblings_whose_sizes_differ_say_so():
    assert context_length(find_model("Qwen/Qwen2.5-7B")) == 131072
    assert context_length(find_model("Qwen/Qwen2.5-7B-Instruct")) == 32768
    assert "rope_scaling" not in find_model("llama-3-8b").config
    parameters = model_tree(find_model("mistral-7b-instruct-v0.3")).parameters()
    assert sum(entry.parameter.numel for entry in parameters) == 7_248_023_552


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        *(("Qwen2.5-7B-Instruct", "qwen2.5-7b"), ("Llama-3.3-70B-Instruct", "llama-3.3-70b")),
        *(("meta-llama-3-8b", "llama-3-8b"), ("DeepSeek-R1-Distill-Llama-8B", "deepseek-r1-distill-llama-8b")),
    ],
)
def test_the_organisation_of_a_packaged_id_may_be_left_out(tmp_path: Path, name: str, alias: str):
    assert find_model(name) == find_model(alias)
    write_model(tmp_path / name, LLAMA)
    assert (find_model(name).config == LLAMA) is (name.casefold() != alias)


def test_an_alias_goes_before_the_id_of_another_model_without_its_organisation():
    assert find_model("Qwen2.5-7B").hub_id == "Qwen/Qwen2.5-7B-Instruct"
    assert find_model("Qwen/Qwen2.5-7B").hub_id == "Qwen/Qwen2.5-7B"
    assert not alias_by_repo_name().keys() & packaged_models().keys()


def test_every_packaged_hub_id_is_one_and_no_two_are_alike():
    ids = [model.hub_id for model in packaged_models().values() if model.hub_id is not None]
    assert all(hub_id(text) is not None for text in ids)
    assert len({text.casefold() for text in ids}) == len(ids)


def test_origins_are_those_of_the_table():
    words = {"verbatim": "verbatim", "verbatim-values": "values", "reconstructed": "reconstructed"}
    assert {a: m.origin for a, m in own_models().items()} == {a: words[r["source_kind"]] for a, r in ROWS.items()}
    assert "verbatim" not in {model.origin for model in SIBLINGS}


def test_every_packaged_model_that_transformers_has_a_class_for_is_described():
    native = {
        row["model_type"] for row in ROWS.values() if not row["native_class_in_transformers_5.23"].startswith("none")
    }
    assert native <= set(FAMILIES)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("alias", [alias for alias in ROWS if packaged_files(alias).model_type in FAMILIES])
def test_parameters_of_every_part_are_as_many_as_the_published_checkpoint_has(alias: str):
    row = ROWS[alias]
    counts: Counter[Part] = Counter()
    for entry in model_tree(find_model(alias)).parameters():
        counts[entry.part] += entry.parameter.numel
    columns = {Part.VISION: "params_vision", Part.PROJECTOR: "params_projector", Part.LANGUAGE: "params_text"}
    assert counts.total() == int(row["params_total"])
    assert {part: counts[part] for part in Part} == {part: int(row[name]) for part, name in columns.items()}


@pytest.mark.parametrize("alias", [alias for alias in ROWS if packaged_files(alias).model_type not in FAMILIES])
def test_a_packaged_model_of_remote_code_is_refused_with_the_reason(alias: str):
    with pytest.raises(InputError, match="come with the checkpoint, as code that vlmplan does not run"):
        find_model(alias)


def test_an_alias_is_found_in_any_case_and_between_blanks():
    found = find_model("  Qwen2-VL-2B ")
    assert found.id == QWEN2_VL
    assert found.hub_id == "Qwen/Qwen2-VL-2B-Instruct"
    assert found.model_type == "qwen2_vl"
    assert found.preprocessor is not None


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen2-VL-2B-Instruct", "qwen/qwen2-vl-2b-instruct", "Qwen/Qwen2-VL-2B-Instruct@main"]
)
def test_a_packaged_id_needs_no_network_and_keeps_its_name(name: str):
    found = find_model(name)
    assert found.id == name
    assert found.config == find_model(QWEN2_VL).config


def test_the_address_of_a_model_on_the_hub_is_its_id():
    assert find_model("https://huggingface.co/Qwen/Qwen2-VL-2B-Instruct/").id == "Qwen/Qwen2-VL-2B-Instruct"


def test_another_revision_of_a_packaged_model_is_asked_for():
    with pytest.raises(UnavailableError, match="Qwen/Qwen2-VL-2B-Instruct@v2 is in no cache"):
        find_model("Qwen/Qwen2-VL-2B-Instruct@v2")


def test_a_reconstructed_configuration_says_so():
    (note,) = find_model("qwen2-vl-72b").notes
    assert "put together" in note
    assert "Qwen/Qwen2-VL-72B-Instruct@main" in note
    assert find_model(QWEN2_VL).notes == ()


def test_a_model_without_a_checkpoint_says_so():
    assert find_model("internvl2.5-1b").hub_id is None
    assert any("No checkpoint" in note for note in find_model("internvl2.5-1b").notes)


def test_image_settings_are_found_in_processor_config_too():
    """The packaged files that have them there only."""
    for alias in own_models():
        folder = files("vlmplan") / "data" / "models" / alias
        has_any = any((folder / name).is_file() for name in (PREPROCESSOR, PROCESSOR))
        has_settings = (folder / PREPROCESSOR).is_file() or (
            (folder / PROCESSOR).is_file()
            and "image_processor" in json.loads((folder / PROCESSOR).read_text(encoding="utf-8"))
        )
        assert has_any or not has_settings
        assert (packaged_files(alias).preprocessor is not None) is has_settings


def test_unsloths_copy_of_a_packaged_model_is_planned_where_the_hub_cannot_be_asked():
    copied, original = find_model("unsloth/Qwen3.8-27B"), find_model("Qwen/Qwen3.8-27B")
    assert (copied.config, copied.preprocessor) == (original.config, original.preprocessor)
    assert copied.id == copied.hub_id == "unsloth/Qwen3.8-27B"
    (note,) = copied.notes
    assert "cannot be fetched now" in note
    assert "that of Qwen/Qwen3.8-27B" in note
    assert find_model("unsloth/Qwen2.5-7B").config == find_model("Qwen/Qwen2.5-7B").config


@pytest.mark.parametrize("name", ["someone/Qwen3.8-27B", "unsloth/Qwen3.8-27B@v2", "unsloth/Nothing-9B"])
def test_no_other_id_is_taken_for_a_copy_of_a_packaged_model(name: str):
    with pytest.raises(UnavailableError, match="is in no cache"):
        find_model(name)


@pytest.mark.usefixtures("fake_hub")
def test_a_copy_that_the_hub_does_not_have_is_refused():
    with pytest.raises(UnavailableError, match=r"unsloth/Qwen3\.8-27B"):
        find_model("unsloth/Qwen3.8-27B")


# Names that are none


def test_an_unknown_name_gets_the_nearest_aliases():
    with pytest.raises(UnknownNameError, match="did you mean 'qwen2-vl-2b'") as caught:
        find_model("qwen2-vl-2")
    assert "`vlmplan models`" in str(caught.value)


def test_an_unknown_id_gets_the_nearest_packaged_models():
    assert nearest_aliases(HubId(repo="Qwen/Qwen2.5-7B-AWQ"))[0] == "qwen2.5-7b-base"
    with pytest.raises(UnavailableError, match=r"name 'qwen2\.5-7b-base' or .* or a folder with its config\.json"):
        find_model("Qwen/Qwen2.5-7B-AWQ")
    with pytest.raises(UnknownNameError, match=r"did you mean 'llama-3\.3-70b'"):
        find_model("llama-3.3-70")


@pytest.mark.parametrize("name", ["", "   "])
def test_no_name_is_refused(name: str):
    with pytest.raises(InputError, match="empty"):
        find_model(name)


@given(st.text(alphabet=st.one_of(st.sampled_from("~./\\\0@-a"), st.characters()), min_size=1, max_size=30))
def test_any_other_text_is_refused_and_nothing_else_happens(text: str):
    with pytest.raises(VlmplanError):
        find_model(text + "\x7f")


@pytest.mark.parametrize("name", ["a" * 5000, "./" + "a" * 5000, "~" + "a" * 40, "./\0", "\0", "./\ud800"])
def test_names_that_no_path_can_have_are_sentences(name: str):
    with pytest.raises(VlmplanError):
        find_model(name)


# Folders and files


def test_a_folder_is_found_with_its_image_settings(tmp_path: Path):
    folder = write_model(tmp_path / "mine", LLAMA, preprocessor_config={"size": 1})
    for name in ("mine", "./mine", str(folder), str(folder / CONFIG), "mine/config.json"):
        found = find_model(name)
        assert (found.id, found.config, found.preprocessor) == (name, LLAMA, {"size": 1})
        assert found.hub_id == str(folder.resolve())
    assert found_model("mine").source == f"the file {Path('mine') / CONFIG}"


def test_a_config_may_have_any_name(tmp_path: Path):
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert find_model("llama.json").config == LLAMA


def test_an_alias_goes_before_a_folder_and_a_folder_before_an_id(tmp_path: Path):
    write_model(tmp_path / "gpt2", LLAMA)
    write_model(tmp_path / "Qwen" / "Qwen2-VL-2B-Instruct", LLAMA)
    assert find_model("gpt2").model_type == "gpt2"
    assert find_model("./gpt2").model_type == "llama"
    assert find_model("Qwen/Qwen2-VL-2B-Instruct").model_type == "llama"


def test_newer_image_settings_are_those_in_processor_config(tmp_path: Path):
    write_model(tmp_path / "a", LLAMA, processor_config={"image_processor": {"size": 1}, "processor_class": "X"})
    assert find_model("./a").preprocessor == {"size": 1}
    write_model(tmp_path / "a", LLAMA, preprocessor_config={"size": 2})
    assert find_model("./a").preprocessor == {"size": 2}
    write_model(tmp_path / "b", LLAMA, processor_config={"processor_class": "X"})
    assert find_model("./b").preprocessor is None


def test_missing_image_settings_are_noted_where_they_matter(tmp_path: Path):
    config = dict(find_model(QWEN2_VL).config)
    write_model(tmp_path / "sees", config)
    write_model(tmp_path / "reads", LLAMA)
    assert any("preprocessor_config.json" in note for note in find_model("./sees").notes)
    assert find_model("./reads").notes == ()


@pytest.mark.parametrize("name", ["./none", "none.json", "./none/config.json", "~/surely/not/there"])
def test_a_path_without_a_file_is_a_sentence(name: str):
    with pytest.raises(UnavailableError, match=r"does not exist; a Hugging Face config\.json"):
        find_model(name)


def test_a_folder_without_config_is_a_sentence(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for name in ("./empty", "empty"):
        with pytest.raises(UnavailableError, match=r"empty has no config\.json"):
            find_model(name)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ("{", "is not JSON: .* at its end"),
        ("[1]", r"holds \[1\]; a JSON object"),
        ("null", "holds null; a JSON object"),
        ("{}", "has no model_type"),
        ('{"model_type": null}', "has no model_type"),
        ('{"model_type": 7}', 'model_type is 7; a name such as "llama" is needed'),
        ('{"model_type": ""}', 'model_type is ""; a name such as "llama" is needed'),
        ('{"model_type": "llama", "quantization_config": "4bit"}', r'quantization_config is "4bit"; an object \{'),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_configuration_is_a_sentence(tmp_path: Path, text: str, part: str):
    write_model(tmp_path / "a", text)
    with pytest.raises(InputError, match=part):
        find_model("./a")


def test_broken_image_settings_name_their_own_file(tmp_path: Path):
    write_model(tmp_path / "a", LLAMA, preprocessor_config="{")
    with pytest.raises(InputError, match=r"preprocessor_config\.json is not JSON"):
        find_model("./a")


def test_a_huge_or_binary_file_is_not_read(tmp_path: Path):
    write_model(tmp_path / "a", " " * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="more than 4 MiB"):
        find_model("./a")
    (tmp_path / "a" / CONFIG).write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        find_model("./a")


def test_json_is_read_as_transformers_reads_it(tmp_path: Path):
    text = json.dumps(LLAMA)[:-1] + ', "vocab_size": 9, "limit": [0.0, Infinity]}'
    write_model(tmp_path / "a", text)
    found = find_model("./a")
    assert found.config["vocab_size"] == 9
    assert found.config["limit"] == [0.0, {"__float__": "Infinity"}]
    json.dumps(found.config, allow_nan=False)


def test_auto_map_does_not_matter_where_the_type_is_described(tmp_path: Path):
    write_model(tmp_path / "a", {**LLAMA, "auto_map": {"AutoModel": "code.Model"}})
    assert find_model("./a").model_type == "llama"


# The Hub


def test_a_model_on_the_hub_is_found_with_commit_and_revision(fake_hub: FakeHub):
    fake_hub.put("org/name", CONFIG, Answer(body=json.dumps(LLAMA).encode()), revision="v1")
    found = found_model("org/name@v1")
    assert found.files.id == found.files.hub_id == "org/name@v1"
    assert found.files.config == LLAMA
    assert found.source == fake_hub.url.removeprefix("http://")


def test_a_configuration_from_the_hub_is_checked_like_any_other(fake_hub: FakeHub):
    for body, part in ((b"<html>", "is not JSON"), (b"[]", "holds"), (b"{}", "has no model_type")):
        fake_hub.put("org/name", CONFIG, Answer(body=body), revision=part.replace(" ", ""))
        with pytest.raises(UnavailableError, match=f"config.json of org/name@{part.replace(' ', '')} {part}"):
            find_model(f"org/name@{part.replace(' ', '')}")


def test_gated_models_get_what_to_do_and_what_is_near(fake_hub: FakeHub):
    gated = "meta-llama/Llama-3.2-1B-Instruct-SpinQuant_INT4_EO8"
    fake_hub.put(gated, CONFIG, Answer(status=401, headers={"X-Error-Code": "GatedRepo"}))
    with pytest.raises(UnavailableError) as caught:
        find_model(gated)
    message = str(caught.value)
    assert "accept its licence" in message
    assert "HF_TOKEN" in message
    assert "name 'llama-3.2-1b'" in message


# Models without a family


def test_without_transformers_the_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> str:
        raise model_probe.PackageNotFoundError(name)

    monkeypatch.setattr(model_probe, "version", missing)
    write_model(tmp_path / "a", {**LLAMA, "model_type": "xmod"})
    with pytest.raises(MissingPackageError, match=r"'xmod' .*pip install 'vlmplan\[train\]'"):
        find_model("./a")


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ({"error": "missing", "message": "No module named 'torch'"}, "cannot be imported"),
        ({"error": "unknown", "message": "transformers 5 has no x"}, "a newer transformers may"),
        ({"error": "unsupported", "message": "x has an encoder"}, "which vlmplan does not plan"),
        (
            {"error": "refused", "message": "ValueError: bad\n  very"},
            "refuses this config.json .* ValueError: bad very",
        ),
    ],
)
def test_each_answer_of_the_probe_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, str], part: str
):
    monkeypatch.setattr(model_probe, "version", lambda name: "1")
    monkeypatch.setattr(model_probe, "_answer", lambda config: answer)
    write_model(tmp_path / "a", {"model_type": "x"})
    with pytest.raises(VlmplanError, match=part) as caught:
        find_model("./a")
    assert "\n" not in str(caught.value)


def test_a_slip_in_a_type_is_answered_with_the_nearest_that_a_family_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(model_probe, "version", lambda name: "1")
    monkeypatch.setattr(model_probe, "_answer", lambda config: {"error": "unknown", "message": "no llamma"})
    write_model(tmp_path / "a", {"model_type": "llamma"})
    with pytest.raises(InputError, match=r"^no llamma; a newer transformers may have it; did you mean 'llama'\?$"):
        find_model("./a")


def test_unknown_types_with_code_of_their_own_are_told_that_it_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(model_probe, "version", lambda name: "1")
    monkeypatch.setattr(model_probe, "_answer", lambda config: {"error": "unknown", "message": "no x"})
    for config in ({"auto_map": {}}, {"language_config": {"auto_map": {}}}):
        write_model(tmp_path / "a", {"model_type": "x", **config})
        with pytest.raises(InputError, match="as code that vlmplan does not run"):
            find_model("./a")


@pytest.mark.parametrize("script", ["raise SystemExit('boom')", "print('not json')", "import time; time.sleep(30)"])
def test_a_probe_that_fails_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str):
    (tmp_path / "probe.py").write_text(script, encoding="utf-8")
    monkeypatch.setattr(model_probe, "probe_path", lambda package: tmp_path / "probe.py")
    monkeypatch.setattr(model_probe, "version", lambda name: "1")
    monkeypatch.setattr(model_probe, "TIMEOUT_SECONDS", 2.0)
    write_model(tmp_path / "a", {"model_type": "x"})
    with pytest.raises(UnavailableError, match=r"transformers (could not be asked|took more than)"):
        find_model("./a")


def test_the_probe_gets_no_token_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = "import json, os, sys\nprint(json.dumps({'error': 'refused', 'message': json.dumps(sorted(os.environ))}))"
    (tmp_path / "probe.py").write_text(script, encoding="utf-8")
    monkeypatch.setattr(model_probe, "probe_path", lambda package: tmp_path / "probe.py")
    monkeypatch.setattr(model_probe, "part_of_a_sentence", lambda text: text)
    monkeypatch.setattr(model_probe, "version", lambda name: "1")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    write_model(tmp_path / "a", {"model_type": "x"})
    with pytest.raises(InputError) as caught:
        find_model("./a")
    assert "HF_HUB_OFFLINE" in str(caught.value)
    assert "HF_TOKEN" not in str(caught.value)


# Facts


@pytest.mark.parametrize(
    ("alias", "tokens"),
    [
        *(("llama-3.1-8b", 131072), ("gpt2", 1024), ("blip2-opt-2.7b", 2048), (QWEN2_VL, 32768)),
        *(("gemma-3-1b", 32768), ("gemma-3-4b", 131072), ("idefics2-8b", 32768)),
        *(("llama-3.2-11b-vision", 131072), ("internvl3-1b", 32768)),
    ],
)
def test_context_length_is_that_of_the_language_model(alias: str, tokens: int):
    assert context_length(find_model(alias)) == tokens


def test_every_described_model_has_a_context_length():
    described = [model for alias in packaged_models() if (model := packaged_files(alias)).model_type in FAMILIES]
    lengths = [(model, context_length(model)) for model in described]
    assert all(length == 448 if model.hears_prompt else (length or 0) >= 1024 for model, length in lengths)


def test_models_with_a_vision_tower_or_a_projector_take_images():
    for alias, row in ROWS.items():
        if packaged_files(alias).model_type in FAMILIES:
            num_seeing = int(row["params_vision"]) + int(row["params_projector"] or 0)
            assert takes_images(find_model(alias)) is (num_seeing > 0 and not find_model(alias).hears_prompt)


def test_checkpoints_of_remote_code_are_told_by_auto_map():
    for alias, row in ROWS.items():
        if row["native_class_in_transformers_5.23"].startswith("none"):
            assert brings_own_code(packaged_files(alias).config)


def test_finding_a_packaged_model_imports_neither_network_nor_terminal():
    heavy = {"urllib.request", "http.client", "huggingface_hub", "subprocess", "rich", "click", "yaml", "torch"}
    code = f"import sys, vlmplan.models as m; m.find_model('{QWEN2_VL}'); print(sorted({heavy} & set(sys.modules)))"
    path = str(Path(models_module.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    assert done.stdout.strip() == "[]"


def test_finding_a_packaged_model_takes_milliseconds():
    find_model(QWEN2_VL)
    start = time.process_time()
    for _ in range(10):
        find_model(QWEN2_VL)
    assert time.process_time() - start < 10 * 0.02


def test_that_samples_have_no_sound_is_said_of_a_model_that_hears():
    found = find_model("phi-4-multimodal")
    note = "The audio tower of phi-4-multimodal runs only for samples with sound (--audio-seconds, or in --data)."
    assert note in found.notes


def test_the_published_layout_of_phi_4_is_refused_and_the_converted_revision_is_not():
    with pytest.raises(InputError, match="code that vlmplan does not run"):
        find_model("microsoft/Phi-4-multimodal-instruct")
    assert find_model("microsoft/Phi-4-multimodal-instruct@refs/pr/70").model_type == "phi4_multimodal"


def test_a_configuration_without_a_model_type_is_one_sentence():
    with pytest.raises(InputError, match=r"config\.json has no model_type; it does not describe"):
        described(model_files("qwen2-vl-2b"), {"vision_config": {"depth": 32}})
