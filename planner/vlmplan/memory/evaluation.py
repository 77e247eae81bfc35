"""The phases beside training in which a model only runs forward: evaluation, and generation in evaluation.

    step → evaluation → generation → save

Weights, optimizer states and the engine's buffers are those that the step leaves; gradients are gone. One forward takes
what ``architecture.evaluation`` traced. What the loop keeps of every batch comes on top of it: see ``KeptOutputs``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from vlmplan.architecture.evaluation import EvaluationPass, GenerationPass
from vlmplan.architecture.trace import Event, Fetch, Prefetch, Run, Span, Trace
from vlmplan.engines.coordinator.module_order import Begun, Lost, SmallWeights
from vlmplan.engines.engine import Engine
from vlmplan.engines.events import NULL_SINK, Component, Sink
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.profile import MicroBatchProfile, forward_rise
from vlmplan.memory.peaks import PeakTracker
from vlmplan.memory.phases import Phase
from vlmplan.phase_names import EVALUATION, GENERATION
from vlmplan.recipe.evaluation import Evaluation, Kept
from vlmplan.units import DType

if TYPE_CHECKING:
    from vlmplan.engines.coordinator.gathered_weights import GatheredWeights
    from vlmplan.engines.coordinator.replay import GatherReplay

ID_BYTES = DType.INT64.num_bytes
"""Of a predicted token, and of a label."""


class KeptOutputs(NamedTuple):
    """What transformers' ``evaluation_loop`` keeps of every batch, on every GPU for all ranks.

    ``gather_for_metrics`` gives each rank the outputs of all, and ``EvalLoopContainer.add`` concatenates them with
    those before, on the GPU: until ``accumulation`` batches are there, else to the end. ``sample_bytes`` are kept of a
    sample; ``batch_rows`` are the samples of one rank's batch. A batch that is not full is filled up for several ranks
    (accelerate's ``even_batches``).

    ``numpy_bytes``: the same of a sample in numpy. ``is_on_cpu``: gloo has no gather into one tensor, so that the parts
    are joined (accelerate's ``_gpu_gather``).
    """

    sample_bytes: int
    numpy_bytes: int
    batch_rows: int
    num_samples: int
    num_ranks: int
    accumulation: int | None
    is_on_cpu: bool = False

    @property
    def step_rows(self) -> int:
        """Samples of a step over all ranks."""
        return self.batch_rows * self.num_ranks

    @property
    def num_steps(self) -> int:
        return -(-self.num_samples // self.step_rows)

    @property
    def num_kept_steps(self) -> int:
        """Steps whose outputs are together on the GPU at the most."""
        return min(self.num_steps, self.accumulation or self.num_steps)

    @property
    def gathered_bytes(self) -> int:
        """Bytes kept of one full step, from all ranks."""
        return self.step_rows * self.sample_bytes

    @property
    def held(self) -> list[int]:
        """Bytes of each output that is held beside the last forward: the earlier steps, and once more the step before,
        which the loop's variable still has. Of two steps the first is both; what has moved to the host is gone."""
        earlier = self.num_kept_steps - 1
        return [earlier * self.gathered_bytes, self.gathered_bytes if earlier >= 2 else 0, self._numpy_bytes_here]

    @property
    def _numpy_bytes_here(self) -> int:
        """The first outputs that moved to the host are still there on a CPU rank, until numpy joins others to them."""
        if not self.is_on_cpu or self.num_steps == self.num_kept_steps:
            return 0
        return self.num_kept_steps * self.step_rows * self.numpy_bytes

    @property
    def moved(self) -> list[int]:
        """Bytes after the last forward, when its own outputs are gathered and joined to the earlier ones: what is there
        at the highest moment. On a CPU rank what numpy gets, which has no bfloat16, is made here too."""
        earlier = (self.num_kept_steps - 1) * self.gathered_bytes
        if self.num_ranks == 1:
            own = [min(self.batch_rows, self.num_samples) * self.sample_bytes]
            gathering = own
        else:
            own = [self.gathered_bytes]
            gathering = [self.batch_rows * self.sample_bytes, *own, *(own if self.is_on_cpu else [])]
        rows = min(self.num_kept_steps * self.step_rows, self.num_samples)
        moments = [[earlier, *gathering]]
        if earlier:
            moments.append([earlier, *own, rows * self.sample_bytes])
        if self.is_on_cpu and self._is_converted:
            moments.append([rows * self.sample_bytes, rows * self.numpy_bytes, *(own if earlier else [])])
        return [*max(moments, key=sum), *([self._numpy_bytes_here] if self._numpy_bytes_here else [])]

    @property
    def host_bytes(self) -> int:
        """Bytes that one rank keeps of all samples on the host: as they come and as numpy has them, or while they are
        joined to those before, once more."""
        as_it_comes = self.sample_bytes if self._is_converted else 0
        return self.num_samples * (self.numpy_bytes + (as_it_comes if self.accumulation is None else self.numpy_bytes))

    @property
    def _is_converted(self) -> bool:
        return self.numpy_bytes != self.sample_bytes


def kept_outputs(
    evaluation: Evaluation, passes: Sequence[EvaluationPass], num_tokens: int, *, num_ranks: int, is_on_cpu: bool
) -> KeptOutputs:
    """``passes``: the forwards of a batch, of samples with ``num_tokens``; labels are kept too, as ids."""
    sample_bytes = numpy_bytes = 0
    if evaluation.kept is not Kept.LOSS:
        sample_bytes = numpy_bytes = 2 * num_tokens * ID_BYTES
    if evaluation.kept is Kept.LOGITS and passes:
        outputs = max(passes, key=lambda one: one.output_bytes)
        sample_bytes = outputs.output_bytes // evaluation.batch + num_tokens * ID_BYTES
        numpy_bytes = outputs.output_elements * DType.FLOAT32.num_bytes // evaluation.batch + num_tokens * ID_BYTES
    return KeptOutputs(
        sample_bytes=sample_bytes,
        numpy_bytes=numpy_bytes,
        batch_rows=evaluation.batch,
        num_samples=evaluation.kept_samples,
        num_ranks=num_ranks,
        accumulation=evaluation.accumulation,
        is_on_cpu=is_on_cpu,
    )


class Generated(NamedTuple):
    """What generating text takes at the most: the forward over the prompts, or the last token, when the keys and values
    of all tokens are there, and those of one layer once more while the new ones are joined to them. ``token``: the
    forward over it. ``samples``: tokens are drawn, and
    not those that are likeliest; ``suppresses``: but for some that never are, as scores of their own say
    (``SuppressTokensLogitsProcessor``)."""

    prompt: GenerationPass
    token: GenerationPass
    prompt_tokens: int
    new_tokens: int
    samples: bool = False
    suppresses: bool = False

    @property
    def cache_bytes(self) -> int:
        """Keys and values of all tokens, the last of which no other follows, states, and what encoders returned."""
        grown = self.prompt.cache_bytes * (self.prompt_tokens + self.new_tokens - 1) // self.prompt_tokens
        return grown + self.prompt.state_bytes + self.prompt.encoded_bytes

    @property
    def num_scores(self) -> int:
        """Tensors in float32 as large as the logits that the loop holds of a token: the logits, those without what it
        ``suppresses``, and the probabilities of those that it ``samples``."""
        return 1 + self.suppresses + self.samples

    @property
    def last_token(self) -> list[int]:
        """Bytes of the last token's forward beside the cache: a layer's keys or values, or what it makes, with what the
        loop holds of the token before (``num_scores``); and with that the logits of one position in 16 bit and in
        float32 (``_sample`` in transformers' ``generation/utils.py``)."""
        layer = self.prompt.layer_bytes // 2 * (self.prompt_tokens + self.new_tokens) // self.prompt_tokens
        before = 4 * self.num_scores
        made, _ = forward_rise(self.token.trace)
        return [max(layer, made) + self.prompt.logits * before, self.prompt.logits * (before + 2 + 4)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What is evaluated between steps: the forwards of a batch, none where no loss is computed, what is kept of them,
    and text that is generated."""

    passes: Sequence[EvaluationPass]
    kept: KeptOutputs
    generated: Generated | None = None

    def phases(self, engine: Engine, tracker: PeakTracker, training: Trace) -> tuple[Phase, ...]:
        """The phases of an evaluation after a step of ``engine``, which ``tracker`` has followed until now, and leaves
        as it was. ``training`` is the trace of the micro batch before: under ZeRO-3 prefetch counts on its order of
        modules here too."""
        phases: list[Phase] = []
        if self.passes:
            phases.append(self._evaluation(engine, tracker, training))
        if self.generated is not None:
            phases.append(_generation(self.generated, engine, tracker, training))
        return tuple(phases)

    def models(self, engine: Engine, training: Trace, sink: Sink) -> Sequence["GatheredForEvaluation"]:
        """ZeRO-3's whole weights of each forward, and of that over prompts, as ``sink`` is told; empty where none are
        gathered."""
        first = self.own_traces[0]
        gathered = GatheredForEvaluation.of(engine, order_of(first, training), sink=sink)
        return [] if gathered is None else [gathered] * len(self.own_traces)

    def begins_forward(self, place: int) -> bool:
        """Whether the pass of this ``place`` begins with weights as the one before has left them."""
        del place
        return True

    def is_of_copy(self, place: int) -> bool:
        """Whether the pass of this ``place`` is a second model's."""
        del place
        return False

    @property
    def own_traces(self) -> list[Trace]:
        """The forwards of the trained model."""
        generated = [] if self.generated is None else [self.generated.prompt.trace]
        return [*(one.trace for one in self.passes), *generated]

    def _evaluation(self, engine: Engine, tracker: PeakTracker, training: Trace) -> Phase:
        tracker.forget_batch()
        gathered: GatheredForEvaluation | None = None
        tracker.start_phase()
        tracker.allocate("kept", Component.LOGITS, sum(self.kept.held))
        for gathered in _forwards(engine, training, self.passes[0].trace):
            for one in self.passes:
                if gathered is not None:
                    gathered.begin_forward(tracker)
                run_forward(one.trace, engine, tracker, gathered)
                tracker.forget_batch()
        tracker.allocate("batch", Component.ACTIVATIONS, self.passes[0].input_bytes)
        tracker.transient(Component.LOGITS, [max(one.output_bytes for one in self.passes)])
        tracker.free("kept")
        tracker.transient(Component.LOGITS, self.kept.moved)
        tracker.free("batch")
        phase = Phase(name=EVALUATION, resident=tracker.now(), peak=tracker.peak)
        end_evaluation(engine, tracker, gathered)
        return phase


def gathers_behind(engine: Engine, training: Trace, evaluated: Evaluated) -> "GatherReplay | None":
    """What ZeRO-3 gathers in the micro batch that follows an evaluation; None where that is as ever. Forwards that call
    modules which training leaves out are not followed so: DeepSpeed loses the order of modules twice. Of DoRA's with
    dropout training calls more."""
    traces = evaluated.own_traces
    follows = all(order_of(trace, training) is training for trace in traces)
    if not engine.gathers_weights or not follows or not traces:
        return None
    return engine.gather_replay_behind(training, traces)


def _forwards(engine: Engine, training: Trace, own: Trace) -> Iterator["GatheredForEvaluation | None"]:
    """Whole weights of forwards that follow each other, until the next is as the last was.

    What the first leaves whole is there while the second runs, FSDP2's head too. Where modules are left out that
    ``training`` runs, the first loses its order, the second records one, ``own``, and the third goes by that.
    """
    gathered = GatheredForEvaluation.of(engine, order_of(own, training))
    has_another_order = gathered is not None and engine.recipe.evaluates_by_another_order
    if gathered is not None and has_another_order:
        gathered.weights.lose_order_at_adapters()
    yield gathered
    if has_another_order:
        yield GatheredForEvaluation.of(engine, own, loses_order=True)
        yield GatheredForEvaluation.of(engine, own)
    elif gathered is not None or engine.follows_layers:
        yield gathered


def lacked_among(engine: Engine) -> int:
    """The ranks that share each secondary partition (hpZ), if trained weights have none until their next release."""
    return engine.recipe.hpz if engine.lacks_secondary else 1


def end_evaluation(engine: Engine, tracker: PeakTracker, gathered: "GatheredForEvaluation | None") -> None:
    """What follows begins: a checkpoint, say. The tracker's peak is of that beginning (DeepSpeed 0.19.8
    ``checkpoint_event_prologue`` in ``zero/stage3.py``)."""
    tracker.start_phase()
    if gathered is not None:
        order = [(id(entry.parameter), entry.layer) for entry in engine.table.entries]
        tracker.gather(0, gathered.weights.partition_all(order))
        engine.restore_secondary()
    engine.end_evaluation()


def _generation(generated: Generated, engine: Engine, tracker: PeakTracker, training: Trace) -> Phase:
    """The forward over prompts and the last token, which gathers what a forward does under ZeRO-3."""
    tracker.forget_batch()
    gathered: GatheredForEvaluation | None = None
    tracker.start_phase()
    for gathered in _forwards(engine, training, generated.prompt.trace):
        if gathered is not None:
            gathered.begin_forward(tracker)
        tracker.forget_batch()
        run_forward(generated.prompt.trace, engine, tracker, gathered)
    tracker.forget_batch()
    tracker.allocate("cache", Component.ACTIVATIONS, generated.cache_bytes)
    layer, logits = generated.last_token
    tracker.transient(Component.ACTIVATIONS, [layer])
    tracker.transient(Component.LOGITS, [logits])
    tracker.free("cache")
    phase = Phase(name=GENERATION, resident=tracker.now(), peak=tracker.peak)
    end_evaluation(engine, tracker, gathered)
    return phase


def with_evaluation(
    bounds: tuple[int, int], engine: Engine, states: ModelStates, evaluated: Evaluated | None
) -> tuple[int, int]:
    """``bounds`` of the tensors of training, at the least and at the most, with those of what is evaluated beside it,
    without workspaces."""
    if evaluated is None:
        return bounds
    kept, generated = evaluated.kept, evaluated.generated
    moments: list[int] = []
    if evaluated.passes:
        moments = [sum(kept.held) + forward_rise(one.trace)[0] for one in evaluated.passes]
        moments.append(evaluated.passes[0].input_bytes + sum(kept.moved))
    if generated is not None:
        moments += [forward_rise(generated.prompt.trace)[0], generated.cache_bytes + max(generated.last_token)]
    highest = max(moments, default=0)
    least = states.resident.total + highest
    profile = MicroBatchProfile.of_forward(highest)
    whole_weights = engine.micro_batch_bound(profile, accumulates=False)[0] - highest
    # Twice, as a forward that no backward follows leaves weights whole to the next.
    most = least + states.beside.total + 2 * whole_weights
    return max(bounds[0], least), max(bounds[1], most)


def run_forward(trace: Trace, engine: Engine, tracker: PeakTracker, gathered: "GatheredForEvaluation | None") -> None:
    engine.begin_forward(trace)
    for run in trace.schedule:
        engine.enter(run, is_backward=False)
        for event in trace.sections[run.key].forward:
            if isinstance(event, Span):
                tracker.span(event)
            elif gathered is not None:
                tracker.gather(*gathered.bytes_at(event, run))
        engine.leave(run, is_backward=False)
    engine.end_forward()


def order_of(evaluated: Trace, training: Trace) -> Trace:
    """The trace whose order of modules ZeRO-3 goes by in evaluation: that of training, or, where a module is called
    that training does not call, such as Gemma 3n's Linears that it reads and clamps, its own. The first forward finds
    the order of training to be wrong then, and the next one records another (``trace_prologue`` and ``reset_step`` in
    deepspeed 0.19.8 ``zero/partitioned_param_coordinator.py``)."""
    return training if _called(evaluated) <= _called(training) else evaluated


def _called(trace: Trace) -> set[int]:
    """The modules that gather weights."""
    forwards = (section.forward for section in trace.sections.values())
    return {id(event.module) for forward in forwards for event in forward if isinstance(event, Fetch)}


class GatheredForEvaluation(NamedTuple):
    """ZeRO-3's whole weights. ``hosts``: ranks that bring a part of every gather from their host, 0 if none does.
    ``beside_bytes``: what another model has left whole."""

    weights: "GatheredWeights"
    hosts: int
    beside_bytes: int = 0

    @staticmethod
    def of(
        engine: Engine,
        trace: Trace,
        *,
        loses_order: bool = False,
        small: SmallWeights = SmallWeights.WHOLE,
        sink: Sink = NULL_SINK,
    ) -> "GatheredForEvaluation | None":
        """The weights that are gathered, in the order of ``trace``, as ``sink`` is told; ``loses_order``: DeepSpeed
        does not know it. ``small``: what small weights do."""
        weights = engine.gathered_weights(trace, sink, Begun(Lost.AT_START if loses_order else Lost.NEVER, small))
        if weights is None:
            return None
        weights.begin_evaluation(secondary_among=lacked_among(engine))
        return GatheredForEvaluation(
            weights, engine.num_ranks if engine.offloads_weights and engine.num_ranks > 1 else 0
        )

    def begin_forward(self, tracker: PeakTracker) -> None:
        """What the forward before has under way arrives, and goes."""
        most = self.weights.begin_forward()
        tracker.gather(self.weights.live_bytes + self.beside_bytes, most + self.beside_bytes)

    def bytes_at(self, event: Event, run: Run) -> tuple[int, int]:
        """What is whole after an event, and at the most during it, shards from the host included."""
        from vlmplan.engines.coordinator.gathered_weights import notify

        most = notify(self.weights, event, run)
        if self.hosts and isinstance(event, Fetch | Prefetch):
            most = max([most, *(live + flat // self.hosts for live, flat in self.weights.gathers)])
        return self.weights.live_bytes + self.beside_bytes, most + self.beside_bytes
