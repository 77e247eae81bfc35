"""GRPO's phases before the steps that train: weights are sent, answers generated, log-probabilities looked up.

    (sync) → generate → (reference) → forward → backward → step

Source: TRL 1.16 ``grpo_trainer.py`` (``_generate_and_score_completions``, ``_get_per_token_logps_and_entropies``) and
``generation/vllm_generation.py``; verl does the same in this order. They run between steps, where gradients are gone
and optimizer states are there, or between two micro batches of a step.
"""

from dataclasses import dataclass, replace

from vlmplan.architecture.trace import Trace
from vlmplan.engines.coordinator.module_order import SmallWeights
from vlmplan.engines.engine import Engine
from vlmplan.engines.events import NULL_SINK, Component, Sink
from vlmplan.memory.evaluation import Evaluated, GatheredForEvaluation, Generated, run_forward
from vlmplan.memory.peaks import PeakTracker
from vlmplan.memory.phases import Phase
from vlmplan.phase_names import GENERATE, REFERENCE, SYNC
from vlmplan.recipe.task_choices import IdleOffload


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(Evaluated):
    """``passes`` are forwards of one micro batch for log-probabilities; ``has_copy``: the last of them is a second
    model's, ``leaves_adapters_out``: it runs without adapters.
    ``generated`` is what transformers generates, None where vLLM does. ``whole_bytes``: weights that are gathered
    for that (``ds3_gather_for_generation``). ``sync_bytes``: what sending weights to vLLM takes beside them; None
    where nothing is sent. ``is_within_step``: answers are made between two micro batches of a step too, beside the
    gradients of the earlier ones.
    """

    has_copy: bool = False
    leaves_adapters_out: bool = False
    num_scored: int = 2
    """Micro batches of a generation, of which each is looked up by itself."""
    whole_bytes: int = 0
    sync_bytes: int | None = None
    is_within_step: bool = False
    takes_turns: bool = False
    """Both forwards of a micro batch run before those of the next one, as ms-swift has it: each goes by the order of
    the one before it, or, where that was without adapters, by none."""
    evaluation: Evaluated | None = None
    """What is evaluated between steps."""
    idle_offload: IdleOffload = IdleOffload.NONE
    """What is on the host meanwhile: weights while answers are generated, the optimizer's states all the time."""

    @property
    def runs_once(self) -> bool:
        """Whether each pass runs for one micro batch of a generation."""
        return self.num_scored == 1

    def phases(self, engine: Engine, tracker: PeakTracker, training: Trace) -> tuple[Phase, ...]:
        """The phases of a rollout after a step of ``engine``, as ``Evaluated`` has them, in their order before the next
        one."""
        tracker.forget_batch()
        found: list[Phase] = []
        if self.sync_bytes is not None:
            tracker.start_phase()
            tracker.transient(Component.WEIGHTS, [self.sync_bytes])
            found.append(Phase(name=SYNC, resident=tracker.now(), peak=tracker.peak))
        found.append(generate(self.generated, self.whole_bytes, engine, tracker, GENERATE))
        if self.passes:
            found.append(self._look_up(engine, tracker, training))
        return tuple(map(self._without_idle, found))

    def _without_idle(self, phase: Phase) -> Phase:
        gone = [name for name, is_so in self._idle(phase.name).items() if is_so]
        without: dict[str, int] = dict.fromkeys(gone, 0)
        return replace(phase, resident=phase.resident._replace(**without), peak=phase.peak._replace(**without))

    def _idle(self, name: str) -> dict[str, bool]:
        """verl@b178a3cd ``fsdp_workers.py``: ``rollout_mode`` and ``compute_log_prob`` load weights, ``update_actor``
        both. The weights' dictionary that is sent keeps them until all are."""
        return {
            "weights": self.idle_offload.has_weights and name == GENERATE,
            "optimizer_states": self.idle_offload.has_optimizer,
        }

    def gathered(
        self, place: int, engine: Engine, training: Trace, sink: Sink = NULL_SINK
    ) -> GatheredForEvaluation | None:
        """ZeRO-3's whole weights of the pass of this ``place``, as ``sink`` is told."""
        one, is_last = self.passes[place], place == len(self.passes) - 1
        is_alone = (self.leaves_adapters_out or self.has_copy) and is_last
        if self.takes_turns and not (self.has_copy and is_last):
            loses_order = self.leaves_adapters_out or self.runs_once
            return GatheredForEvaluation.of(engine, one.trace, loses_order=loses_order, sink=sink)
        is_behind_generate = self.whole_bytes > 0 and not self.is_of_copy(place)
        loses_order = self.runs_once and (is_behind_generate or (self.leaves_adapters_out and is_last))
        order = one.trace if is_alone or is_behind_generate else training
        small = SmallWeights.BY_ORDER if is_behind_generate else SmallWeights.WHOLE
        found = GatheredForEvaluation.of(engine, order, loses_order=loses_order, small=small, sink=sink)
        if found is not None:
            found.weights.keeps_looked_at = self.leaves_adapters_out and is_last and not self.runs_once
        return found

    def is_of_copy(self, place: int) -> bool:
        """As ``Evaluated`` has it."""
        return self.has_copy and place == len(self.passes) - 1

    def _look_up(self, engine: Engine, tracker: PeakTracker, training: Trace) -> Phase:
        """A second model's weights are gathered by themselves, as they come. So are the model's own without adapters,
        whose order the first of several forwards records (``engines.coordinator.module_order``)."""
        tracker.start_phase()
        for place, one in enumerate(self.passes):
            gathered = self.gathered(place, engine, training)
            keeps = gathered is not None and gathered.weights.keeps_looked_at
            engine.runs_second_model = self.is_of_copy(place)
            for _ in range(2 if keeps and self.num_scored > 2 else 1):  # the first of all records an order
                if gathered is not None:
                    gathered.begin_forward(tracker)
                run_forward(one.trace, engine, tracker, gathered)
                tracker.forget_batch()
            tracker.gather(0, 0)
        engine.runs_second_model = False
        phase = Phase(name=REFERENCE, resident=tracker.now(), peak=tracker.peak)
        engine.end_evaluation()
        return phase


def generate(generated: Generated | None, whole_bytes: int, engine: Engine, tracker: PeakTracker, name: str) -> Phase:
    """The phase ``name``, in which transformers generates answers; None: vLLM does, of which the tracker knows
    nothing."""
    tracker.start_phase()
    if generated is not None:
        _gather_all(whole_bytes, engine, tracker)
        run_forward(generated.prompt.trace, engine, tracker, None)
        tracker.forget_batch()
        tracker.allocate("prompts", Component.ACTIVATIONS, generated.prompt.input_bytes)
        tracker.allocate("cache", Component.ACTIVATIONS, generated.cache_bytes)
        layer, logits = generated.last_token
        tracker.transient(Component.ACTIVATIONS, [layer])
        tracker.transient(Component.LOGITS, [logits])
        for owner in ("cache", "prompts", "whole"):
            tracker.free(owner)
    return Phase(name=name, resident=tracker.now(), peak=tracker.peak)


def _gather_all(whole_bytes: int, engine: Engine, tracker: PeakTracker) -> None:
    """All weights at once: where this rank's shards are on the host, all of them are on the GPU until the gathers are
    done (``_allgather_params_coalesced`` in deepspeed 0.19.8 ``zero/partition_parameters.py``)."""
    if engine.offloads_weights and engine.num_ranks > 1:
        tracker.allocate("shards", Component.WEIGHTS, whole_bytes // engine.num_ranks)
    tracker.allocate("whole", Component.WEIGHTS, whole_bytes)
    tracker.free("shards")
