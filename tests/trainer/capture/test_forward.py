"""What is captured of one forward: what of the images gets in among the tokens, and what is left to the planner."""

import copy
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from image_models import DESCRIBED_MODELS, IMAGE_MODELS
from vlmplan_trainer.capture.forward import captured_forward
from vlmplan_trainer.capture.operations import Instruction
from vlmplan_trainer.probe import configuration

NUM_TOKENS = 800
IMAGE_TOKEN = 7


def ids(num_samples: int, num_placeholders: int) -> torch.Tensor:
    """Words, and so many tokens of images before them."""
    row = torch.full((NUM_TOKENS,), 20)
    row[:num_placeholders] = IMAGE_TOKEN
    return row.repeat(num_samples, 1)


def captured(model_type: str, num_samples: int, num_placeholders: int, **tensors: Any) -> list[Instruction]:
    config = configuration(copy.deepcopy(dict((IMAGE_MODELS | DESCRIBED_MODELS)[model_type])))
    tokens = ids(num_samples, num_placeholders)
    given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **tensors}
    return captured_forward(config, given, packs=False)[0]


def molmo2(num_samples: int) -> list[Instruction]:
    """One crop of 27x27 patches for each sample, four of which are a token."""
    tokens = 14 * 14
    return captured(
        "molmo2",
        num_samples,
        tokens,
        pixel_values=torch.empty(num_samples, 27 * 27, 3 * 14 * 14),
        image_token_pooling=torch.zeros(num_samples * tokens, 4, dtype=torch.int32),
        image_grids=torch.tensor([[14, 14, 0, 0]] * num_samples),
        mm_token_type_ids=(ids(num_samples, tokens) == IMAGE_TOKEN).long(),
    )


def test_features_that_are_added_to_the_embeddings_of_their_tokens_enter():
    (entering,) = [one for one in molmo2(1) if one.op == "enter"]
    assert entering.values == {"by": "add", "is_in_language": False, "rows": 0, "is_picked": True, "layers": 0}


@pytest.mark.sweep
def test_masks_of_the_language_model_are_left_out_however_many_samples_there_are():
    """A byte for each pair of tokens is more than what is left out of one sample, and less of three."""
    assert [one.op for one in molmo2(2)] == [one.op for one in molmo2(3)]


@pytest.mark.sweep
def test_which_experts_the_tokens_go_to_is_not_asked():
    """Step 3.7 has a loop over the experts that any token goes to."""
    pixels, none = torch.empty(1, 3, 728, 728), torch.zeros(1, dtype=torch.int64)
    captured_ = captured("step3p7", 1, 13 * 13, pixel_values=pixels, num_local_patches=none)
    assert [one.op for one in captured_ if one.op in ("enter", "language", "returned")] == [
        "enter",
        "language",
        "returned",
    ]
