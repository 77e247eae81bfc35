"""Numbers of a config.json that do not go together get a sentence, whatever they are: never a traceback."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planned import model_files
from shallow_configs import ALIASES, changed, paths, shallow
from vlmplan.architecture.families import FAMILIES
from vlmplan.errors import InputError, VlmplanError
from vlmplan.estimation import Estimator
from vlmplan.models.facts import model_facts
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.request import WorkloadRequest
from vlmplan.request.samples import workload_of
from vlmplan.rules import default_attention, default_lora_exclude
from vlmplan.rules import model_facts as facts_for_rules
from vlmplan.workload import ModelFiles

ODD = (0, 1, 2, 3, -1, 0.5, 10**5, 10**9, None, True, "x", [], [0], {}, "left out")
"""Values of a key; the last takes it out."""


def look_at(model: ModelFiles) -> None:
    """What every command does with a model."""
    model_facts(model, width=448, height=448)
    facts = facts_for_rules(model)
    recipe = Recipe(method=Method.LORA, lora_exclude=default_lora_exclude(facts), attention=default_attention(facts))
    Estimator(workload_of(model, WorkloadRequest()), recipe).trace(recipe, (8, 9))


def refusal(model: ModelFiles) -> str:
    """The sentence with which the model is refused; empty where it is planned."""
    try:
        look_at(model)
    except VlmplanError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("model_type", ALIASES)
def test_the_configuration_that_the_others_are_made_from_is_planned(model_type: str):
    files = model_files(ALIASES[model_type])
    look_at(ModelFiles(id="m", config=shallow(files.config), preprocessor=files.preprocessor))


@pytest.mark.one_in(17)
@pytest.mark.parametrize("model_type", ALIASES)
@settings(max_examples=12)
@given(data=st.data())
def test_odd_numbers_are_planned_or_refused_in_a_sentence(model_type: str, data: st.DataObject):
    files = model_files(ALIASES[model_type])
    config = shallow(files.config)
    for path in data.draw(st.lists(st.sampled_from(sorted(paths(config))), min_size=1, max_size=3)):
        changed(config, path, data.draw(st.sampled_from(ODD)))
    config["model_type"] = model_type
    preprocessor = data.draw(st.sampled_from((None, files.preprocessor)))
    assert "\n" not in refusal(ModelFiles(id="m", config=config, preprocessor=preprocessor))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_configuration_of_defaults_alone_is_planned_or_refused_in_a_sentence(model_type: str):
    assert "\n" not in refusal(ModelFiles(id="m", config={"model_type": model_type}))


def test_gemma_3_with_the_vision_encoder_of_its_own_defaults_is_refused_with_both_numbers():
    vision = {"image_size": 224, "patch_size": 16, "model_type": "siglip_vision_model"}
    model = ModelFiles(id="m", config={"model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": vision})
    with pytest.raises(InputError, match="mm_tokens_per_image is 256, more than the 196 patches"):
        look_at(model)


@pytest.mark.parametrize(
    ("alias", "path", "value", "words"),
    [
        ("llama-3.2-1b", ("num_attention_heads",), 0, "num_attention_heads is 0"),
        ("qwen2-vl-2b", ("vision_config", "patch_size"), 0, "patch_size is 0"),
        ("qwen2-vl-2b", ("vision_config", "num_heads"), 10**5, "100,000 attention heads are more than their layer"),
        ("qwen-vl-chat", ("intermediate_size",), 1, "leave nothing of a weight"),
    ],
)
def test_numbers_that_leave_nothing_are_named(alias: str, path: tuple[str, ...], value: int, words: str):
    config = shallow(model_files(alias).config)
    changed(config, path, value)
    with pytest.raises(InputError, match=words):
        look_at(ModelFiles(id="m", config=config))


@pytest.mark.parametrize(
    ("alias", "path", "value", "words"),
    [
        ("llama-3.2-1b", ("num_attention_heads",), 24, "hidden_size is 2,048; transformers takes a multiple of"),
        ("llava-1.5-7b", ("vision_config", "num_attention_heads"), 12, "vision_config.hidden_size is 1,024"),
        ("mistral-small-3.1-24b", ("vision_config", "head_dim"), 32, "vision_config.head_dim is 32"),
    ],
)
def test_heads_that_no_class_of_transformers_takes_are_named(alias: str, path: tuple[str, ...], value: int, words: str):
    config = shallow(model_files(alias).config)
    changed(config, path, value)
    with pytest.raises(InputError, match=words):
        look_at(ModelFiles(id="m", config=config))


def test_heads_of_a_width_of_their_own_need_not_divide_that_of_layers_where_transformers_lets_them_be():
    changes = {"num_attention_heads": 6, "num_key_value_heads": 2}
    assert not refusal(ModelFiles(id="m", config={**shallow(model_files("qwen3-0.6b").config), **changes}))
