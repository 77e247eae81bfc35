"""What a model's processor makes of images, with a tokenizer that only counts in the place of the checkpoint's."""

import copy
from importlib.util import find_spec

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from image_models import DESCRIBED_MODELS, IMAGE_MODELS, PREPROCESSORS
from vlmplan.architecture.images import image_shape
from vlmplan.errors import InputError
from vlmplan_trainer.probe import configuration
from vlmplan_trainer.processors.processing import Processed, processed
from vlmplan_trainer.processors.stand_in import StandInTokenizer

needs_torchvision = pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")


def made(model_type: str, *, side: int = 448, num_tokens: int | None = None, settings: dict[str, object] | None = None):
    config = configuration(copy.deepcopy(dict((IMAGE_MODELS | DESCRIBED_MODELS)[model_type])))
    size = {"width": side, "height": side, "images_per_sample": 1}
    return processed(config, settings, **size, num_samples=2, num_tokens=num_tokens)


def placeholders(found: Processed) -> int:
    return int((found.tensors["input_ids"][0] == 7).sum())


@pytest.mark.parametrize(
    ("model_type", "num_tokens", "num_placeholders"),
    [
        ("deepseek_vl", (384 // 16) ** 2, (384 // 16) ** 2),
        ("aya_vision", (364 // 28) ** 2 + 3, (364 // 28) ** 2),  # between its start and its end, behind a tile's name
        ("paddleocr_vl", (448 // 28) ** 2, (448 // 28) ** 2),
        ("vipllava", (336 // 14) ** 2, (336 // 14) ** 2),  # without the tower's class token
    ],
)
def test_images_take_the_tokens_that_the_processor_gives_them(model_type, num_tokens, num_placeholders):
    found = made(model_type)
    assert (found.num_tokens, found.num_placeholders) == (num_tokens, num_placeholders)
    assert placeholders(found) == num_placeholders


@pytest.mark.parametrize("settings", [None, {"crop_to_patches": False}])
def test_aya_vision_cuts_images_into_tiles_whatever_its_files_say(settings: dict[str, object] | None):
    found = made("aya_vision", side=1024, settings=settings)
    planned = image_shape((IMAGE_MODELS | DESCRIBED_MODELS)["aya_vision"], settings, width=1024, height=1024)
    assert placeholders(found) == found.num_placeholders == planned.num_placeholder_tokens == (3 * 3 + 1) * 13 * 13
    assert found.num_tokens == planned.num_tokens


@needs_torchvision
@pytest.mark.parametrize(
    ("model_type", "num_tokens", "num_placeholders"),
    [
        ("inkling2", (480 // 40) ** 2, (480 // 40) ** 2),  # patches of 20, four of which are a token
        ("minimax_m3_vl", (448 // 28) ** 2 + 2, (448 // 28) ** 2),  # words with spaces around it are a token each
        (
            "mistral_large4",
            (448 // 28) ** 2 + 448 // 28,
            (448 // 28) ** 2,
        ),  # the tower's patches, and an end of each row
        ("step3p7", (728 // 56) ** 2 + 2, (728 // 56) ** 2),
    ],
)
def test_images_of_processors_for_torchvision_take_theirs(model_type, num_tokens, num_placeholders):
    found = made(model_type)
    assert (found.num_tokens, found.num_placeholders) == (num_tokens, num_placeholders)
    assert placeholders(found) == num_placeholders


@needs_torchvision
def test_a_tile_is_no_patch_of_the_tower():
    """Step 3.7 cuts what is larger than its tower takes into tiles of 504x504, of (504 / 56)^2 tokens each."""
    assert made("step3p7", side=1008).num_placeholders == (728 // 56) ** 2 + 4 * (504 // 56) ** 2


@needs_torchvision
def test_no_word_has_the_id_that_stands_for_images_whatever_its_name_is():
    found = made("molmo2", num_tokens=900)
    assert placeholders(found) == found.num_placeholders


@pytest.mark.parametrize("model_type", ["cosmos3_omni", "glmga"])
def test_a_processor_is_the_one_that_a_preprocessor_config_names(model_type):
    found = made(model_type, settings=dict(PREPROCESSORS[model_type]))
    assert found.class_name == PREPROCESSORS[model_type]["processor_class"]
    assert found.num_placeholders == (448 // (32 if model_type == "cosmos3_omni" else 28)) ** 2


def test_sizes_that_the_tower_fixes_are_the_configurations_and_others_the_processors():
    assert made("deepseek_vl", side=100).tensors["pixel_values"].shape == (2, 3, 384, 384)
    assert made("paddleocr_vl", side=560).tensors["pixel_values"].shape == (2 * 40 * 40, 3, 14, 14)


def test_settings_of_a_preprocessor_config_count():
    settings = {"image_processor_type": "PaddleOCRVLImageProcessor", "max_pixels": 28 * 28 * 64, "min_pixels": 28 * 28}
    assert made("paddleocr_vl", side=560, settings=settings).num_placeholders == 64


def test_samples_are_as_long_as_they_are_asked_for_and_no_shorter_than_their_images():
    found = made("deepseek_vl", num_tokens=700)
    assert found.tensors["input_ids"].shape == found.tensors["attention_mask"].shape == (2, 700)
    assert bool(found.tensors["attention_mask"].all())
    with pytest.raises(InputError, match="take 576 tokens"):
        made("deepseek_vl", num_tokens=500)


def test_words_are_no_special_tokens():
    found = made("paddleocr_vl", num_tokens=400)
    assert not set(found.tensors["input_ids"][0, found.num_tokens :].tolist()) & {7, 8, 9, 10}


def test_a_processor_that_is_not_there_is_said_so():
    config = configuration({"model_type": "glm_ocr"})
    with pytest.raises(InputError, match="no preprocessor_config"):
        processed(config, None, width=448, height=448, images_per_sample=1, num_samples=1)


def test_every_word_and_every_special_token_is_one_token():
    tokenizer = StandInTokenizer()
    ids = tokenizer("<|vision_start|><image><image> two words")["input_ids"]
    assert len(ids) == 7  # two spaces among them
    assert ids[1] == ids[2] == tokenizer.convert_tokens_to_ids("<image>")


def test_what_stands_between_brackets_and_angles_is_one_token():
    tokenizer = StandInTokenizer()
    assert len(tokenizer("]<]start of image[>[]<]image[>[]<]image[>[]<]end of image[>[")["input_ids"]) == 4
    assert len(tokenizer("[a] |b|")["input_ids"]) == 7


def test_a_tokenizer_has_an_image_token_once_it_was_asked_for():
    tokenizer = StandInTokenizer()
    assert getattr(tokenizer, "image_token_id", None) is None
    assert tokenizer.image_token == "<image>"
    assert tokenizer.image_token_id == tokenizer.convert_tokens_to_ids("<image>")
