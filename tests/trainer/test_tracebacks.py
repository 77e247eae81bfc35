"""Errors that torch really raises, printed by Python and read back: an allocation that no machine can grant."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vlmplan.diagnosis import Cause, Diagnosis, Log, Phase, diagnosis_of

TOO_MUCH = 2**50
"""Bytes: a PiB, which the system refuses at once."""


def much(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(TOO_MUCH, dtype=torch.uint8).to(like.dtype)


class GreedyForward(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return much(x)


class GreedyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return much(gradient)


def in_forward() -> None:
    torch.nn.Sequential(GreedyForward())(torch.ones(1))


def in_backward() -> None:
    GreedyBackward.apply(torch.ones(1, requires_grad=True)).sum().backward()


def in_recomputation() -> None:
    """The second forward of a checkpointed module asks for too much."""
    calls: list[int] = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2 if len(calls) == 1 else GreedyForward()(x)

    x = torch.ones(1, requires_grad=True)
    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True).sum().backward()


def in_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam makes its states in the first step."""
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.AdamW([weight])
    monkeypatch.setattr(torch, "zeros_like", lambda like, **_: much(like))
    optimizer.step()


def in_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    monkeypatch.setattr(torch, "stack", lambda tensors, *_: much(tensors[0]))
    torch.nn.utils.clip_grad_norm_([weight], 1.0)


def diagnosed(run: Callable[..., None], *arguments: Any) -> Diagnosis:
    with pytest.raises(RuntimeError) as raised:
        run(*arguments)
    printed = "".join(traceback.format_exception(raised.value))
    found = diagnosis_of(Log(source="train.log", text=printed))
    assert (found.cause, found.evidence.message.requested_bytes) == (Cause.HOST_MEMORY, TOO_MUCH)
    return found


@pytest.mark.parametrize(
    ("run", "phase", "is_recomputed"),
    [
        (in_forward, Phase.FORWARD, False),
        (in_backward, Phase.BACKWARD, False),
        (in_recomputation, Phase.BACKWARD, True),
    ],
)
def test_the_phase_is_read_off_torchs_own_frames(run: Callable[[], None], phase: Phase, is_recomputed: bool):
    place = diagnosed(run).evidence.place
    assert (place.phase, place.is_recomputed) == (phase, is_recomputed)
    assert place.own_frame is not None
    assert (place.own_frame.file, place.own_frame.function) == (__file__, "much")


@pytest.mark.parametrize(("run", "phase"), [(in_the_optimizer, Phase.STEP), (in_clipping, Phase.CLIPPING)])
def test_steps_and_clipping_are_told_from_the_rest(
    run: Callable[..., None], phase: Phase, monkeypatch: pytest.MonkeyPatch
):
    assert diagnosed(run, monkeypatch).evidence.place.phase is phase
