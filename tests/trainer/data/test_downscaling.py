"""Images never give more tokens or patches than the planned one, and are left alone where they give no more."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from other_processors import FAMILIES
from PIL import Image

from vlmplan.chats.downscaling import Downscaling, ImageDownscaler
from vlmplan.errors import InputError
from vlmplan_trainer.data.downscaling import ImageMeter, downscaled_image

SIDES = st.integers(1, 700)
SIZES = st.tuples(SIDES, SIDES)
PLANNED = (112, 84)


@pytest.fixture(scope="module")
def qwen_meter(qwen: Any) -> ImageMeter:
    return ImageMeter(qwen)


@given(SIZES, st.tuples(st.integers(28, 400), st.integers(28, 400)))
def test_no_image_is_made_more_of_than_of_the_planned_one(qwen_meter: ImageMeter, size: tuple, planned: tuple):
    fit = ImageDownscaler(qwen_meter, planned).fit(size)
    assert all(
        made <= most for made, most in zip(qwen_meter.amounts(fit.canvas), qwen_meter.amounts(planned), strict=True)
    )
    assert all(0 < inner <= outer for inner, outer in zip(fit.scaled, fit.canvas, strict=True))
    assert all(inner <= side for inner, side in zip(fit.scaled, size, strict=True))


@given(SIZES)
def test_an_image_that_gives_no_more_than_the_planned_one_is_left_alone(qwen_meter: ImageMeter, size: tuple):
    assume(qwen_meter.amounts(size) <= qwen_meter.amounts(PLANNED))
    assert ImageDownscaler(qwen_meter, PLANNED).fit(size) == Downscaling(scaled=size, canvas=size)


def test_without_a_planned_size_every_image_is_left_alone(qwen_meter: ImageMeter):
    assert ImageDownscaler(qwen_meter, None).fit((900, 1)) == Downscaling(scaled=(900, 1), canvas=(900, 1))


@given(st.integers(113, 700), st.integers(113, 700))
def test_a_large_image_keeps_its_shape_and_most_of_the_planned_area(qwen_meter: ImageMeter, width: int, height: int):
    assume(0.4 < width / height < 2.5)
    fit = ImageDownscaler(qwen_meter, PLANNED).fit((width, height))
    assert abs(fit.scaled[0] / width - fit.scaled[1] / height) < 1 / min(width, height) + 1e-9
    assert fit.scaled[0] * fit.scaled[1] > 0.6 * 112 * 84


def test_a_strip_that_the_processor_refuses_is_put_on_a_canvas(qwen_meter: ImageMeter):
    fit = ImageDownscaler(qwen_meter, PLANNED).fit((6000, 20))
    assert fit == Downscaling(scaled=(112, 1), canvas=PLANNED)


def test_a_processor_that_makes_all_images_one_size_gets_them_as_they_are():
    fitter = ImageDownscaler(ImageMeter(FAMILIES["llava"]()), (28, 28))
    assert fitter.fit((1200, 900)) == Downscaling(scaled=(1200, 900), canvas=(1200, 900))


def test_tiles_by_aspect_ratio_are_kept_to_the_planned_number():
    meter = ImageMeter(FAMILIES["llava_next"]())
    fitter = ImageDownscaler(meter, (28, 56))
    for size in [(56, 56), (300, 300), (90, 28), (28, 90)]:
        assert meter.amounts(fitter.fit(size).canvas)[0] <= meter.amounts((28, 56))[0]


@settings(max_examples=25)
@given(st.sampled_from([*FAMILIES, "qwen2_vl"]), st.tuples(st.integers(20, 150), st.integers(20, 150)))
def test_the_tokens_of_an_image_are_known_from_its_size(qwen: Any, family: str, size: tuple):
    processor = qwen if family == "qwen2_vl" else FAMILIES[family]()
    made = processor(
        text=[processor.image_token], images=[[Image.new("RGB", size, "blue")]], add_special_tokens=False
    )  # fmt: skip
    assert ImageMeter(processor).num_tokens(size) == len(made["input_ids"][0])


def test_a_planned_size_that_the_processor_refuses_is_refused(qwen_meter: ImageMeter):
    with pytest.raises(InputError, match="the planned image size 9000x9 is refused"):
        ImageDownscaler(qwen_meter, (9000, 9))
    with pytest.raises(InputError, match="9000 x 9 pixels is refused"):
        qwen_meter.num_tokens((9000, 9))


def test_an_image_on_a_canvas_stands_in_the_middle_with_white_around():
    image = downscaled_image(Image.new("RGB", (40, 10), "red"), Downscaling(scaled=(20, 4), canvas=(20, 20)))
    assert image.size == (20, 20)
    assert [image.getpixel((10, row)) == (255, 0, 0) for row in (7, 8, 11, 12)] == [False, True, True, False]
    assert image.getpixel((0, 0)) == (255, 255, 255)
