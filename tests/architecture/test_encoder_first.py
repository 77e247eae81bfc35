"""Where text is generated, encoders of images run before the model's forward, and outside of autocast."""

import inspect

import pytest

from model_table import packaged_config
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import GenerationPass, generation_pass
from vlmplan.architecture.families import build_model, has_family
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.tape import Tape
from vlmplan.models import packaged_models
from vlmplan.models.packaged import packaged_files
from vlmplan.units import DType


def generation(alias: str, autocast: DType | None = None) -> GenerationPass:
    config = packaged_config(alias)
    image = image_shape(config, None, width=448, height=448)
    batch = Batch(micro_batch=1, num_tokens=2048, images_per_sample=1, image=image)
    model = build_model(config)
    for entry in model.parameters():
        entry.parameter.dtype = DType.FLOAT32
    tape = Tape(is_evaluating=True, follows_weights=False, autocast=autocast, caches_casts=autocast is not None)
    return generation_pass(model, tape, batch, AttentionBackend())


@pytest.mark.parametrize("alias", ["internvl3-1b", "gemma-3-4b"])
def test_words_are_embedded_when_images_are_encoded(alias: str):
    keys = [run.key for run in generation(alias).trace.schedule]
    assert keys.index("vision.embedding") < keys.index("embedding") < keys.index("scatter")


@pytest.mark.parametrize("alias", ["internvl3-1b", "gemma-3-4b"])
def test_what_an_encoder_returns_is_kept_in_the_type_of_its_weights_under_autocast_too(alias: str):
    plain, cast = generation(alias), generation(alias, DType.BFLOAT16)
    assert cast.encoded_bytes == plain.encoded_bytes > 0
    assert cast.cache_bytes <= plain.cache_bytes


def test_models_that_encode_in_their_own_forward_keep_its_order():
    found = generation("llama-3.2-11b-vision")
    assert found.encoded_bytes == 0


@pytest.mark.sweep
def test_a_model_is_encoded_first_where_its_class_takes_what_encoders_have_returned():
    transformers = pytest.importorskip("transformers")
    from transformers.models.auto import modeling_auto

    from vlmplan_trainer.probe import CAUSAL_TYPES_WITH_IMAGES

    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    classes = {
        **{name: causal[name] for name in CAUSAL_TYPES_WITH_IMAGES},
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    found: dict[str, bool] = {}
    for alias in packaged_models():
        config = packaged_files(alias).config
        name = classes.get(config["model_type"])
        if name is None or config["model_type"] in found or not has_family(config):
            continue
        model = build_model(config)
        if Part.VISION not in model.PARTS.values():
            continue
        takes = "mm_encoder_outputs" in inspect.signature(getattr(transformers, name).forward).parameters
        found[config["model_type"]] = model.encodes_before_generating
        assert model.encodes_before_generating is takes, alias
    assert len(found) > 20
    assert not all(found.values())
