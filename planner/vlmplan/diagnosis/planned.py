"""A diagnosis beside the plan of the same setup: planned against needed, what the samples must have been, and the
smallest change.

What was needed is what was allocated and what was asked for; it is compared with the peak of the phase that the
traceback names. Where that is more, the traceback's tensor says how long the samples were (``tensors``), else the
length is looked for at which the plan of that phase has what was needed. What is then still over the plan raises it
(``Correction``, as after a run of ``vlmplan launch``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import isqrt

from vlmplan.catalog import Catalog
from vlmplan.changes.trials import Trials
from vlmplan.diagnosis.causes import Cause
from vlmplan.diagnosis.places import Part
from vlmplan.diagnosis.places import Phase as RunPhase
from vlmplan.diagnosis.record import Diagnosis, Longer, Narrower, Planned
from vlmplan.diagnosis.tensors import TensorSize, Widths, tensor_sizes, weight_of_size, widths_of
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, Estimator
from vlmplan.launch.out_of_memory import correction_by
from vlmplan.memory.device import Verdict
from vlmplan.memory.overhead import reserve_bytes
from vlmplan.memory.phases import Phase
from vlmplan.models import takes_images
from vlmplan.phase_names import BACKWARD, EVALUATION, FORWARD, GENERATION, INIT, RESUME, SAVE, STEP
from vlmplan.proposals.way_out import WayOut, way_out
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Method
from vlmplan.recipe.evaluation import Kept
from vlmplan.request import Options, OptionValue, Request
from vlmplan.run.shortage import Shortage
from vlmplan.sample_images import image_tokens, sample_image
from vlmplan.units import GIB
from vlmplan.workload import Workload

IN_PLAN: dict[RunPhase, tuple[str, ...]] = {
    RunPhase.LOAD: (INIT,),
    RunPhase.SETUP: (INIT,),
    RunPhase.FORWARD: (FORWARD,),
    RunPhase.LOSS: (FORWARD, BACKWARD),
    RunPhase.BACKWARD: (BACKWARD,),
    RunPhase.CLIPPING: (STEP,),
    RunPhase.STEP: (STEP,),
    RunPhase.EVALUATION: (EVALUATION,),
    RunPhase.GENERATION: (GENERATION,),
    RunPhase.SAVE: (SAVE,),
    RunPhase.RESUME: (RESUME,),
}
"""Phases of a plan that a phase of a run may be in; the one that takes most is compared."""
TRANSFORMERS_EVAL_BATCH = 8
"""``per_device_eval_batch_size`` of transformers 5.23 where nothing is said."""
WORTH_SAYING = 0.95
"""Part of the device below which training less is worth saying. A choice."""
NARROWER: tuple[tuple[str, Options], ...] = (
    ("Without trained embeddings and head (--no-train-embeddings)", {"train_embeddings": False}),
    ("With a frozen vision tower (--freeze-vision)", {"train_vision": False, "full_vision": False}),
)
"""What trains beside the adapters of the language model, often without being meant."""
BESIDE_TRAINING = (RunPhase.EVALUATION, RunPhase.GENERATION, RunPhase.RESUME, RunPhase.SAVE, RunPhase.DATA)
"""Phases that no change of how it trains helps, where training itself fits."""
OF_ACTIVATIONS = (RunPhase.FORWARD, RunPhase.LOSS, RunPhase.BACKWARD)
LONGER_RATIO = 1.05
"""From how much over the plan on samples are called longer: the memory model is within a few percent (accuracy.md)."""
OTHER_CARD_RATIO = 0.97
"""Part of the planned card below which the card is another: drivers and ECC take up to 2% differently. A choice."""
MAX_LENGTH_RATIO = 64
"""How many times the planned length is tried at the most. A choice."""
LENGTH_TOLERANCE = 0.01
"""Part of a length to which it is looked for. A choice."""
Accepts = Callable[[Estimate], bool]


def beside_plan(
    found: Diagnosis,
    request: Request,
    present: Estimate,
    notes: tuple[str, ...],
    catalog: Catalog,
    today: date,
) -> Diagnosis:
    """``found`` with the plan of ``request``, whose estimate is ``present``."""
    message, place = found.evidence.message, found.evidence.place
    trials = Trials(catalog, present.workload.model)
    request, present, assumed = _with_evaluation(found, request, present, trials)
    phase = _phase(present, place.phase)
    estimator = Estimator(present.workload, present.recipe)
    widths = widths_of(present.workload.model, estimator.table)
    tensors = tuple(tensor_sizes(message, place, widths, micro_batch=_batch_of(found, present)))
    allocated, requested = message.allocated_bytes, message.requested_bytes
    needed = None if allocated is None or message.is_on_host else allocated + (requested or 0)
    request, present = _with_host(found, request, present, trials)
    longer = _longer(found, present, request, trials, tensors, widths, needed)
    if longer is not None and not trials.is_possible(_with_samples(request, present.workload, longer)):
        longer = None  # no such samples, as those of a model that hears sounds alone
    actual_request = request if longer is None else _with_samples(request, present.workload, longer)
    actual = present if longer is None else trials.estimate(actual_request)
    scores = Scores.of(tensors, actual)
    planned = Planned(
        estimate=present,
        notes=(*notes, *assumed),
        phase=phase,
        needed_bytes=needed,
        tensors=tensors,
        weight=weight_of_size(message, place, estimator.table),
        longer=longer,
        request=actual_request,
        actual=actual,
        unplanned_bytes=scores.bytes_of(actual),
        way_out=_way_out(
            found, actual_request, actual, scores, catalog, today, card_bytes=_smaller_card_bytes(found, present)
        ),
        narrower=tuple(_narrower(actual_request, actual, trials)),
    )
    return replace(found, planned=planned, cause=_cause(found, present))


def _with_evaluation(
    found: Diagnosis, request: Request, present: Estimate, trials: Trials
) -> tuple[Request, Estimate, tuple[str, ...]]:
    """The setup with the evaluation in which memory ran out, where it says nothing of one: of transformers' default
    batch, and of kept logits where the traceback gathers them; and sentences on what was assumed."""
    place, evaluation = found.evidence.place, present.recipe.evaluation
    if place.phase is not RunPhase.EVALUATION:
        return request, present, ()
    options: dict[str, OptionValue] = {}
    sentences: list[str] = []
    if evaluation is None:
        options["eval_batch"] = TRANSFORMERS_EVAL_BATCH
        sentences.append(
            f"the setup says nothing of evaluation: planned with {TRANSFORMERS_EVAL_BATCH} samples at a time, "
            f"transformers' default; --eval-batch says otherwise"
        )
    keeps_nothing = evaluation is None or evaluation.kept is Kept.LOSS
    if place.part is Part.GATHERED_LOGITS and keeps_nothing and present.recipe.loss is not LossKind.CHUNKED:
        options["eval_keeps"] = Kept.LOGITS.value
        sentences.append("the traceback gathers what metrics get, so all logits are planned to be kept")
    changed = request.with_options(options)
    if not options or not trials.is_possible(changed):
        return request, present, ()
    return changed, trials.estimate(changed), tuple(sentences)


def _batch_of(found: Diagnosis, estimate: Estimate) -> int:
    """Samples at a time on a GPU in the phase in which memory ran out."""
    evaluation = estimate.recipe.evaluation
    phase = found.evidence.place.phase
    if evaluation is not None and phase is RunPhase.EVALUATION:
        return evaluation.batch
    if evaluation is not None and phase is RunPhase.GENERATION:
        return evaluation.batch * evaluation.beams
    return estimate.recipe.micro_batch


def _with_host(found: Diagnosis, request: Request, present: Estimate, trials: Trials) -> tuple[Request, Estimate]:
    """The setup with the host memory that the message tells of, where the setup says nothing of it."""
    message = found.evidence.message
    if not message.is_on_host or message.total_bytes is None or present.cluster.node.host_ram_bytes is not None:
        return request, present
    request = request.with_options({"host_ram": round(message.total_bytes / GIB, 2)})
    return request, trials.estimate(request)


def _phase(estimate: Estimate, phase: RunPhase | None) -> Phase | None:
    names = IN_PLAN.get(phase, ()) if phase is not None else ()
    able = [one for one in (*estimate.timeline.phases, estimate.resume.phase) if one.name in names]
    return max(able, key=lambda one: one.peak.total, default=None)


def _cause(found: Diagnosis, present: Estimate) -> Cause:
    """The card that it ran on may not be the one that is planned with."""
    return found.cause if _smaller_card_bytes(found, present) is None else Cause.SMALLER_CARD


def _smaller_card_bytes(found: Diagnosis, present: Estimate) -> int | None:
    """Memory of the card that it ran on, where that is the reason: the setup fits on the planned one, which is larger;
    None where it is not."""
    total, usable = found.evidence.message.total_bytes, present.device.usable_bytes
    if found.cause not in (Cause.TRUE_NEED, Cause.FULL_CARD) or total is None or total >= usable * OTHER_CARD_RATIO:
        return None
    return None if present.verdict is Verdict.DOES_NOT_FIT else total


# -- what the samples must have been ---------------------------------------------------------------------------------


def _longer(
    found: Diagnosis,
    present: Estimate,
    request: Request,
    trials: Trials,
    tensors: tuple[TensorSize, ...],
    widths: Widths,
    needed: int | None,
) -> Longer | None:
    named = [one for one in tensors if one.is_named]
    if named:
        return _longer_by_tensor(min(named, key=lambda one: one.low), present, widths, _batch_of(found, present))
    if found.evidence.place.phase not in OF_ACTIVATIONS or needed is None:
        return None
    phase = _phase(present, found.evidence.place.phase)
    if phase is None or needed <= phase.peak.total * LONGER_RATIO:
        return None
    tokens = _length_needing(needed, found.evidence.place.phase, request, present, trials)
    if tokens is None:
        return None
    return Longer(tokens=tokens, planned_tokens=present.workload.seq_len, is_named=False)


def _longer_by_tensor(tensor: TensorSize, present: Estimate, widths: Widths, micro_batch: int) -> Longer | None:
    """What the tensor says, if that is more than is planned for ``micro_batch`` samples."""
    workload = present.workload
    if not tensor.is_of_patches:
        tokens = tensor.count // micro_batch
        if tensor.low <= workload.seq_len * micro_batch * LONGER_RATIO:
            return None
        return Longer(tokens=tokens, planned_tokens=workload.seq_len, is_named=True)
    image, num_images = sample_image(workload), workload.images_per_sample * micro_batch
    if image is None or widths.patch_side is None:
        return None
    patches = tensor.low // num_images
    if patches <= image.num_patches * LONGER_RATIO:
        return None
    side = isqrt(patches) * widths.patch_side
    larger = replace(workload, image_width=side, image_height=side)
    tokens = workload.seq_len - image_tokens(workload) + image_tokens(larger)
    return Longer(tokens=tokens, planned_tokens=workload.seq_len, is_named=True, image_side=side)


def _with_samples(request: Request, workload: Workload, longer: Longer) -> Request:
    if longer.image_side is not None:
        size = f"{longer.image_side}x{longer.image_side}"
        return request.with_options({"seq_len": longer.tokens, "image_size": size})
    options = {"seq_len": longer.tokens}
    if takes_images(workload.model):  # what was a default is meant as it was planned
        options["images_per_sample"] = workload.images_per_sample
    return request.with_options(options)


def _length_needing(
    needed: int, phase: RunPhase | None, request: Request, present: Estimate, trials: Trials
) -> int | None:
    """Tokens of a sample with which the plan's phase takes ``needed``; None where not even the longest tried does."""
    workload = present.workload

    def peak(tokens: int) -> int:
        longer = Longer(tokens=tokens, planned_tokens=workload.seq_len, is_named=False)
        found = _phase(trials.estimate(_with_samples(request, workload, longer)), phase)
        return 0 if found is None else found.peak.total

    low = high = workload.seq_len
    try:
        while peak(high) < needed:
            low, high = high, 2 * high
            if high > MAX_LENGTH_RATIO * workload.seq_len:
                return None
        while high - low > max(1, LENGTH_TOLERANCE * high):
            middle = (low + high) // 2
            low, high = (low, middle) if peak(middle) >= needed else (middle, high)
    except InputError:
        return None
    return high


def _narrower(request: Request, actual: Estimate, trials: Trials) -> Iterator[Narrower]:
    """What of an adapter run that does not fit takes much and may not have been meant to train."""
    if actual.recipe.method is Method.FULL or actual.verdict is Verdict.FITS:
        return
    for name, options in NARROWER:
        other = request.with_options(options)
        if not trials.is_possible(other) or trials.are_same(request, other):
            continue
        estimate = trials.estimate(other)
        if estimate.device.device_bytes < WORTH_SAYING * actual.device.device_bytes:
            yield Narrower(name=name, estimate=estimate)


# -- the smallest change ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Whole attention scores that torch's math kernel made, where the plan counts on a fused one that makes none.

    ``length`` patches or tokens of ``samples`` sequences made ``num_bytes``, which grow with the length's square.
    """

    num_bytes: int = 0
    length: int = 1
    samples: int = 1
    is_of_patches: bool = False

    @staticmethod
    def of(tensors: Sequence[TensorSize], actual: Estimate) -> "Scores":
        found = [one for one in tensors if one.is_named and one.part is Part.ATTENTION and one.is_quadratic]
        if not found or actual.recipe.attention is not AttentionImplementation.SDPA:
            return Scores()
        length, samples = _scored(actual, is_of_patches=found[-1].is_of_patches)
        one = found[-1]
        return Scores(num_bytes=one.num_bytes, length=length, samples=samples, is_of_patches=one.is_of_patches)

    def bytes_of(self, other: Estimate) -> int:
        """Bytes of that in another setup, by its length and samples; 0 where its attention makes none."""
        if not self.num_bytes or other.recipe.attention is AttentionImplementation.FLASH_ATTENTION_2:
            return 0
        length, samples = _scored(other, is_of_patches=self.is_of_patches)
        return round(self.num_bytes * (length / self.length) ** 2 * samples / self.samples)


def _scored(estimate: Estimate, *, is_of_patches: bool) -> tuple[int, int]:
    """(positions of a sequence, sequences): all patches of a micro batch are one sequence of the vision encoder."""
    workload, micro_batch = estimate.workload, estimate.recipe.micro_batch
    image = sample_image(workload) if is_of_patches else None
    if image is None:
        return workload.seq_len, micro_batch
    return image.num_patches * workload.images_per_sample * micro_batch, 1


def _way_out(
    found: Diagnosis,
    request: Request,
    actual: Estimate,
    scores: "Scores",
    catalog: Catalog,
    today: date,
    *,
    card_bytes: int | None,
) -> WayOut | None:
    """The way out of a setup that does not fit as it was measured; None where it does, or where its own memory was not
    short. ``card_bytes`` are of a card that is smaller than the planned one: what fits keeps that one's reserve."""
    is_anothers = found.cause in (Cause.OTHER_PROCESSES, Cause.MEMORY_LIMIT)
    if is_anothers and actual.verdict is Verdict.FITS and not scores.num_bytes:
        return None
    if found.cause in (Cause.DISK, Cause.SHARED_MEMORY):
        return None
    fits = actual.verdict is not Verdict.DOES_NOT_FIT and not actual.host_is_short
    if fits and found.evidence.place.phase in BESIDE_TRAINING:
        return None
    accepts = _acceptance(found, actual, scores)
    if card_bytes is not None:
        accepts = _on_card(card_bytes, scores, accepts)
    is_enough = fits if accepts is None else accepts(actual)
    if is_enough:
        return None
    return replace(way_out(request, actual, catalog, today, accepts=accepts), card_bytes=card_bytes)


def _on_card(card_bytes: int, scores: "Scores", measured: Accepts | None) -> Accepts:
    """What fits on a card of so much memory, with the reserve that is kept there, and passes what was ``measured``."""

    def accepts(other: Estimate) -> bool:
        needed = other.device.device_bytes + scores.bytes_of(other) + reserve_bytes(card_bytes)
        return needed <= card_bytes and (measured is None or measured(other))

    return accepts


def _acceptance(found: Diagnosis, actual: Estimate, scores: "Scores") -> Accepts | None:
    """What a setup has to be beside fitting; None where nothing was measured."""
    message, place = found.evidence.message, found.evidence.place
    if message.is_on_host or message.allocated_bytes is None or message.free_bytes is None:
        return None
    phase = _phase(actual, place.phase) or max(actual.timeline.phases, key=lambda one: one.peak.total)
    shortage = Shortage(
        rank=found.evidence.rank or 0,
        phase=phase.name,
        step=(found.evidence.progress.steps_done or 0) + 1,
        is_on_host=False,
        allocated_bytes=message.allocated_bytes,
        reserved_bytes=message.reserved_bytes,
        requested_bytes=None if scores.num_bytes else message.requested_bytes,
        free_bytes=message.free_bytes,
        total_bytes=message.total_bytes,
        planned_bytes=phase.peak.total,
    )
    correction = correction_by(
        shortage,
        expands_segments=actual.recipe.expandable_segments,
        planned_reserved_bytes=actual.device.reserved_bytes,
        host_ram_bytes=actual.cluster.node.host_ram_bytes,
    )
    held = actual.device.reserved_bytes + scores.bytes_of(actual)
    obtainable = correction.obtainable_bytes or 0

    def accepts(other: Estimate) -> bool:
        """Whatever was measured, less is needed than by what ran out."""
        unplanned = scores.bytes_of(other)
        left = replace(correction, obtainable_bytes=obtainable - unplanned)
        return other.device.reserved_bytes + unplanned < held and left.fits(other)

    return accepts
