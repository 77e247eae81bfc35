"""TRL's head as it is where Triton is: its kernels' work token by token, products without wide copies."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

HEAD_AS_ON_GPUS = "HEAD_AS_ON_GPUS"
"""The variable that asks ``many_runs`` for it."""


def make_head_as_on_gpus(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """``put`` gets a module, a name and what is to be there."""
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    for module in (chunked_logprob, utils):
        put(module, "_use_triton", lambda device: True)
    if not hasattr(chunked_logprob, "triton"):
        chunked_logprob.triton = None  # type: ignore[attr-defined]
    put(chunked_logprob, "triton", SimpleNamespace(cdiv=lambda a, b: -(-a // b)))
    for name in ("forward", "backward"):
        kernel = TokenByToken(getattr(chunked_logprob, f"_{name}_tile"))
        put(chunked_logprob, f"_{name}_kernel", kernel)
    put(chunked_logprob, "_addmm_fp32", added_in_place)


class TokenByToken:
    """A kernel whose programs are tokens; ``whole``: the same for all of a tile at once."""

    def __init__(self, whole: Callable[..., None]) -> None:
        self._whole = whole

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*arguments: Any, **named: Any) -> None:
            for token in range(grid[0]):
                part = [one[token : token + 1] if isinstance(one, torch.Tensor) else one for one in arguments]
                self._whole(*part, **named)

        return run


def added_in_place(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """``total += a @ b`` in float32, with wide copies of a few columns at a time alone."""
    for first in range(0, a.shape[1], 4):
        total.addmm_(a[:, first : first + 4].float(), b[first : first + 4].float())
