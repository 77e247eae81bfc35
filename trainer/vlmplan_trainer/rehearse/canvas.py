"""Where MiniCPM-V 4.7 looks for an image or a video in a sample: each of its sequences of patches between two marks.

Source: transformers 5.23 ``MiniCPMV4_7Processor.replace_image_token`` and ``replace_video_token`` (what is written) and
``MiniCPMV4_7Model._group_visual_frames`` (what is looked for: each run of placeholders is the whole image or a slice).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

TEXT_ID = 5
"""Stands where a configuration names no id of a mark."""


def write_sequences_apart(
    config: Any,
    ids: torch.Tensor,
    token: int,
    sizes: Sequence[Sequence[int]],
    num_merged: int,
    *,
    num_columns: int,
    num_frames: int = 1,
) -> None:
    """Write the sequences of every image, or of the ``num_frames`` of every video, apart from each other, in place.

    ``ids`` (samples, tokens) has the placeholders ``token`` of each image or video in one run. ``sizes``, (rows,
    columns) of patches, are those of the whole picture and of each slice, of which a row has ``num_columns``;
    ``num_merged`` patches become one token.
    """
    num_tokens = [math.prod(size) // num_merged for size in sizes]
    names = ("image_start_id", "image_end_id", "slice_start_id", "slice_end_id", "newline_id")
    marks = [TEXT_ID if (mark := getattr(config, name)) is None else mark for name in names]
    *around, newline = marks
    row: list[int] = []
    for number, length in enumerate(num_tokens):
        if number > 1 and (number - 1) % num_columns == 0:
            row.append(newline)
        begin, end = around[2:] if number else around[:2]
        row += [begin, *[token] * length, end]
    written = torch.tensor(row * num_frames)
    places = (ids[0] == token).nonzero().flatten().tolist()
    for start in places[:: num_frames * sum(num_tokens)]:
        ids[:, start : start + len(written)] = written
