"""What a model's processor makes of images, with a tokenizer that only counts in the place of the checkpoint's."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from image_models import IMAGE_MODELS
from vlmplan.errors import InputError
from vlmplan_trainer.probe import configuration
from vlmplan_trainer.processors.processing import Processed, processed
from vlmplan_trainer.processors.stand_in import StandInTokenizer


def made(model_type: str, *, side: int = 448, num_tokens: int | None = None, settings: dict[str, object] | None = None):
    config = configuration(dict(IMAGE_MODELS[model_type]))
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
    with pytest.raises(InputError, match="no processor of model_type 'glm_ocr'"):
        processed(config, None, width=448, height=448, images_per_sample=1, num_samples=1)


def test_every_word_and_every_special_token_is_one_token():
    tokenizer = StandInTokenizer()
    ids = tokenizer("<|vision_start|><image><image> two words")["input_ids"]
    assert len(ids) == 7  # two spaces among them
    assert ids[1] == ids[2] == tokenizer.convert_tokens_to_ids("<image>")


def test_a_tokenizer_has_an_image_token_once_it_was_asked_for():
    tokenizer = StandInTokenizer()
    assert getattr(tokenizer, "image_token_id", None) is None
    assert tokenizer.image_token == "<image>"
    assert tokenizer.image_token_id == tokenizer.convert_tokens_to_ids("<image>")
