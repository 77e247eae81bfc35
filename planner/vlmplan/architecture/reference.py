"""Forwards without gradients of a preference loss, put into the trace of the micro batch that needs them: the
reference's, and in KTO those that estimate the KL divergence.

TRL 1.16 (``dpo_trainer.py`` ``_compute_loss``) runs the model, then the reference under ``torch.no_grad`` on the same
inputs, while all that backward needs of the first forward is alive, then backward. So the reference's sections stand
behind those of the model, with a forward alone: backward comes through them without doing anything. LLaMA-Factory does
the same, and holds the model's logits until the reference is over. In KTO (``kto_trainer.py`` ``_compute_kl_logps``)
the model runs before that over answers to other prompts, and so does the reference before its forward; both do so
behind it in LLaMA-Factory (``train/kto/trainer.py`` ``concatenated_forward``).
"""

from collections.abc import Sequence
from dataclasses import replace

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import evaluation_pass
from vlmplan.architecture.losses.log_softmax import COPIES, METRICS
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.storage_log import with_handles_behind
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import INPUTS, NO_PARTS, Fetch, Run, Section, Span, Trace, change
from vlmplan.architecture.unreleased import unreleased
from vlmplan.recipe.choices import LossKind

REFERENCE = "reference."
"""What sections of the reference's forward begin with."""
OWN = "own."
"""What they go on with where the reference is the model itself."""
END = "end"
KL = "kl."
"""What sections of the model's forward over answers to other prompts begin with."""


def reference_trace(model: Model, tape: Tape, batch: Batch, backend: AttentionBackend, *, loss: LossKind) -> Trace:
    """The reference's forward on ``tape``, which has to be evaluating: log-probabilities, as ``loss`` makes them."""
    return evaluation_pass(model, tape, batch, backend, loss=loss).trace


def with_reference(
    trace: Trace, reference: Trace, *, is_itself: bool, is_reentrant: bool = False, times: int = 1
) -> Trace:
    """``trace`` of a micro batch, and the forward of ``reference`` between its forward and its backward.
    ``is_itself``: it runs the same modules; ``is_reentrant``: whose checkpoints are; ``times``: it runs so often."""
    start = REFERENCE + OWN if is_itself else REFERENCE
    added, schedule = _alone(with_handles_behind(reference, trace), start)
    sections = _without_releases(trace, reference, is_reentrant=is_reentrant) if is_itself else trace.sections
    own, behind = [*trace.schedule], schedule * times
    if own[-1].key == METRICS:  # behind the reference
        metrics = sections[own.pop().key]
        added[start + METRICS] = Section(forward=metrics.forward, forward_work=metrics.forward_work)
        behind.append(Run(start + METRICS, None))
    return replace(
        trace,
        sections=sections | added,
        schedule=[*own, *behind],
        _merged=None,
        _works=None,
        memo={},
    )


def with_kl_forward(trace: Trace, alone: Trace, *, is_last: bool = False, is_reentrant: bool = False) -> Trace:
    """``trace`` of a micro batch behind the model's own forward without gradients, which is ``alone``. ``is_last``:
    that runs when the loss is there, before the logits are copied, in a model whose checkpoints are reentrant or
    not."""
    added, schedule = _alone(with_handles_behind(alone, trace), KL)
    sections = _without_releases(trace, alone, is_reentrant=is_reentrant) if is_last else trace.sections
    keys = [run.key for run in trace.schedule]
    place = keys.index(COPIES if is_last else INPUTS) + (not is_last)
    return replace(
        trace,
        sections=sections | added,
        schedule=[*trace.schedule[:place], *schedule, *trace.schedule[place:]],
        _merged=None,
        _works=None,
        memo={},
    )


def _alone(forward: Trace, start: str) -> tuple[dict[str, Section], list[Run]]:
    """The sections and the schedule of a ``forward`` without gradients, whose names begin with ``start``. It ends with
    the casts that autocast keeps until then."""
    added = {
        start + key: Section(forward=section.forward, forward_work=section.forward_work)
        for key, section in forward.sections.items()
        if key != INPUTS
    }
    schedule = [Run(start + run.key, run.layer) for run in forward.schedule if run.key != INPUTS]
    left = [change(added[run.key].forward) for run in schedule]
    parts = (sum(one[0] for one in left), sum(one[1] for one in left), sum(one[2] for one in left), 0)
    added[start + END] = Section(forward=[Span(NO_PARTS, (-parts[0], -parts[1], -parts[2], 0))])
    return added, [*schedule, Run(start + END, None)]


def reference_start(schedule: Sequence[Run]) -> int | None:
    """The place in a schedule at which the reference's forward begins; None where there is none."""
    if not schedule or not schedule[-1].key.startswith(REFERENCE):
        return None
    return next(place for place, run in enumerate(schedule) if run.key.startswith(REFERENCE))


def start_of_alone(run: Run) -> str:
    """What the names of sections begin with of the forward without gradients that a run is of; "" of the model's
    own."""
    start = ""
    for part in (REFERENCE, OWN, KL):
        if run.key.startswith(start + part):
            start += part
    return start


def ends_alone(run: Run) -> bool:
    """Whether it is the last of a forward without gradients."""
    start = start_of_alone(run)
    return start != "" and run.key == start + END


def is_of_copy(run: Run) -> bool:
    """Whether it is a second model's, which has an engine of its own and so an order of its own under stage 3."""
    return run.key.startswith(REFERENCE) and not run.key.startswith(REFERENCE + OWN)


def is_own(run: Run) -> bool:
    """Whether it is of a reference that is the model itself."""
    return run.key.startswith(REFERENCE + OWN)


def is_of_kl(run: Run) -> bool:
    """Whether it is of the model's own forward over answers to other prompts."""
    return run.key.startswith(KL)


def loses_order(trace: Trace) -> bool:
    """Whether DeepSpeed does not know under stage 3 which module comes next, but where the reference's forward begins,
    or the second of the model's own forwards and that over answers to other prompts.

    Every forward of the model begins with ``reset_step`` (deepspeed 0.19.8 ``zero/parameter_offload.py``
    ``_start_of_forward_hook``). That of a reference which is the model itself completes what the model's own forward
    recorded, so that it goes by that order until the first adapter is missing: then the order is no longer valid
    (``trace_prologue`` in ``zero/partitioned_param_coordinator.py``), and the next forward records anew. So it is with
    two forwards of the model before one backward: the second goes by what the first recorded, until backward begins.
    Where both come together, the first of all completes what the last and backward recorded, until the first adapter.
    """
    if not trace.schedule:
        return False
    return is_own(trace.schedule[-1]) is not has_kl_forward(trace)


def has_kl_forward(trace: Trace) -> bool:
    """Whether the model runs over answers to other prompts."""
    return any(is_of_kl(run) for run in trace.schedule)


def _without_releases(trace: Trace, reference: Trace, *, is_reentrant: bool) -> dict[str, Section]:
    """The sections of ``trace`` under stage 3, where ``reference`` has run the same modules before their backward.

    DeepSpeed 0.19.8 counts a module's inputs that need a gradient when it runs forward, and releases it in backward
    when as many have come back (``ds_grads_remaining`` in ``zero/parameter_offload.py``). The reference's forward,
    which needs none, sets the count to 0, so that it is never met: what backward gathers stays until backward ends
    (``release_backward_leftovers``). A checkpointed layer counts anew when it runs again, and is released; but what it
    gathers then belongs to the module whose backward has begun last (``update_recompute_parameters``), which for a
    reentrant checkpoint is one of those that are never released.
    """
    ran = {id(event.module) for one in reference.sections.values() for event in one.forward if isinstance(event, Fetch)}
    return {
        key: one if one.recomputed_bytes and not is_reentrant else unreleased(one, ran)
        for key, one in trace.sections.items()
    }
