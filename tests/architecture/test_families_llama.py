import json
from importlib.resources import files
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import MistralConfig
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from family_checks import (
    assert_autocast_step_matches,
    assert_parameters_and_linears_match,
    assert_step_matches,
    text_inputs,
)
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.model import Batch
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.storage_log import LoggingTape
from vlmplan.architecture.trace import Allocation, Deallocation
from vlmplan.units import DType


def small(alias: str, **changes: object) -> dict[str, object]:
    config = json.loads(files("vlmplan").joinpath("data", "models", alias, "config.json").read_text())
    config.update(num_hidden_layers=4, **changes)
    return config


BATCH = Batch(micro_batch=2, num_tokens=384)
TOKENS_OF_MASK = 40


@pytest.mark.parametrize("alias", ["tinyllama-1.1b", "mistral-7b", "qwen2.5-0.5b", "qwen3-0.6b", "smollm2-135m"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(alias):
    assert_parameters_and_linears_match(small(alias))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("alias", ["tinyllama-1.1b", "qwen2.5-0.5b", "qwen3-0.6b"])
def test_a_step_keeps_and_peaks_as_in_transformers(alias, checkpoints):
    assert_step_matches(small(alias), BATCH, text_inputs(BATCH), checkpoints=checkpoints, tolerance=0.002)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_layers_with_a_sliding_window_shorter_than_the_sequence_build_masks(attention):
    config = small("mistral-7b", sliding_window=128)
    assert_step_matches(config, BATCH, text_inputs(BATCH), attention=attention, tolerance=0.01)


def test_eager_attention_keeps_scores_of_every_head():
    config = small("tinyllama-1.1b")
    assert_step_matches(config, BATCH, text_inputs(BATCH), attention="eager", tolerance=0.005)


def test_eager_attentions_weights_stay_while_the_mlp_of_a_layer_runs_that_keeps_no_graph():
    config = small("tinyllama-1.1b", hidden_size=64, num_attention_heads=8, num_key_value_heads=8, vocab_size=64)
    config.update(intermediate_size=4096)  # the MLP is the highest moment of forward
    assert_step_matches(config, BATCH, text_inputs(BATCH), checkpoints=True, attention="eager", tolerance=0.01)


def test_autocast_multiplies_eager_attentions_weights_in_16_bits_beside_those_of_the_softmax():
    assert_autocast_step_matches(small("tinyllama-1.1b"), BATCH, text_inputs(BATCH), attention="eager")


class MasksMade(TorchDispatchMode):
    """Counts masks of all tokens that operations make."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_new = isinstance(result, torch.Tensor) and not func.is_view
        self.count += is_new and result.dtype is torch.bool and result.numel() == TOKENS_OF_MASK**2
        return result


def made_by_transformers(window: int | None, sequences: PackedLengths | None) -> int:
    config = MistralConfig(sliding_window=window, attn_implementation="sdpa")
    lengths = [TOKENS_OF_MASK] if sequences is None else [length for length, _ in sequences.runs]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    embeddings = torch.zeros(1, TOKENS_OF_MASK, 8)
    make = create_causal_mask if window is None else create_sliding_window_causal_mask
    with MasksMade() as made:
        make(config, embeddings, attention_mask=None, past_key_values=None, position_ids=positions)
    return made.count


@pytest.mark.parametrize("sequences", [None, PackedLengths(((24, 1), (16, 1)))], ids=["one", "packed"])
@pytest.mark.parametrize("window", [None, 16])
def test_masks_are_put_together_of_as_many_pieces_as_in_transformers(
    window: int | None, sequences: PackedLengths | None
):
    """A window is compared with where it begins and where it ends, and packed samples with each other before: of two
    masks and what both leave three are there together, beside what packed samples have left."""
    tape, bools = LoggingTape(), TOKENS_OF_MASK**2
    with tape.section("masks"):
        x = tape.tensor((1, TOKENS_OF_MASK, 8), DType.BFLOAT16)
        masks = causal_masks(x, AttentionBackend(implementation="sdpa", sequences=sequences), [window])
    events = [one for one in tape.trace().sections["masks"].forward if isinstance(one, Allocation | Deallocation)]
    sizes = {one.handle: one.num_bytes for one in events if isinstance(one, Allocation)}
    live = highest = 0
    for one in events:
        is_mask = sizes[one.handle] == bools
        live += (1 if isinstance(one, Allocation) else -1) * is_mask
        highest = max(highest, live)
    num_made = list(sizes.values()).count(bools)
    assert num_made == made_by_transformers(window, sequences)
    assert highest == {0: 0, 4: 3, 7: 4}[num_made]
    assert live == len(masks) == (num_made > 0)
