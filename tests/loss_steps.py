"""A small Qwen2 whose logits make the peaks: what losses of other trainers take of them, beside the real operations."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from family_checks import text_inputs
from tape_probe import Predicted, step_of
from torch_probe import measured_step
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.reference import reference_trace, with_reference
from vlmplan.architecture.tape import Tape
from vlmplan.hardware import CPU_KERNELS
from vlmplan.recipe.choices import LossKind
from vlmplan.units import DType

CONFIG: Mapping[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 5003,
    "tie_word_embeddings": False,
}
PAIRS, TOKENS = 3, 110


def preference_step(
    loss: LossKind,
    *,
    has_reference: bool = True,
    autocast: DType | None = None,
    vocab_size: int = CONFIG["vocab_size"],
    **of_batch: Any,
) -> Predicted:
    """A planned micro batch of ``PAIRS``, and that of the model itself as their reference."""
    tree = build_model({**CONFIG, "vocab_size": vocab_size})
    batch = Batch(micro_batch=2 * PAIRS, num_tokens=TOKENS, **of_batch)
    backend = AttentionBackend(compute_capability=CPU_KERNELS, gets_mask=True)
    tape = Tape(follows_weights=False, autocast=autocast, accumulates_in_place=False, fuses_dropout=False)
    trace = tree.run(tape, batch, backend, loss=loss)
    if has_reference:
        evaluating = Tape(follows_weights=False, autocast=autocast, is_evaluating=True)
        trace = with_reference(trace, reference_trace(tree, evaluating, batch, backend, loss=loss), is_itself=True)
    return step_of(trace)


def assert_planned(
    found: Predicted, trainer: Callable[[], Any], batch: Batch, *, tolerance: float, less_in_backward: int = 0
) -> None:
    """The plan keeps and peaks as a step of ``trainer`` does on fake tensors. ``less_in_backward``: bytes that only the
    measurement takes."""
    measured = measured_step(trainer, text_inputs(batch))
    measured.backward_peak -= less_in_backward
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(found, name) == pytest.approx(getattr(measured, name), rel=tolerance), name
