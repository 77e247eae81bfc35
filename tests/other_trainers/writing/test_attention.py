"""The attention that is written for other trainers, where transformers refuses one for all parts of a model."""

import pytest

from model_table import packaged_config
from vlmplan.emit.plain_trainer_script import script_text
from vlmplan.other_trainers.writing.hugging_face import attention_setting
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation
from vlmplan.workload import ModelFiles, Workload

EAGER = Recipe(attention=AttentionImplementation.EAGER)
WITH_SOUND, WITHOUT = (
    ModelFiles(id=name, config=packaged_config(name), hub_id=f"google/{name}")
    for name in ("gemma-4-e2b", "gemma-4-31b")
)


def test_sdpa_is_left_to_transformers_beside_an_audio_tower_that_refuses_it():
    assert attention_setting("attn_implementation", Recipe(), WITH_SOUND) == {}
    assert attention_setting("attn_implementation", EAGER, WITH_SOUND) == {"attn_implementation": "eager"}
    assert attention_setting("attn_implementation", Recipe(), WITHOUT) == {"attn_implementation": "sdpa"}


def test_the_program_of_the_plain_trainer_leaves_it_too():
    texts = [script_text([], Recipe(), Workload(model=model)) for model in (WITH_SOUND, WITHOUT)]
    assert ["ATTENTION = None" in text for text in texts] == [True, False]


def test_the_program_of_the_plain_trainer_asks_for_weights_that_can_be_trained():
    names = {"gpt-oss-20b": "'Mxfp4Config'", "gemma-4-31b": "None"}
    for name, packed in names.items():
        model = ModelFiles(id=name, config=packaged_config(name), hub_id=f"openai/{name}")
        text = script_text([], EAGER, Workload(model=model))
        assert f"PACKED = {packed}" in text
        compile(text, "train.py", "exec")


@pytest.mark.parametrize(
    ("name", "kind"), [("phi-4-multimodal", "AutoModelForCausalLM"), ("llava-1.5-7b", "AutoModelForImageTextToText")]
)
def test_the_program_of_the_plain_trainer_loads_the_class_that_takes_images(name, kind):
    model = ModelFiles(id=name, config=packaged_config(name), hub_id=f"org/{name}")
    assert f"from transformers import {kind} as ModelClass" in script_text([], EAGER, Workload(model=model))


def test_sdpa_is_said_beside_an_audio_tower_that_takes_it():
    model = ModelFiles(id="phi-4-multimodal", config=packaged_config("phi-4-multimodal"))
    assert attention_setting("attn_implementation", Recipe(), model) == {"attn_implementation": "sdpa"}


@pytest.mark.sweep
def test_transformers_refuses_sdpa_for_all_parts_and_chooses_it_for_the_decoder_by_itself():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    def made(**chosen):
        values = dict(WITH_SOUND.config)
        config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)  # a refused one is changed
        with torch.device("meta"):
            return transformers.AutoModelForImageTextToText.from_config(config, **chosen).config

    with pytest.raises(ValueError, match="Gemma4AudioModel does not support"):
        made(attn_implementation="sdpa")
    config = made()
    assert config.text_config._attn_implementation == "sdpa"
    assert config.audio_config._attn_implementation == "eager"
