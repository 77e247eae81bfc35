"""One batch of an evaluation on symbolic tensors: the forward and the loss, without a graph.

Nothing is saved for a backward, so a layer's own tensors go with it, and the peak is most often at the loss: logits in
the type of the model, their float32 copy and its log-softmax, 10 bytes a logit in 16 bit (transformers 5.23
``loss/loss_utils.py``). The cut into chunks and TRL's fused head work as in training.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.attention import KeyCache
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.encoder_first import kept_outputs, words_behind_images
from vlmplan.architecture.losses.axolotl import axolotl_loss, handed_out
from vlmplan.architecture.losses.axolotl_answers import answers_loss, logits_before
from vlmplan.architecture.losses.cross_entropy import chunked_loss, whole_logits
from vlmplan.architecture.losses.log_softmax import AUTOCAST_LEFT, log_softmax_loss, look_up_answers, widened
from vlmplan.architecture.losses.openrlhf import cross_entropy
from vlmplan.architecture.losses.row import row_loss
from vlmplan.architecture.losses.selective import selective_loss
from vlmplan.architecture.losses.tempered import scored_hidden, tempered_loss
from vlmplan.architecture.losses.verl import look_up_entropy
from vlmplan.architecture.model import LOSSES_OF_HIDDEN, LOSSES_OUTSIDE, Batch, Model
from vlmplan.architecture.read_weights import ReadHead, begin_forward, end_forward
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import HEAD, INPUTS, NO_PARTS, Span, Trace, change
from vlmplan.recipe.choices import TEMPERED, LossKind
from vlmplan.units import DType

LOOKED_UP: Mapping[LossKind | None, Callable[[list[Tensor]], Tensor]] = {
    LossKind.LOG_SOFTMAX: lambda narrow: log_softmax_loss(widened(narrow)),
    LossKind.OPENRLHF: lambda narrow: cross_entropy(widened(narrow)),
    LossKind.SELECTIVE: selective_loss,
    LossKind.AXOLOTL: lambda narrow: axolotl_loss(handed_out(narrow)),
    LossKind.AXOLOTL_ANSWERS: answers_loss,
    LossKind.ROWS: lambda narrow: row_loss(handed_out(narrow)),
}
"""What makes log-probabilities of logits as the model has made them, which leave their list, by the loss."""


class EvaluationPass(NamedTuple):
    """One forward: ``trace`` has no backward. ``input_bytes`` are the batch's, ``output_bytes`` those of logits and of
    whatever else the model returns beside the loss, as an evaluation loop gets them, and ``output_elements`` theirs."""

    trace: Trace
    input_bytes: int
    output_bytes: int = 0
    output_elements: int = 0


def evaluation_pass(
    model: Model,
    tape: Tape,
    batch: Batch,
    backend: AttentionBackend,
    *,
    loss: LossKind | None,
    with_entropy: bool = False,
    follows_another: bool = False,
) -> EvaluationPass:
    """``batch`` through ``model`` on ``tape``, which has to be evaluating. ``loss`` None: whole logits, and no loss of
    them, as TRL's ``compute_loss`` makes for metrics. ``with_entropy``: verl's of every token is looked up too.
    ``follows_another``: axolotl's loop holds the logits of the batch before until this one's are there.

    Outputs become float32 under autocast, as accelerate makes them (``ConvertOutputsToFp32``).
    """
    assert tape.is_evaluating
    ids, pixels, others = model.inputs(tape, batch)
    reader = begin_forward(tape, model.reader_of(tape, loss))
    input_bytes = sum(one.num_bytes for one in (ids, pixels, *others) if one is not None)
    held = logits_before(tape, batch, model.head) if follows_another else []
    hidden: Tensor | None = model.run_without_head(batch, ids, pixels, batch.attention(backend))
    num_bytes = num_elements = 0
    with tape.section(HEAD):
        if loss is LossKind.CHUNKED:
            end_forward(reader, chunked_loss(hidden, model.head, adds=model.added_dtype), returns_it=False)
        elif loss in LOSSES_OF_HIDDEN:
            model.loss_of_hidden(tape, hidden, batch, loss, reader)
        elif _is_looked_up(tape, loss):
            made, hidden = [scored_hidden(hidden, batch, loss)], None
            _call_head(model, made, reader, held)
        else:
            logits = end_forward(reader, whole_logits(hidden, model.head, **model.logit_changes))
            is_outside = loss in LOSSES_OUTSIDE
            if is_outside or model.calls_head_inside:
                hidden = None
            if is_outside:
                tape.leave_model()
            returned = [logits, *tape.outputs.returned()]
            num_elements = sum(one.numel for one in returned)
            wide = num_elements * DType.FLOAT32.num_bytes
            num_bytes = sum(one.num_bytes for one in returned) if tape.autocast is None else wide
            _score(model, logits, loss, with_entropy=with_entropy)
            del logits, returned
        hidden = None
        tape.locals.clear()
        tape.outputs.clear()
    if _is_looked_up(tape, loss):
        _look_up(tape, held, batch, loss)
    trace = _without_casts(tape.trace())
    del pixels, ids, others
    return EvaluationPass(trace, input_bytes, num_bytes, num_elements)


def preference_pass(
    model: Model, tape: Tape, batch: Batch, backend: AttentionBackend, *, loss: LossKind
) -> EvaluationPass:
    """``batch`` of pairs, or of answers with labels, through ``model`` on ``tape``, which has to be evaluating, to the
    whole ``loss`` of preferences as training makes it: with what stays of logits until a reference has run."""
    assert tape.is_evaluating
    ids, pixels, others = model.inputs(tape, batch)
    reader = begin_forward(tape, model.reader_of(tape, loss))
    input_bytes = sum(one.num_bytes for one in (ids, pixels, *others) if one is not None)
    hidden: Tensor | None = model.run_without_head(batch, ids, pixels, batch.attention(backend))
    logits: list[Tensor] = []
    with tape.section(HEAD):
        made, hidden = [scored_hidden(hidden, batch, loss)], None
        _call_head(model, made, reader, logits)
        tape.locals.clear()
        tape.outputs.clear()
    model.loss_behind_head(tape, logits, loss, batch)
    trace = _without_casts(tape.trace())
    del pixels, ids, others
    return EvaluationPass(trace, input_bytes)


def _is_looked_up(tape: Tape, loss: LossKind | None) -> bool:
    """Whether log-probabilities are made where autocast has been left, and no sooner; rows under none, as they come."""
    return loss in (*LOOKED_UP, *TEMPERED) and not (loss is LossKind.ROWS and tape.autocast is None)


def _call_head(model: Model, made: list[Tensor], reader: ReadHead | None, narrow: list[Tensor]) -> None:
    """Logits of hidden states that are ``made`` and leave that list, as the last of ``narrow``."""
    narrow.append(end_forward(reader, whole_logits(made.pop(), model.head, **model.logit_changes)))
    narrow[-1].tape.leave_model()


def _look_up(tape: Tape, narrow: list[Tensor], batch: Batch, loss: LossKind | None) -> None:
    """Log-probabilities as a preference loss has them, of logits that are the last of ``narrow`` and leave that list,
    with what is held beside them. They are made outside of autocast."""
    with tape.section(AUTOCAST_LEFT):
        tape.end_forward()
    if batch.copies_logits and loss is LossKind.LOG_SOFTMAX:
        look_up_answers(tape, narrow)
        return
    with tape.section("loss"):
        LOOKED_UP.get(loss, partial(tempered_loss, by_token=batch.sequences is not None))(narrow)
        tape.cloned.clear()


def _without_casts(trace: Trace) -> Trace:
    """``trace``, from which the casts that autocast has cached go where it is left: what else its sections make they
    free themselves, but for the inputs."""
    if AUTOCAST_LEFT not in trace.sections:
        return trace
    left = [change(trace.sections[run.key].forward) for run in trace.schedule if run.key != INPUTS]
    parts = (-sum(one[0] for one in left), -sum(one[1] for one in left), -sum(one[2] for one in left), 0)
    section = trace.sections[AUTOCAST_LEFT]
    ended = replace(section, forward=[*section.forward, Span(NO_PARTS, parts)], memo={})
    return replace(trace, sections={**trace.sections, AUTOCAST_LEFT: ended}, _merged=None, _works=None, memo={})


def _score(model: Model, logits: Tensor, loss: LossKind | None, *, with_entropy: bool) -> None:
    if loss is None:
        _widened(logits)
        return
    model.loss_of_logits(logits, loss, with_entropy=with_entropy)
    if with_entropy and loss is LossKind.VERL:
        look_up_entropy(logits)


class GenerationPass(NamedTuple):
    """The forward over prompts. ``cache_bytes`` are the keys and values of all their tokens, ``layer_bytes`` those of
    the layer with most, ``state_bytes`` states that stay as large, ``encoded_bytes`` what encoders have returned;
    ``logits`` the elements of one position."""

    trace: Trace
    input_bytes: int
    cache_bytes: int
    layer_bytes: int
    state_bytes: int
    encoded_bytes: int
    logits: int


def generation_pass(
    model: Model, tape: Tape, batch: Batch, backend: AttentionBackend, *, is_past_prompt: bool = False
) -> GenerationPass:
    """The forward over the prompts of ``batch``, whose keys and values stay; logits are those of the last position
    (``logits_to_keep``), and once more in float32, as ``generate`` makes them (transformers 5.23
    ``generation/utils.py``). ``is_past_prompt``: over tokens that are generated on a GPU."""
    assert tape.is_evaluating
    tape.key_cache = cache = KeyCache(is_past_prompt=is_past_prompt)
    ids, pixels, others = model.inputs(tape, batch)
    input_bytes = sum(one.num_bytes for one in (ids, pixels, *others) if one is not None)
    encodes_first = pixels is not None and model.encodes_before_generating
    if encodes_first:
        tape.encode_apart()
        tape.outputs.has_encoded = True
    hidden: Tensor | None = model.run_without_head(batch, ids, pixels, backend)
    encoded = kept_outputs(tape) if encodes_first else ()
    with tape.section(HEAD):
        logits = whole_logits(ops.copy(hidden, batch.micro_batch, 1, hidden.shape[-1]), model.head)
        _widened(logits)
        num_logits = logits.numel
        hidden = None
        del logits
        tape.locals.clear()
        tape.outputs.clear()
    trace = words_behind_images(tape.trace()) if encodes_first else tape.trace()
    cache_bytes, state_bytes = (
        sum(tape.of_section(run.key, sizes) for run in trace.schedule) for sizes in (cache.num_bytes, cache.state_bytes)
    )
    layer_bytes = cache.layer_bytes
    cache.tensors.clear()
    encoded_bytes = sum(one.storage.num_bytes for one in encoded)
    del pixels, ids, others, encoded
    return GenerationPass(trace, input_bytes, cache_bytes, layer_bytes, state_bytes, encoded_bytes, num_logits)


def _widened(logits: Tensor) -> None:
    """Makes the float32 copy of what the model returns under autocast."""
    tape = logits.tape
    if tape.autocast is not None and logits.dtype is not DType.FLOAT32:
        with tape.charged_to(logits.storage.kind):
            tape.tensor(logits.shape, DType.FLOAT32)
