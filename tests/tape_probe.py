"""One micro batch of a module tree on a tape, summed up like ``torch_probe`` measures the real one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch, Model, Part
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import GradientReady, Span, Trace
from vlmplan.hardware import CPU_KERNELS
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.libraries import PLANNED_TRANSFORMERS
from vlmplan.units import DType


@dataclass
class Predicted:
    """Bytes above the weights, gradients dropped as soon as they are whole; ``end_live`` without the batch."""

    forward_live: int = 0
    forward_peak: int = 0
    backward_peak: int = 0
    end_live: int = 0
    trace: Trace | None = None


def predicted_step(
    model: Model | Mapping[str, Any],
    batch: Batch,
    *,
    checkpoints: bool = False,
    implementation: str = "sdpa",
    loss: LossKind = LossKind.FULL,
    autocast: DType | None = None,
    keeps_gradients: bool = False,
    caches_casts: bool = False,
    makes_loss_inside: bool = True,
    **of_backend: Any,
) -> Predicted:
    """As on CPU under a dispatch mode: no kernel workspaces, gradients summed into new tensors, wide dropout masks.

    ``makes_loss_inside``: the model's own forward makes the loss. ``of_backend``: further fields of the backend; a mask
    of padding comes with the samples unless they say otherwise."""
    tree = model if isinstance(model, Model) else build_model(model)
    for _, stack in tree.stacks():
        stack.checkpoints = checkpoints
    ways = {"accumulates_in_place": False, "fuses_dropout": False, "makes_loss_inside": makes_loss_inside}
    tape = Tape(autocast=autocast, caches_casts=caches_casts, follows_weights=False, **ways)
    tape.outputs.has_encoded = PLANNED_TRANSFORMERS.returns_encoded
    of_backend = {"compute_capability": CPU_KERNELS, "gets_mask": True} | of_backend
    backend = AttentionBackend(implementation=implementation, **of_backend)
    return step_of(tree.run(tape, batch, backend, loss=loss), keeps_gradients=keeps_gradients)


def step_of(trace: Trace, *, keeps_gradients: bool = False) -> Predicted:
    """A micro batch that has run, summed up."""
    result = Predicted(trace=trace)
    live = peak = 0
    for _, section in trace.forward():
        for event in section.forward:
            if isinstance(event, Span):
                peak = max(peak, live + event.peak_bytes)
                live += event.delta_bytes
    result.forward_live, result.forward_peak = live, peak
    peak = live
    for _, section in trace.backward():
        for event in section.backward:
            if isinstance(event, Span):
                peak = max(peak, live + event.peak_bytes)
                live += event.delta_bytes
            elif isinstance(event, GradientReady) and not keeps_gradients and event.part.is_last:
                live -= event.num_bytes * (1 if event.part.is_first else 2)  # with the part that came first
    batch_events = trace.sections["batch"].forward
    kept = sum(event.delta_bytes for event in batch_events if isinstance(event, Span))
    freed = sum(event.delta_bytes for event in trace.after if isinstance(event, Span))
    result.backward_peak, result.end_live = peak, live + freed - kept
    return result


__all__ = ["Batch", "Part", "Predicted", "predicted_step", "step_of"]
