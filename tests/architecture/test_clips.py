"""Videos of models that see frames otherwise than images: their shape, and a step of transformers' own models."""

from typing import Any

import pytest

from model_table import packaged_config
from vlmplan.architecture.images.videos import clip_shape
from vlmplan.architecture.model import Batch
from vlmplan.chats.samplers import CLIP_TYPES
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.workload import Workload

NUM_FRAMES, NUM_TEXT_TOKENS, VIDEO_TOKEN = 5, 61, 998
SIZE = (640, 360)
PIXELS = {"smolvlm2-256m": "pixel_values", "llava-onevision-0.5b": "pixel_values_videos"}
OTHERS = {"lfm3_vl", "llava_next_video", "minicpm_ocr", "minicpmv4_7"}
"""Types with such frames of which no file is packaged."""
GEMMAS = ("gemma-4-e2b", "gemma-4-12b")


def shape_of(alias: str, num_frames: int = NUM_FRAMES) -> Any:
    model = find_model(alias)
    settings = model.preprocessor, model.video_settings
    return clip_shape(packaged_config(alias), *settings, num_frames=num_frames, size=SIZE)


def test_a_frame_of_smolvlm_is_an_image_that_is_not_split():
    found = shape_of("smolvlm2-2.2b")
    features = (384 // 14) ** 2 // 3**2  # merged three by three
    assert (found.num_placeholder_tokens, found.num_tokens) == (NUM_FRAMES * features, NUM_FRAMES * (features + 3))
    assert (found.num_vision_sequences, found.num_patches) == (NUM_FRAMES, NUM_FRAMES * 27**2)


def test_frames_of_llava_onevision_have_half_the_sides_and_a_newline_behind_all():
    found = shape_of("llava-onevision-7b")
    assert found.num_tokens == found.num_placeholder_tokens == NUM_FRAMES * 14 * 14 + 1
    assert found.num_patches == NUM_FRAMES * 27 * 27


@pytest.mark.parametrize("alias", GEMMAS)
def test_a_frame_of_gemma_4_has_at_most_70_features_and_is_filled_up_to_as_many(alias: str):
    found = shape_of(alias)
    rows, columns = 6, 11  # of 48 pixels: 70 features hold no 7 rows of 360 and no 12 columns of 640 pixels
    assert found.num_placeholder_tokens == NUM_FRAMES * rows * columns
    assert found.num_tokens == NUM_FRAMES * (rows * columns + 2)
    patches_a_feature = 3 * 3 if alias == "gemma-4-e2b" else 1
    assert found.num_encoded_patches == NUM_FRAMES * 70 * patches_a_feature


def test_a_plan_of_videos_that_the_model_sees_otherwise_is_refused():
    with pytest.raises(InputError, match="clip_frames is 5, but a qwen2_vl sees frames of videos as images"):
        clip_shape(packaged_config("qwen2-vl-2b"), None, None, num_frames=NUM_FRAMES, size=SIZE)
    with pytest.raises(InputError, match="clip_frames of the workload is 0; 1 to"):
        Workload(model=find_model("smolvlm2-256m"), clip_frames=0)


def test_these_are_the_models_whose_frames_are_no_images():
    named = (*PIXELS, *GEMMAS, "minicpm-v-4.6")
    assert {packaged_config(alias)["model_type"] for alias in named} | OTHERS == CLIP_TYPES


@pytest.mark.sweep
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("alias", PIXELS)
def test_a_step_with_videos_takes_what_is_predicted(alias: str, checkpoints: bool):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from family_checks import assert_step_matches
    from image_batches import IMAGE_TOKEN, cut_config, packaged_preprocessor

    is_llava = alias.startswith("llava")
    config = cut_config(alias, **({"video_token_index": VIDEO_TOKEN} if is_llava else {"image_token_id": IMAGE_TOKEN}))
    image = clip_shape(config, packaged_preprocessor(alias), None, num_frames=NUM_FRAMES, size=SIZE)
    micro_batch, videos = 2, 1
    num_tokens = videos * image.num_tokens + NUM_TEXT_TOKENS
    batch = Batch(micro_batch=micro_batch, num_tokens=num_tokens, images_per_sample=videos, image=image)
    ids = torch.arange(micro_batch * num_tokens).reshape(micro_batch, num_tokens) % 100
    ids[:, 1 : 1 + videos * image.num_placeholder_tokens] = VIDEO_TOKEN if is_llava else IMAGE_TOKEN
    inputs = {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}
    sides = (image.resized_height, image.resized_width)
    if not is_llava:
        inputs["pixel_attention_mask"] = torch.ones(micro_batch, NUM_FRAMES, *sides, dtype=torch.int64)
    floats = {PIXELS[alias]: (micro_batch * videos, NUM_FRAMES, 3, *sides)}
    assert_step_matches(config, batch, inputs, floats, checkpoints=checkpoints, tolerance=0.003)
