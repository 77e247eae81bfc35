"""What a run leaves, loaded by transformers and peft alone: all that the checkpoint had, with the trained weights.

transformers loads no processor with a part for videos without torchvision, whatever folder it is in. Where that is not
installed, such an export has to be refused in the words in which its checkpoint is, and its parts have to load one by
one; ``.ci/run`` runs these tests with it too.
"""

import importlib.util
import json
import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image
from published_folders import FAMILIES, write_published
from tiny_plans import tiny_plan
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from vlmplan.errors import UnavailableError
from vlmplan.models import find_model
from vlmplan.plan import Plan
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.rules import default_lora_exclude, model_facts
from vlmplan_trainer.engines.make import make_engine
from vlmplan_trainer.models.load import LoadedModel, Processing, load_model, load_processing
from vlmplan_trainer.models.processor_files import processor_files
from vlmplan_trainer.models.processors import load_processor
from vlmplan_trainer.saving.export import export, merge

HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
WITH_VIDEOS = (
    "qwen2_vl",
    "qwen2_5_omni_thinker",
    "qwen2_5_vl",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_omni_moe_thinker",
    "qwen3_vl",
    "qwen3_vl_moe",
    "glm4v",
    "glm4v_moe",
    "internvl",
    "llava_onevision",
    "smolvlm",
)
WITHOUT_CLASSES = {"qwen"}
"""Qwen-VL's code comes with the checkpoint and is not run."""
UNTRIED = {
    *(
        "aya_vision",
        "exaone4_5",
        "fast_vlm",
        "gemma3n",
        "gemma4",
        "gemma4_unified",
        "glm_ocr",
        "kimi_k25",
        "lfm2_vl",
        "lighton_ocr",
        "llama4",
        "minicpmv4_6",
        "molmo2",
    ),
    *("minicpmv4_7", "paddleocr_vl", "phi4_multimodal", "qwen4_exp"),
}
"""No small checkpoint of them has been made here: what is exported of them has not been loaded."""
IN_EVERY_RUN = ("qwen2_vl", "internvl", "llava")
"""Families that are tried in every run of the tests: flat, with videos, without."""
CASES = [pytest.param(family, marks=[] if family in IN_EVERY_RUN else [pytest.mark.sweep]) for family in FAMILIES]
OF_RUN = ("architectures", "dtype", "transformers_version", "_name_or_path")
"""What a configuration says of how it was saved."""


class Trained(NamedTuple):
    source: Path
    folder: Path
    plan: Plan
    engine: Any
    loaded: LoadedModel
    processing: Processing


def trained(root: Path, family: str, method: Method) -> Trained:
    """A model of the family as a run with that method leaves it, weights moved as if by training."""
    needed = FAMILIES[family].needs
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"transformers loads no processor of {family} without {needed}")
    source = write_published(root / "source", family)
    exclude = default_lora_exclude(model_facts(find_model(str(source)))) if method is not Method.FULL else None
    plan = tiny_plan(source, Recipe(method=method, lora_exclude=exclude))
    loaded = load_model(plan)
    engine = make_engine(loaded.model, plan, device=torch.device("cpu"), weight_decay=0.0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    processing = load_processing(plan)
    folder = export(engine, loaded, processing, root / "run", is_adapter=method is not Method.FULL)
    return Trained(source, folder, plan, engine, loaded, processing)


def processor_in(folder: Path, family: str, source: Path) -> Any:
    """AutoProcessor's; where that refuses the checkpoint itself, the trainer's, once all else that it has is loaded."""
    if HAS_TORCHVISION or family not in WITH_VIDEOS:
        return AutoProcessor.from_pretrained(folder)
    for place in (source, folder):
        with pytest.raises((ImportError, ValueError), match=r"(?i)requires .*torchvision"):
            AutoProcessor.from_pretrained(place)
    for kind in (AutoTokenizer, AutoImageProcessor):
        # transformers 5 takes a class of its own for Qwen3.5's tokenizer, whatever tokenizer_config.json says, where it
        # knows the model_type (``MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS``); an adapter has no config.json.
        of_source = repr(kind.from_pretrained(source))
        of_folder = repr(kind.from_pretrained(folder, config=AutoConfig.from_pretrained(source)))
        assert of_folder == of_source.replace(str(source), str(folder))
    return load_processor(str(source), is_vision=True)


def generated(model: Any, processor: Any, family: str) -> list[int]:
    text = f"<|im_start|>user\n{FAMILIES[family].image}What is it?<|im_end|>\n<|im_start|>assistant\n"
    inputs = processor(text=[text], images=[[Image.new("RGB", (56, 40), "red")]], return_tensors="pt")
    return model.eval().generate(**inputs.to(torch.bfloat16), max_new_tokens=4, do_sample=False)[0].tolist()


def assert_has_files_of(folder: Path, source: Path) -> None:
    files = processor_files(str(source))
    assert {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= files.keys()
    for name, path in files.items():
        assert (folder / name).read_bytes() == path.read_bytes(), name


def settings(folder: Path) -> dict[str, Any]:
    return without_run(AutoConfig.from_pretrained(folder).to_dict())


def without_run(values: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in values.items() if key not in OF_RUN}
    return {key: without_run(value) if isinstance(value, dict) else value for key, value in kept.items()}


@pytest.mark.parametrize("family", CASES)
def test_an_exported_model_is_its_checkpoint_with_the_trained_weights(family: str, tmp_path: Path):
    made = trained(tmp_path, family, Method.FULL)
    assert_has_files_of(made.folder, made.source)
    assert settings(made.folder) == settings(made.source)
    model = AutoModelForImageTextToText.from_pretrained(made.folder, dtype=torch.bfloat16)
    for name, value in made.loaded.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value.to(torch.bfloat16)), name
    processor = processor_in(made.folder, family, made.source)
    assert generated(model, processor, family) == generated(made.loaded.model.to(torch.bfloat16), processor, family)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_exported_model_is_loaded_in_the_type_in_which_it_was_written(dtype: torch.dtype, tmp_path: Path):
    made = trained(tmp_path, "qwen2_vl", Method.FULL)
    model = made.loaded.model.to(torch.float32)  # as an engine has it that computes in another type
    weights = {name: weight.to(dtype) for name, weight in model.state_dict().items()}
    engine = SimpleNamespace(model=model, rank=0, weights=lambda: weights, barrier=lambda: None)
    folder = export(engine, made.loaded, made.processing, tmp_path / "again", is_adapter=False)
    assert AutoModelForImageTextToText.from_pretrained(folder, dtype="auto").dtype == dtype
    assert settings(folder) == settings(made.source)


@pytest.mark.parametrize("family", CASES)
def test_an_exported_adapter_goes_onto_the_model_that_it_names(family: str, tmp_path: Path):
    from peft import PeftModel

    made = trained(tmp_path, family, Method.LORA)
    said = json.loads((made.folder / "adapter_config.json").read_text())
    assert (said["base_model_name_or_path"], said["revision"]) == (str(made.source), None)
    assert said["target_modules"] == sorted(said["target_modules"])  # so that equal runs leave equal files
    processor = processor_in(made.folder, family, made.source)
    base = AutoModelForImageTextToText.from_pretrained(made.source, dtype=torch.bfloat16)
    expected = generated(made.loaded.model.to(torch.bfloat16), processor, family)
    assert generated(PeftModel.from_pretrained(base, str(made.folder)), processor, family) == expected
    by_folder = AutoModelForImageTextToText.from_pretrained(made.folder, dtype=torch.bfloat16)
    assert generated(by_folder, processor, family) == expected
    merge(made.plan, made.engine, made.processing, made.folder.parent)
    merged = made.folder.parent / "merged"
    assert_has_files_of(merged, made.source)
    assert settings(merged) == settings(made.source)
    AutoModelForImageTextToText.from_pretrained(merged)
    processor_in(merged, family, made.source)


def test_the_card_of_an_adapter_names_no_folder_which_the_hub_would_refuse(tmp_path: Path):
    from huggingface_hub import ModelCard

    card = ModelCard.load(trained(tmp_path, "qwen2_vl", Method.LORA).folder / "README.md")
    assert card.data.base_model is None
    assert (card.data.library_name, card.data.tags) == ("peft", ["lora", "transformers"])
    assert str(tmp_path) not in card.content


def test_the_texts_of_a_licence_go_with_the_result(tmp_path: Path):
    names = ("LICENSE.txt", "NOTICE", "USE_POLICY.md")
    source = write_published(tmp_path / "source", "qwen2_vl")
    for name in names:
        (source / name).write_text(name)
    assert {name for name in processor_files(str(source)) if name in names} == set(names)


def test_every_packaged_family_that_sees_is_tried():
    from vlmplan.architecture.images import IMAGE_MODEL_TYPES
    from vlmplan.models import packaged_models
    from vlmplan.models.packaged import packaged_files

    packaged = {packaged_files(name).model_type for name in packaged_models()} & set(IMAGE_MODEL_TYPES)
    assert packaged - WITHOUT_CLASSES - UNTRIED == FAMILIES.keys() - {"pixtral"}  # whose type is llava


def test_the_files_of_a_model_of_the_hub_are_those_of_its_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from huggingface_hub import constants

    commit = "0" * 40
    cached = tmp_path / "models--some--model"
    source = write_published(cached / "snapshots" / commit, "internvl")
    (source / "model.safetensors.index.json").write_text("{}")
    (cached / "refs").mkdir()
    (cached / "refs" / "v1").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = processor_files("some/model", revision="v1")
    assert found == processor_files(str(source))
    assert {"config.json", "model.safetensors", "model.safetensors.index.json"}.isdisjoint(found)


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_the_umask_decides_who_may_read_a_result(tmp_path, method):
    made = trained(tmp_path, "llava", method)
    old = os.umask(0o027)
    try:
        folder = export(made.engine, made.loaded, made.processing, tmp_path / "out", is_adapter=method is Method.LORA)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o640}
    assert any(path.suffix == ".safetensors" for path in folder.iterdir())


def test_a_result_that_a_full_disk_does_not_take_is_one_sentence_and_what_was_there_stays(tmp_path):
    made = trained(tmp_path, "llava", Method.FULL)
    folder = export(made.engine, made.loaded, made.processing, tmp_path / "out", is_adapter=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before["model.safetensors"]) // 2, hard))
    try:
        with pytest.raises(
            UnavailableError, match=r"the result .*out/model cannot be written: .*; the last checkpoint"
        ):
            export(made.engine, made.loaded, made.processing, tmp_path / "out", is_adapter=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
