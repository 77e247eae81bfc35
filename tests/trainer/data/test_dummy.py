"""Synthetic samples: as many and as large as asked for, always the same, and something can be learned from them."""

from hypothesis import given
from hypothesis import strategies as st

from vlmplan_trainer.data.dummy import COLOURS, dummy_samples
from vlmplan_trainer.data.images import opened


@given(st.integers(1, 9), st.integers(0, 3), st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_samples_are_as_many_and_as_large_as_asked_for(count: int, num_images: int, width: int, height: int, seed: int):
    samples = dummy_samples(count, num_images=num_images, image_size=(width, height), seed=seed)
    assert samples == dummy_samples(count, num_images=num_images, image_size=(width, height), seed=seed)
    assert len({sample.source for sample in samples}) == count
    for sample in samples:
        assert [(image.width, image.height) for image in sample.images] == [(width, height)] * num_images
        assert [turn.role for turn in sample.turns] == ["user", "assistant"]


def test_the_answer_follows_from_the_images():
    for sample in dummy_samples(40, num_images=2, image_size=(5, 3), seed=1):
        seen = [opened(image.source, name="it").getpixel((4, 2)) for image in sample.images]
        assert [COLOURS[name] for name in sample.turns[1].text.split(", ")] == seen


def test_another_seed_gives_other_samples():
    first, second = (dummy_samples(9, num_images=1, image_size=(4, 4), seed=seed) for seed in (0, 1))
    assert first != second
