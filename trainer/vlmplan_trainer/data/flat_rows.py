"""Samples one behind the other in one row, without padding: how they lie there, and what a model is told of it.

transformers tells the samples of a row apart by ``position_ids`` that begin anew, where there is no attention mask:
flash_attention_2 runs over their lengths, all other attention gets a mask in which each sample sees itself
(transformers 5.23 ``masking_utils.py`` ``find_packed_sequence_indices``, ``modeling_flash_attention_utils.py``).
"""

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from vlmplan_trainer.data.downscaling import PIXELS
from vlmplan_trainer.data.encode import IGNORED_LABEL, SEQUENCE_KEYS, Encoded
from vlmplan_trainer.data.videos import OMNI_SECONDS, SECONDS_OF_ROWS, VIDEO_PIXELS
from vlmplan_trainer.models.base_model import base_model

FRAMES_OF_SOUNDS = "feature_attention_mask"
"""What the thinkers of Qwen's Omni models call the mask of a spectrogram's frames."""
GRID = "_grid_thw"
FILLS = {"labels": IGNORED_LABEL}


def flat_row(rows: Sequence[Encoded], *, pad_id: int, lengths: Sequence[int] | None = None) -> Encoded:
    """``rows`` as one, (1, tokens), with ``position_ids`` in place of the attention mask.

    No token has the first of a sample as its label. ``lengths`` are those that samples are padded to, where they are
    to have them.
    """
    result: Encoded = {}
    fills = FILLS | {"input_ids": pad_id}
    tokens = [row["input_ids"].shape[1] for row in rows]
    wanted = tokens if lengths is None else lengths
    for name in dict.fromkeys(name for row in rows for name in row if name in SEQUENCE_KEYS):
        values = [row.get(name, torch.zeros_like(row["input_ids"])) for row in rows]
        values = [
            pad(value, (0, want - have), value=fills.get(name, 0))
            for value, have, want in zip(values, tokens, wanted, strict=True)
        ]
        if name == "labels":
            for value in values:
                value[:, :1] = IGNORED_LABEL
        result[name] = torch.cat(values, dim=1)
    del result["attention_mask"]
    result["position_ids"] = torch.cat([torch.arange(want) for want in wanted])[None]
    return result


def for_the_model(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Any]:
    """``batch`` with what the model's forward takes beside ``position_ids`` of a flat row: positions in time, height
    and width where it has those, and the lengths that flash attention runs over. Any other batch as it is, but
    for the positions of the Omni thinkers, which find those in time, height and width by the mask alone, and are not
    given it (``loss.model_inputs``)."""
    positions = batch.get("position_ids")
    base = base_model(model)
    inner = getattr(base, "model", base)
    if positions is None and "audio_seqlens" in _parameters_of_positions(inner):
        rows = {name: batch[name] for name in ("input_ids", "attention_mask")}
        found, _ = inner.get_rope_index(**rows, **_for_positions(inner, batch))
        return {**batch, "position_ids": found}
    if positions is None or "attention_mask" in batch:
        return dict(batch)
    if hasattr(inner, "get_rope_index"):
        return {**batch, "position_ids": _in_three_dimensions(inner, batch, positions)}
    if (
        batch.keys() & {VIDEO_PIXELS, *PIXELS}
        or base.config.get_text_config()._attn_implementation != "flash_attention_2"
    ):
        return dict(batch)
    # Without them every layer finds them out by itself, and waits for the GPU each time.
    starts = (positions[0] == 0).nonzero()[:, 0]
    ends = torch.cat([starts, starts.new_full((1,), positions.shape[1])]).to(torch.int32)
    longest = int(ends.diff().max())
    return {
        **batch,
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _in_three_dimensions(inner: Any, batch: Mapping[str, Tensor], positions: Tensor) -> Tensor:
    """(4, 1, tokens): the positions in the samples, and those in time, height and width that the model's
    ``get_rope_index`` finds for each sample by itself."""
    others = _for_positions(inner, batch)
    if not any(name.endswith(GRID) for name in others):  # text alone
        return torch.stack([positions] * 4)
    taken = _parameters_of_positions(inner)
    lengths = [*_lengths(positions[0])]
    longest = max(lengths)
    rows = {
        name: torch.stack([pad(part, (0, longest - part.shape[0])) for part in batch[name][0].split(lengths)])
        for name in ("input_ids", "mm_token_type_ids")
        if name in batch and name in taken
    }
    mask = torch.arange(longest, device=positions.device)[None] < positions.new_tensor(lengths)[:, None]
    found, _ = inner.get_rope_index(**rows, **others, attention_mask=mask.long())
    flat = torch.cat([found[:, index, :length] for index, length in enumerate(lengths)], dim=1)
    # Positions by seconds are fractions, where the model makes them so (Qwen3-Omni).
    dtype = flat.dtype if OMNI_SECONDS in batch else positions.dtype
    return torch.cat([positions[None].to(dtype), flat[:, None].to(dtype)])


def _parameters_of_positions(inner: Any) -> Collection[str]:
    """What the model's ``get_rope_index`` takes; nothing where it has none."""
    return inspect.signature(inner.get_rope_index).parameters if hasattr(inner, "get_rope_index") else ()


def _for_positions(inner: Any, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What positions go by beside tokens: sizes of what is shown, seconds of videos, and lengths of sounds."""
    taken = _parameters_of_positions(inner)
    found = {name: value for name, value in batch.items() if name.endswith(GRID) and name in taken}
    found |= {name: batch[name] for name in SECONDS_OF_ROWS if name in batch and name in taken}
    if "second_per_grids" in taken and OMNI_SECONDS in batch:
        found["second_per_grids"] = batch[OMNI_SECONDS]
    if "audio_seqlens" in taken and FRAMES_OF_SOUNDS in batch:
        found["audio_seqlens"] = batch[FRAMES_OF_SOUNDS].sum(dim=-1)
    return found


def _lengths(positions: Tensor) -> list[int]:
    """Tokens of each sample, by positions that begin anew."""
    starts = [index for index, place in enumerate(positions.tolist()) if place == 0]
    return [end - start for start, end in zip(starts, [*starts[1:], positions.shape[0]], strict=True)]
