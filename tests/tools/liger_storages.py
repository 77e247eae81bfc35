"""What Liger's own fused loss holds on a card, counted on fake tensors with its Triton kernel left out.

    pip install --no-deps --target DIR liger-kernel==0.8.5 triton
    PYTHONPATH=$PYTHONPATH:DIR python tests/tools/liger_storages.py > tests/architecture/liger_storages.json

The code of ``liger_kernel.ops.fused_linear_cross_entropy`` runs with one change: it takes the CPU, on which fake
tensors can be made anywhere, for a card of compute capability 8.0.
"""

import inspect
import json
from contextlib import ExitStack
from itertools import product
from multiprocessing import get_context
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from vlmplan_trainer.measure import LiveStorages

SIZES = ((1024, 64, 1000), (4096, 896, 151_936), (4096, 4096, 128_256), (32_768, 4096, 128_256), (1000, 2048, 49_152))
"""Tokens, hidden size, vocabulary; with 32,768 tokens those of Liger's published figure."""
TYPES = (
    ("bfloat16", "bfloat16", None),
    ("float32", "float32", None),
    ("float32", "float32", "bfloat16"),
    ("bfloat16", "float32", "bfloat16"),
    ("float32", "bfloat16", "bfloat16"),
)
"""Hidden states, weight, and the type of autocast."""
CACHES = (False, True)
"""Whether autocast keeps its copies of trained weights until it ends, as it does unless it is told not to."""


class FakeStorages(LiveStorages):
    """Those of fake tensors too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count(*(leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)))
        return out


class NoKernel:
    """``kernel[grid](...)`` that does nothing and holds nothing."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: None


def on_a_card() -> ModuleType:
    """The module of Liger's loss, for which "cpu" is what "cuda" is called."""
    import liger_kernel.ops.fused_linear_cross_entropy as original

    module = ModuleType("liger_on_a_card")
    exec(compile(inspect.getsource(original).replace('"cuda"', '"cpu"'), module.__name__, "exec"), vars(module))
    return module


def counted(
    sizes: tuple[int, int, int], types: tuple[str, str, str | None], trains: bool, caches: bool
) -> dict[str, object]:
    liger = on_a_card()
    num_tokens, width, vocab_size = sizes
    hidden_type, weight_type = (getattr(torch, name) for name in types[:2])
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode())
        stack.enter_context(torch.no_grad())
        stack.enter_context(patch.object(liger, "liger_cross_entropy_kernel", NoKernel()))
        stack.enter_context(patch.object(torch.cuda, "get_device_capability", lambda *args: (8, 0)))
        stack.enter_context(patch.object(torch.Tensor, "item", lambda self: num_tokens))
        hidden = torch.empty(num_tokens, width, dtype=hidden_type, device="cpu")
        weight = torch.empty(vocab_size, width, dtype=weight_type, device="cpu", requires_grad=trains)
        target = torch.empty(num_tokens, dtype=torch.int64, device="cpu")
        if types[2] is not None:
            stack.enter_context(patch.object(torch, "is_autocast_enabled", lambda *args: True))
            stack.enter_context(torch.autocast("cpu", getattr(torch, types[2]), cache_enabled=caches))
        storages = stack.enter_context(FakeStorages())
        storages.count(hidden, weight, target)
        given = storages.num_bytes
        kept = liger.fused_linear_cross_entropy_forward(
            hidden, weight, target, reduction="sum", compute_gradients=True, weight_requires_grad=trains
        )
        found = {"peak_bytes": storages.peak_bytes - given, "kept_bytes": storages.num_bytes - given}
        assert kept[4] is not None
    named = dict(zip(("num_tokens", "hidden_size", "vocab_size"), sizes, strict=True))
    return {
        **named,
        **dict(zip(("hidden", "weight", "autocast"), types, strict=True)),
        "trains": trains,
        "caches": caches,
        **found,
    }


if __name__ == "__main__":
    on_a_card()
    cases = [
        (sizes, types, trains, caches)
        for sizes, types, trains, caches in product(SIZES, TYPES, (False, True), CACHES)
        if types[2] is not None or not caches
    ]
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:  # what one leaves behind is not counted in the next
        rows = pool.starmap(counted, cases, chunksize=1)
    print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")
