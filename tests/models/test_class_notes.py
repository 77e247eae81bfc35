"""A checkpoint of another class than a language model is planned with a sentence on what transformers makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from vlmplan.models import packaged_models
from vlmplan.models.class_notes import class_notes
from vlmplan.models.find import find_model
from vlmplan.models.packaged import packaged_files

WIDTHS = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def notes(config: dict[str, Any]) -> str:
    return " ".join(class_notes("m", config))


def test_language_models_have_no_note():
    for alias in packaged_models():
        assert not notes(dict(packaged_files(alias).config)), alias


@pytest.mark.sweep
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("model_type", ["qwen2", "mistral", "gemma"])
@pytest.mark.parametrize("kind", ["Model", "ForSequenceClassification", "ForTokenClassification"])
def test_a_note_says_the_head_is_drawn_where_transformers_draws_it(
    kind: str, model_type: str, is_tied: bool, tmp_path: Path
):
    transformers = pytest.importorskip("transformers")
    auto = {
        "Model": "AutoModel",
        "ForSequenceClassification": "AutoModelForSequenceClassification",
        "ForTokenClassification": "AutoModelForTokenClassification",
    }
    config = transformers.AutoConfig.for_model(model_type, **WIDTHS, tie_word_embeddings=is_tied)
    getattr(transformers, auto[kind]).from_config(config).save_pretrained(tmp_path)
    _, said = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    found = notes(json.loads((tmp_path / "config.json").read_text()))
    assert ("draws the head at random" in found) is ("lm_head.weight" in said["missing_keys"]) is not is_tied
    assert ("its own head is left out" in found) is bool(said["unexpected_keys"])


def test_a_model_in_a_folder_is_planned_with_what_is_to_be_known_of_its_class_and_its_keys(tmp_path: Path):
    config = {**packaged_files("llama-3.2-1b").config, "architectures": ["LlamaModel"], "tie_word_embeddings": False}
    text = json.dumps(config)[:-1] + ', "vocab_size": 128256}'
    (tmp_path / "config.json").write_text(text)
    said = " ".join(map(str, find_model(str(tmp_path)).notes))
    assert "is that of LlamaModel, without the output head of a language model: transformers draws the head" in said
    assert "says vocab_size more than once" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("LlamaForSequenceClassification", "(--task reward loads it as it is)"),
        ("LlamaForQuestionAnswering", "draws the head at random; its own head is left out"),
        ("InternVLChatModel", ""),
        ("LlamaForCausalLM", ""),
    ],
)
def test_classes_are_told_by_their_names(name: str, words: str):
    found = notes({"model_type": "llama", "architectures": [name], "tie_word_embeddings": False})
    assert words in found
    assert bool(words) is bool(found)
