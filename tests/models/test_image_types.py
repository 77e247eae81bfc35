"""The page of every model type, and what it says of images."""

from image_models import IMAGE_MODELS
from image_types import stored_image_rows, traced_types_with_images
from vlmplan.model_types.encoder_decoder import IMAGE_ENCODER_TYPES


def test_rows_are_of_types_without_a_family_that_take_images():
    assert {row.model_type for row in stored_image_rows()} <= set(traced_types_with_images())


def test_every_configuration_for_trying_images_has_a_row():
    assert set(IMAGE_MODELS) <= {row.model_type for row in stored_image_rows()}


def test_a_row_says_how_many_tokens_or_why_there_are_none():
    """Of an image that an encoder reads alone there are none."""
    for row in stored_image_rows():
        has_none = bool(row.refusal) or row.model_type in IMAGE_ENCODER_TYPES
        assert bool(row.num_tokens) != has_none, row
