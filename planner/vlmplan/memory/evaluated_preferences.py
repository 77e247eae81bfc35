"""The evaluation of DPO: the model's forward over a batch of pairs, and the reference's over the same.

    step → evaluation → save

Source: TRL 1.16 ``dpo_trainer.py``: ``prediction_step`` runs ``compute_loss`` without gradients, whose reference comes
when the model's own forward has left its log-probabilities alone. Of a batch the loss is kept, and nothing else, unless
there are metrics to compute.
"""

from dataclasses import dataclass

from vlmplan.architecture.trace import Trace
from vlmplan.engines.engine import Engine
from vlmplan.memory.evaluation import Evaluated, GatheredForEvaluation, end_evaluation, run_forward
from vlmplan.memory.peaks import PeakTracker
from vlmplan.memory.phases import Phase
from vlmplan.phase_names import EVALUATION

NUM_BATCHES = 2
"""The second finds what the first leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPreferences(Evaluated):
    """``passes`` are the model's forward, and the reference's where it runs here; ``has_copy``: that is of a second
    model, ``leaves_adapters_out``: of the same without adapters."""

    has_copy: bool = False
    leaves_adapters_out: bool = False

    @property
    def own_traces(self) -> list[Trace]:
        """The forwards of the trained model. Those with and without adapters lose DeepSpeed's order, as training does,
        and leave nothing to the step that follows."""
        if self.leaves_adapters_out:
            return []
        return [one.trace for one in (self.passes[:1] if self.has_copy else self.passes)]

    def phases(self, engine: Engine, tracker: PeakTracker, training: Trace) -> tuple[Phase, ...]:
        """The phase of an evaluation, as ``Evaluated`` has it."""
        tracker.forget_batch()
        tracker.start_phase()
        models = self._gathered(engine, training)
        for _ in range(NUM_BATCHES):
            for place, one in enumerate(self.passes):
                gathered = models[place] if models else None
                if gathered is not None:
                    others = {id(model.weights): model.weights.live_bytes for model in models}
                    others.pop(id(gathered.weights))
                    gathered = gathered._replace(beside_bytes=sum(others.values()))
                    gathered.weights.begin_forward()
                run_forward(one.trace, engine, tracker, gathered)
                tracker.forget_batch()
        phase = Phase(name=EVALUATION, resident=tracker.now(), peak=tracker.peak)
        end_evaluation(engine, tracker, models[0] if models else None)
        return (phase,)

    def _gathered(self, engine: Engine, training: Trace) -> list[GatheredForEvaluation]:
        """ZeRO-3's whole weights of each forward: a second model has its own; empty where none are gathered."""
        if self.leaves_adapters_out:
            alone = [GatheredForEvaluation.of(engine, one.trace, loses_order=True) for one in self.passes]
            return [one for one in alone if one is not None]
        own = GatheredForEvaluation.of(engine, training)
        if own is None:
            return []
        copy = GatheredForEvaluation.of(engine, self.passes[-1].trace) if self.has_copy else None
        return [own] if len(self.passes) == 1 else [own, copy or own]
