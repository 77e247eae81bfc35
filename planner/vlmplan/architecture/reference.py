"""The reference's forward of a preference loss, put into the trace of the micro batch that needs it.

TRL 1.16 (``dpo_trainer.py`` ``_compute_loss``) runs the model, then the reference under ``torch.no_grad`` on the same
inputs, while all that backward needs of the first forward is alive, then backward. So the reference's sections stand
behind those of the model, with a forward alone: backward comes through them without doing anything.
"""

from collections.abc import Sequence
from dataclasses import replace

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import evaluation_pass
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Run, Section, Trace
from vlmplan.recipe_choices import LossKind

REFERENCE = "reference."
"""What sections of the reference's forward begin with."""
INPUTS = "batch"
"""The section that makes the inputs, which both forwards read."""


def reference_trace(model: Model, tape: Tape, batch: Batch, backend: AttentionBackend) -> Trace:
    """The reference's forward on ``tape``, which has to be evaluating: log-probabilities of the scored tokens."""
    return evaluation_pass(model, tape, batch, backend, loss=LossKind.TRL).trace


def with_reference(trace: Trace, reference: Trace) -> Trace:
    """``trace`` of a micro batch, and the forward of ``reference`` between its forward and its backward."""
    added = {
        REFERENCE + key: Section(forward=section.forward, forward_work=section.forward_work)
        for key, section in reference.sections.items()
        if key != INPUTS
    }
    schedule = [Run(REFERENCE + run.key, run.layer) for run in reference.schedule if run.key != INPUTS]
    return replace(
        trace,
        sections=trace.sections | added,
        schedule=[*trace.schedule, *schedule],
        _merged=None,
        _works=None,
        memo={},
    )


def reference_start(schedule: Sequence[Run]) -> int | None:
    """The place in a schedule at which the reference's forward begins; None where there is none."""
    if not schedule or not schedule[-1].key.startswith(REFERENCE):
        return None
    return next(place for place, run in enumerate(schedule) if run.key.startswith(REFERENCE))
