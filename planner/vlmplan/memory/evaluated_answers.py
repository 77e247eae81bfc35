"""The evaluation of GRPO: answers are generated batch by batch, and their log-probabilities made without gradients.

    step → generation → evaluation → save

Source: TRL 1.16 ``grpo_trainer.py``: ``prediction_step`` generates answers to its batch (``_prepare_inputs``), looks up
what a rollout looks up of them, and computes the loss, all rows at a time. Of a batch the loss is kept. Answers of
training stay (``_buffered_inputs``). vLLM gets weights of every step once.
"""

from dataclasses import dataclass

from vlmplan.architecture.trace import Trace
from vlmplan.engines.engine import Engine
from vlmplan.memory.evaluated_preferences import EvaluatedPreferences
from vlmplan.memory.peaks import PeakTracker
from vlmplan.memory.phases import Phase
from vlmplan.memory.rollout import generate
from vlmplan.phase_names import GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedAnswers(EvaluatedPreferences):
    """``passes`` are forwards of all rows of a batch: for old log-probabilities, where these are looked up, the
    reference's where there is one, and the model's own. ``generated`` is None where vLLM generates; ``whole_bytes`` as
    ``Rollout`` has them."""

    whole_bytes: int = 0

    def phases(self, engine: Engine, tracker: PeakTracker, training: Trace) -> tuple[Phase, ...]:
        """Both phases of an evaluation, as ``Evaluated`` has them."""
        tracker.forget_batch()
        generation = generate(self.generated, self.whole_bytes, engine, tracker, GENERATION)
        return generation, self.evaluate(engine, tracker, training)
