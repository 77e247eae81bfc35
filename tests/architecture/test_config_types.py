"""Values of a config.json that transformers refuses are refused in a sentence, and what it takes is not."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from planned import model_files
from shallow_configs import ALIASES, changed, paths, shallow
from tools.config_types import OUTPUT, table
from vlmplan.architecture.config_types import check_types
from vlmplan.errors import InputError
from vlmplan.models import packaged_models
from vlmplan.models.packaged import packaged_files

VALUES = (None, True, -1, 1.5, "x", [1, "y"], {"x": 1}, "left out")
"""What is put in the place of every value; the last takes it out."""
ADDED = {
    "layer_types": (5, "x", ["full_attention"], ["full_attention"] * 2, ["attention"] * 2, ["else"] * 2),
    "rope_parameters": (
        *({"type": "yarn"}, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "linear"}, {"rope_type": "else"}),
        *({"rope_type": "dynamic", "factor": "x"}, {"rope_type": "llama3", "factor": 8.0}, {"rope_theta": "x"}),
    ),
    "pad_token_id": (10**7, 0, -1, None),
    "id2label": (5, ["x"], {"0": "x"}, {"x": "0"}),
    "num_labels": (1, "x", None),
    "problem_type": ("regression", "single_label_classification"),
    "head_dim": (5, 64, None),
}
"""What a file may have beside that."""
WITHOUT_TABLE = frozenset({"attn_config", "ffn_config", "initializer_range"})
"""Sections whose classes are of no model: they have no model_type; and a field that must be between 0 and 1."""
OTHER_NAMES = frozenset({"exaone4_5", "kimi_k25"})
"""Whose language models have a model_type of no class in their files: these are planned without a look at fields."""
HOLDING = (
    *(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING),
    *(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, modeling_auto.MODEL_MAPPING),
)


def refusal(config: Mapping[str, Any]) -> str:
    """What the planner says; empty where it says nothing."""
    try:
        check_types(config)
    except InputError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def without_warnings() -> Iterator[None]:
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


def made(config: Mapping[str, Any]) -> PreTrainedConfig | Exception:
    """transformers' own configuration, or why there is none."""
    try:
        return CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(dict(config)))
    except Exception as error:
        return error


def loads(config: Mapping[str, Any]) -> bool:
    """Whether transformers makes a model of it."""
    found = made(config)
    if isinstance(found, Exception):
        return False
    try:
        with torch.device("meta"):
            next(mapping for mapping in HOLDING if type(found) in mapping)[type(found)]._from_config(found)
    except Exception:
        return False
    return True


def neighbours(config: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The configuration with one value changed, for every value of it, and the key of that value."""
    places = [path for path in paths(config) if path != ("model_type",) and not WITHOUT_TABLE & set(path)]
    of_values = {path: (*VALUES, *_same_number(config, path)) for path in places}
    added = {(key,): values for key, values in ADDED.items() if (key,) not in of_values}
    found: list[tuple[str, dict[str, Any]]] = []
    for path, values in {**of_values, **added}.items():
        for value in values:
            found.append((path[-1], copy.deepcopy(config)))
            changed(found[-1][1], path, value)
    return found


def _same_number(config: Mapping[str, Any], path: tuple[str, ...]) -> tuple[Any, ...]:
    """A number as another type has it."""
    value: Any = config
    for key in path:
        value = value[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ()
    return (str(value), float(value) if isinstance(value, int) else int(value))


@pytest.mark.sweep
def test_the_packaged_types_are_those_of_the_installed_transformers():
    packaged, installed = (json.loads(text) for text in (OUTPUT.read_text(), json.dumps(table())))
    assert {**packaged, "source": ""} == {**installed, "source": ""}


@pytest.mark.sweep
@pytest.mark.parametrize("model_type", sorted(set(ALIASES) & {*CONFIG_MAPPING}))
def test_a_changed_value_is_refused_as_transformers_refuses_it_and_no_other(model_type: str):
    config = {**shallow(model_files(ALIASES[model_type]).config), "model_type": model_type}
    is_built = loads(config)
    for key, neighbour in neighbours(config):
        sentence, real = refusal(neighbour), made(neighbour)
        is_of_field = isinstance(real, StrictDataclassFieldValidationError) and f"field '{key}'" in str(real)
        if is_of_field and model_type not in OTHER_NAMES:
            assert sentence, str(real)
        if sentence and is_built:
            assert not loads(neighbour), sentence


def test_no_packaged_model_is_refused():
    for alias in packaged_models():
        check_types(packaged_files(alias).config)


@pytest.mark.parametrize(
    ("alias", "changes", "words"),
    [
        ("llama-3.2-1b", {"hidden_size": 2048.0}, "hidden_size is 2048.0; an integer is needed"),
        ("llama-3.2-1b", {"rms_norm_eps": 1}, "rms_norm_eps is 1; a number with a decimal point is needed"),
        ("llama-3.2-1b", {"pad_token_id": 128256}, "pad_token_id is 128256, but vocab_size is 128256"),
        ("llama-3.2-1b", {"rope_scaling": {"type": "linear"}}, "of the type linear has no factor"),
        ("llama-3.2-1b", {"rope_scaling": {"rope_type": "mrope"}}, 'rope_type is "mrope"; one of default'),
        ("llama-3.2-1b", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for the 16"),
        ("qwen3-0.6b", {"head_dim": 129}, "head_dim is 129; transformers turns heads of an even width alone"),
        ("qwen2-vl-2b", {"hidden_size": 1536.0}, "hidden_size is 1536.0; an integer"),
        ("phi-4-mini", {"rope_scaling": {"type": "longrope", "long_factor": [1], "short_factor": [1, 2]}}, "2 factors"),
        ("gpt-oss-20b", {"pad_token_id": 201088}, "the embedding needs a row for it"),
        ("llama-3.2-1b", {"num_labels": 1, "problem_type": "single_label_classification"}, "with one label"),
    ],
)
def test_what_transformers_refuses_is_named_by_its_key(alias: str, changes: dict[str, Any], words: str):
    config = {**model_files(alias).config, **changes}
    assert words in refusal(config)
    assert not loads({**shallow(config), **changes})


@pytest.mark.parametrize(
    ("alias", "changes"),
    [
        ("llama-3.2-1b", {"pad_token_id": -1}),
        (
            "llama-3.2-1b",
            {"rope_scaling": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 64}},
        ),
        ("granite-4.0-h-1b", {"rope_theta": None}),
        ("deepseek-v2-lite", {"head_dim": 65}),
        ("gpt2", {"layer_types": None, "pad_token_id": 10**6}),
    ],
)
def test_what_looks_odd_and_loads_is_not_refused(alias: str, changes: dict[str, Any]):
    config = {**shallow(packaged_files(alias).config), **changes}
    assert loads(config)
    assert not refusal(config)


def test_a_float_that_json_has_no_word_for_is_a_number():
    assert not refusal({**model_files("llama-3.2-1b").config, "rms_norm_eps": {"__float__": "Infinity"}})
    assert refusal({**model_files("llama-3.2-1b").config, "hidden_size": {"__float__": "Infinity"}})


def test_the_class_of_a_section_says_what_it_takes():
    config = model_files("llava-1.5-7b").config
    changes = {"vision_config": {**config["vision_config"], "patch_size": "14"}}
    assert refusal({**config, **changes}) == (
        'config.json: vision_config.patch_size is "14"; an integer or null or a list of integers is needed'
    )
    with pytest.raises(StrictDataclassFieldValidationError):
        AutoConfig.for_model(**{**config, **changes})
