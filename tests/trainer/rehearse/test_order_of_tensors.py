"""The order in which a rehearsal's micro batches come to the device."""

import torch

from vlmplan_trainer.rehearse.samples import MicroBatch


def test_pixels_come_behind_what_is_of_tokens_and_before_their_mask():
    """``Idefics3Processor`` and its image processor in transformers 5.23: ``BatchFeature({**text, **images})``."""
    ids = torch.zeros(2, 9, dtype=torch.int64)
    values = {
        "input_ids": ids,
        "pixel_attention_mask": torch.zeros(2, 3, 8, 8, dtype=torch.int64),
        "attention_mask": ids,
    }
    made = MicroBatch(values, {"pixel_values": (2, 3, 3, 8, 8)}).made(torch.clone)
    assert list(made) == ["input_ids", "attention_mask", "pixel_values", "pixel_attention_mask"]
    assert made["pixel_values"].shape == (2, 3, 3, 8, 8)


def test_an_encoder_of_images_alone_has_pixels_first():
    made = MicroBatch({"labels": torch.zeros(2, 4, dtype=torch.int64)}, {"pixel_values": (2, 3, 8, 8)})
    assert list(made.made(torch.clone)) == ["pixel_values", "labels"]
