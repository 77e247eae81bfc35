"""Samples that several ranks share: each has its part of the tokens (DeepSpeed's Ulysses).

DeepSpeed 0.19.8, ``runtime/sequence_parallel/ulysses_sp.py``: ``UlyssesSPAttentionHF`` takes the place of transformers'
attention function and trades tokens for heads among the ranks of a sample. Its ``UlyssesSPDataLoaderAdapter`` collects
the samples of all ranks and deals out their parts; here all ranks of a sample read the same one, so nothing is sent.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from vlmplan.recipe import Recipe
from vlmplan_trainer.labels import IGNORED_LABEL

SHIFTED_LABELS = "shift_labels"
"""Labels of the next tokens: the last token of a part is followed by the first of the next part."""


def share_attention(model: nn.Module, recipe: Recipe) -> Any:
    """Let attention of ``model`` see the tokens of all ranks of a sample; what ``deepspeed.initialize`` has to know of
    the ranks (``mpu``), None where none share a sample. Once in a process, when all ranks have met."""
    if recipe.sequence_parallel == 1:
        return None
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    return UlyssesSPAttentionHF.register_with_transformers(
        model,
        core_attn_implementation=recipe.attention.value,
        sequence_parallel_size=recipe.sequence_parallel,
        micro_batch_size=recipe.micro_batch,
        seq_length_is_variable=True,
    )


def part_of_samples(batch: dict[str, Tensor], *, part: int, num_parts: int, pad_id: int = 0) -> dict[str, Tensor]:
    """One rank's part of the tokens of a micro batch, with their positions and the labels of the tokens after them.

    ``input_ids``, ``labels`` and ``attention_mask`` are (samples, tokens); samples are padded on the right to a
    multiple of ``num_parts``. ``position_ids`` are (1, tokens of the part), the same for all samples.
    """
    if num_parts == 1:
        return batch
    labels = pad(batch["labels"], (0, 1), value=IGNORED_LABEL)[:, 1:]
    fills = {"input_ids": pad_id, "attention_mask": 0}
    values = [(name, batch[name], fill) for name, fill in fills.items()] + [(SHIFTED_LABELS, labels, IGNORED_LABEL)]
    length = -(-labels.shape[1] // num_parts)
    missing = length * num_parts - labels.shape[1]
    start = part * length
    result = {name: pad(value, (0, missing), value=fill)[:, start : start + length] for name, value, fill in values}
    positions = torch.arange(start, start + length, device=labels.device)[None]
    return {name: value.contiguous() for name, value in result.items()} | {"position_ids": positions}
