"""The evaluation of pairs: the model's forward over a batch of them, and in DPO the reference's over the same.

    step → evaluation → save

Source: TRL 1.16 ``dpo_trainer.py``: ``prediction_step`` runs ``compute_loss`` without gradients, whose reference comes
when the model's own forward has left its log-probabilities alone. Of a batch the loss is kept, and nothing else, unless
there are metrics to compute. Reward models have no reference (``reward_trainer.py``).
"""

from dataclasses import dataclass

from vlmplan.architecture.reference import with_kl_forward, with_reference
from vlmplan.architecture.trace import Trace
from vlmplan.engines.engine import Engine
from vlmplan.engines.events import NULL_SINK, Sink
from vlmplan.memory.evaluation import Evaluated, GatheredForEvaluation, end_evaluation, run_forward
from vlmplan.memory.peaks import PeakTracker
from vlmplan.memory.phases import Phase
from vlmplan.phase_names import EVALUATION


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPreferences(Evaluated):
    """``passes`` are the model's forward, and the reference's where it runs here; ``has_copy``: that is of a second
    model, ``leaves_adapters_out``: of the same without adapters. ``reference``: its place among them. Of
    ``num_batches`` the second finds what the first leaves."""

    has_copy: bool = False
    leaves_adapters_out: bool = False
    reference: int = 1
    num_batches: int = 2
    has_kl: bool = False
    """The model runs over answers to other prompts, then over its own, and without adapters over both again (KTO)."""
    begins_without_order: bool = False
    """Whether DeepSpeed has lost the order of modules when a batch begins, and records it in the first forward."""

    @property
    def own_traces(self) -> list[Trace]:
        """The forwards of the trained model. Those with and without adapters lose DeepSpeed's order, as training does,
        and leave nothing to the step that follows."""
        if self.leaves_adapters_out:
            return []
        return [one.trace for place, one in enumerate(self.passes) if not self.is_of_copy(place)]

    def phases(self, engine: Engine, tracker: PeakTracker, training: Trace) -> tuple[Phase, ...]:
        """The phase of an evaluation, as ``Evaluated`` has it."""
        return (self.evaluate(engine, tracker, training),)

    def evaluate(self, engine: Engine, tracker: PeakTracker, training: Trace) -> Phase:
        """The forwards of its batches."""
        tracker.forget_batch()
        tracker.start_phase()
        models = self.models(engine, training)
        for _ in range(self.num_batches):
            for place, one in enumerate(self.passes):
                gathered = models[place] if models else None
                if gathered is not None:
                    others = {id(model.weights): model.weights.live_bytes for model in models}
                    others.pop(id(gathered.weights))
                    gathered = gathered._replace(beside_bytes=sum(others.values()))
                    if self.begins_forward(place):
                        gathered.begin_forward(tracker)
                engine.runs_second_model = self.is_of_copy(place)
                run_forward(one.trace, engine, tracker, gathered)
                tracker.forget_batch()
        engine.runs_second_model = False
        phase = Phase(name=EVALUATION, resident=tracker.now(), peak=tracker.peak)
        end_evaluation(engine, tracker, models[0 if self.reference else -1] if models else None)
        return phase

    def begins_forward(self, place: int) -> bool:
        """As ``Evaluated`` has it."""
        return place not in self._places_within

    def is_of_copy(self, place: int) -> bool:
        """As ``Evaluated`` has it."""
        return self.has_copy and place == self.reference

    @property
    def _places_within(self) -> range:
        """The forwards that follow the first of a trace with and without adapters."""
        return range(1, (4 if self.has_kl else 2) if self.leaves_adapters_out else 1)

    def _together(self) -> Trace:
        """Forwards with and without adapters."""
        first, second = self.passes[0].trace, self.passes[self._places_within[-1]].trace
        both = with_reference(first, second, is_itself=True, times=2 if self.has_kl else 1)
        return with_kl_forward(both, first) if self.has_kl else both

    def models(self, engine: Engine, training: Trace, sink: Sink = NULL_SINK) -> list[GatheredForEvaluation]:
        """ZeRO-3's whole weights of each forward, as ``sink`` is told: a second model has its own; empty where none are
        gathered. Of those with and without adapters the second goes by the order that the first has recorded, until the
        first adapter."""

        def found_by(trace: Trace, *, loses_order: bool = False) -> GatheredForEvaluation | None:
            return GatheredForEvaluation.of(engine, trace, loses_order=loses_order, sink=sink)

        if self.leaves_adapters_out:
            together = found_by(self._together())
            others = self.passes[len(self._places_within) + 1 :]
            alone = [found_by(one.trace, loses_order=True) for one in others]
            found = [together] * (len(self._places_within) + 1) + alone
            return [one for one in found if one is not None]
        own = found_by(training)
        if own is None:
            return []
        models = [own] * len(self.passes)
        if self.begins_without_order:
            traces = [one.trace for one in self.passes]
            recorded = [found_by(trace, loses_order=not number) for number, trace in enumerate(traces)]
            models = [one or own for one in recorded]
        if self.has_copy:
            models[self.reference] = found_by(self.passes[self.reference].trace) or own
        return models
