"""What a model runs on the samples of one workload, each kept once it has run."""

from collections.abc import Callable, Hashable

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.storage_log import Operations
from vlmplan.architecture.trace import Trace
from vlmplan.engines.parameters import ParameterTable
from vlmplan.estimation.evaluating import EvaluationRuns
from vlmplan.estimation.micro_batch import batch_of
from vlmplan.estimation.references import ReferenceRuns
from vlmplan.estimation.rollouts import RolloutRuns
from vlmplan.memory.reserved_peaks import ReservedPeaks
from vlmplan.recipe import Recipe
from vlmplan.sample_audio import sample_audio
from vlmplan.sample_images import sample_image
from vlmplan.workload import Workload


class SampleRuns:
    """All of an estimator that depends on its workload's samples: traces, with every storage where a replay needs
    that, and the runs of references, of evaluation and of rollouts.

    ``key_of`` says what a run of a recipe depends on, apart from the samples.
    """

    def __init__(
        self,
        workload: Workload,
        model: Model,
        table: ParameterTable,
        key_of: Callable[[Recipe, AttentionBackend], tuple[Hashable, ...]],
    ) -> None:
        """Raises InputError where the model takes no images or sounds as the workload has them."""
        self.workload = workload
        self._image, self._audio = sample_image(workload), sample_audio(workload)
        self.traces: dict[Hashable, Trace] = {}
        self.operations: dict[Hashable, tuple[Trace, Operations]] = {}
        self.replays = ReservedPeaks()
        self.references = ReferenceRuns(model, self.batch, key_of)
        self.evaluations = EvaluationRuns(model, workload.seq_len, self.batch, key_of, self.references)
        self.rollouts = RolloutRuns(model, table, workload.seq_len, self.batch, key_of)

    def batch(self, recipe: Recipe) -> Batch:
        """One micro batch of the recipe."""
        return batch_of(recipe, self.workload, self._image, self._audio)
