"""Blocks of the caching allocator that stay from before the first step to the end of a replay."""

from collections.abc import Sequence
from typing import NamedTuple


class Lasting(NamedTuple):
    """Blocks that stay: the tensors of a micro batch where all of a step do, libraries' workspaces, which the first
    forward makes with its first matrix product, when its own batch is there, and models beside the trained one, whose
    weights come to the GPU before its own under DeepSpeed's stages 0 to 2, else behind them, but for a second one under
    stage 3, which loads as the first does."""

    batch: Sequence[int] = ()
    workspaces: Sequence[int] = ()
    models: Sequence[int] = ()
    tables: Sequence[int] = ()
    """Of the model, which are no parameters: they come behind packed weights, before others that move to the GPU with
    them, and under stage 3 when the model is made (``zero.Init`` makes tensors on the GPU)."""


NOTHING_LASTING = Lasting()
