"""What a recipe's evaluation runs on one model: forwards of a batch, and text that is generated, each run once."""

from collections.abc import Callable, Hashable
from dataclasses import replace

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import (
    EvaluationPass,
    GenerationPass,
    evaluation_pass,
    generation_pass,
    preference_pass,
)
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.storage_log import LoggingTape, expanded
from vlmplan.architecture.tape import Tape
from vlmplan.estimation.micro_batch import tape_for
from vlmplan.estimation.references import ReferenceRuns
from vlmplan.memory.evaluated_preferences import EvaluatedPreferences
from vlmplan.memory.evaluation import Evaluated, Generated, kept_outputs
from vlmplan.memory.reservation import EvaluatedOperations
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Batching, LossKind
from vlmplan.recipe.evaluation import Kept
from vlmplan.recipe.task_choices import Reference
from vlmplan.timing import EvaluationWork, GenerationWork


class EvaluationRuns:
    """Evaluations of a model on samples of ``seq_len`` tokens.

    ``batch_of`` makes the batch of a recipe, ``key_of`` says what its forward depends on.
    """

    def __init__(
        self,
        model: Model,
        seq_len: int,
        batch_of: Callable[[Recipe], Batch],
        key_of: Callable[[Recipe, AttentionBackend], tuple[Hashable, ...]],
        references: ReferenceRuns,
    ) -> None:
        self._model, self._seq_len, self._batch_of, self._key_of = model, seq_len, batch_of, key_of
        self._references = references
        self._evaluations: dict[Hashable, EvaluationPass] = {}
        self._generations: dict[Hashable, GenerationPass] = {}

    def evaluated(
        self,
        recipe: Recipe,
        backend: AttentionBackend,
        *,
        num_ranks: int,
        is_on_cpu: bool,
        kind: type[Tape] = Tape,
    ) -> Evaluated | None:
        """What the recipe's evaluation runs, on tapes of this ``kind``, and keeps on one of ``num_ranks`` GPUs; None
        where there is none."""
        if recipe.evaluation is None:
            return None
        if recipe.task is not None and recipe.task.has_own_loss:
            passes = [self._answers(kind, recipe, backend)]
            kept = kept_outputs(recipe.evaluation, passes, self._seq_len, num_ranks=num_ranks, is_on_cpu=is_on_cpu)
            return EvaluatedPreferences(passes=passes, kept=kept, reference=0)
        passes = self._passes(kind, recipe, backend)
        if recipe.task is not None:
            return self._of_preferences(kind, recipe, backend, passes, num_ranks=num_ranks, is_on_cpu=is_on_cpu)
        kept = kept_outputs(recipe.evaluation, passes, self._seq_len, num_ranks=num_ranks, is_on_cpu=is_on_cpu)
        return Evaluated(
            passes=passes, kept=kept, generated=self._generated(kind, recipe, backend, is_on_cpu=is_on_cpu)
        )

    def _of_preferences(
        self,
        kind: type[Tape],
        recipe: Recipe,
        backend: AttentionBackend,
        passes: list[EvaluationPass],
        *,
        num_ranks: int,
        is_on_cpu: bool,
    ) -> EvaluatedPreferences:
        """``passes`` over pairs, and behind them the reference's of the same batch, where there is one."""
        assert recipe.evaluation is not None
        sized = recipe.with_changes(micro_batch=recipe.evaluation.batch)
        reference = self._references.evaluation(kind, sized, backend)
        kept = kept_outputs(recipe.evaluation, passes, self._seq_len, num_ranks=num_ranks, is_on_cpu=is_on_cpu)
        leaves_adapters_out = recipe.reference.is_trained_model
        has_kl = recipe.task is not None and recipe.task.estimates_kl and leaves_adapters_out
        runs = passes if reference is None else [*passes, reference]
        return EvaluatedPreferences(
            passes=[one for one in runs for _ in range(1 + has_kl)],
            kept=kept,
            has_copy=recipe.reference is Reference.COPY,
            leaves_adapters_out=leaves_adapters_out,
            has_kl=has_kl,
        )

    def _answers(self, kind: type[Tape], recipe: Recipe, backend: AttentionBackend) -> EvaluationPass:
        """A batch of an evaluation of other trainers than TRL, which runs the loss as in training: one pass with the
        reference's forward in it, beside what the loss holds until that has run."""
        assert recipe.evaluation is not None
        sized = recipe.with_changes(micro_batch=recipe.evaluation.batch)
        key = (kind, "answers", recipe.caches_casts, *self._key_of(sized, backend))
        if key not in self._evaluations:
            tape = tape_for(kind, recipe, is_evaluating=True)
            own = preference_pass(self._model, tape, self._batch_of(sized), backend, loss=recipe.loss)
            trace = self._references.around(own.trace, kind, sized, backend)
            self._evaluations[key] = own._replace(trace=trace)
        return self._evaluations[key]

    def work(self, recipe: Recipe, backend: AttentionBackend, *, whole_bytes: int) -> EvaluationWork:
        """What a batch of the recipe's evaluation takes in time; weights of ``whole_bytes`` are gathered for each
        forward."""
        task = recipe.task
        if task is not None and task.has_own_loss:
            alone = self._answers(Tape, recipe, backend)
            return EvaluationWork(passes=[alone.trace], num_runs=1, whole_bytes=whole_bytes)
        passes = self._passes(Tape, recipe, backend)
        if task is not None:
            assert recipe.evaluation is not None
            sized = recipe.with_changes(micro_batch=recipe.evaluation.batch)
            reference = self._references.evaluation(Tape, sized, backend)
            passes = passes if reference is None else [*passes, reference]
        return EvaluationWork(
            passes=[one.trace for one in passes],
            num_runs=2 if task is not None and task.estimates_kl else 1,
            whole_bytes=whole_bytes,
            generation=self._generation_work(recipe, backend),
        )

    def _generation_work(self, recipe: Recipe, backend: AttentionBackend) -> GenerationWork | None:
        evaluation = recipe.evaluation
        if evaluation is None or not evaluation.new_tokens:
            return None
        sized = _sized_to_generate(recipe)
        prompt = self._prompt(Tape, recipe, sized, backend)
        return GenerationWork(
            prompt=prompt.trace,
            token=self._token(recipe, sized, backend).trace,
            token_cache_bytes=prompt.cache_bytes // self._seq_len,
            prompt_tokens=self._seq_len,
            new_tokens=evaluation.new_tokens,
        )

    def operations(
        self, recipe: Recipe, backend: AttentionBackend, *, num_ranks: int, is_on_cpu: bool
    ) -> EvaluatedOperations | None:
        """What the evaluation of a recipe runs, with every storage that it makes and frees."""
        found = self.evaluated(recipe, backend, num_ranks=num_ranks, is_on_cpu=is_on_cpu, kind=LoggingTape)
        if found is None:
            return None
        traces = [one.trace for one in found.passes]
        last_token: list[int] = []
        if found.generated is not None:
            traces.append(found.generated.prompt.trace)
            last_token = [found.generated.cache_bytes, max(found.generated.last_token)]
        return EvaluatedOperations(found, [(trace, expanded(trace)) for trace in traces], last_token)

    def _generated(
        self, kind: type[Tape], recipe: Recipe, backend: AttentionBackend, *, is_on_cpu: bool
    ) -> Generated | None:
        """Text that the recipe's evaluation generates behind prompts as long as samples, a row for each beam."""
        evaluation = recipe.evaluation
        if evaluation is None or not evaluation.new_tokens:
            return None
        sized = _sized_to_generate(recipe)
        prompt = self._prompt(kind, recipe, sized, backend)
        token = self._token(recipe, sized, backend, is_on_cpu=is_on_cpu)
        return Generated(prompt=prompt, token=token, prompt_tokens=self._seq_len, new_tokens=evaluation.new_tokens)

    def _prompt(self, kind: type[Tape], recipe: Recipe, sized: Recipe, backend: AttentionBackend) -> GenerationPass:
        """The forward over the prompts of ``sized``."""
        key = ("generation", kind, recipe.caches_casts, *self._key_of(sized, backend))
        if key not in self._generations:
            tape = tape_for(kind, recipe, is_evaluating=True)
            self._generations[key] = generation_pass(self._model, tape, self._batch_of(sized), backend)
        return self._generations[key]

    def _token(
        self, recipe: Recipe, sized: Recipe, backend: AttentionBackend, *, is_on_cpu: bool = False
    ) -> GenerationPass:
        """The forward over a generated token of each row."""
        key = ("token", is_on_cpu, recipe.caches_casts, *self._key_of(sized, backend))
        if key not in self._generations:
            tape = tape_for(Tape, recipe, is_evaluating=True)
            batch = replace(self._batch_of(sized), num_tokens=1, images_per_sample=0, image=None)
            self._generations[key] = generation_pass(self._model, tape, batch, backend, is_past_prompt=not is_on_cpu)
        return self._generations[key]

    def _passes(self, kind: type[Tape], recipe: Recipe, backend: AttentionBackend) -> list[EvaluationPass]:
        """The forwards of a batch of evaluation. Where logits are wanted, TRL makes them by another, and Liger's class
        all of them, with the model's own loss. For the loss alone transformers' Trainer tells it to skip them
        (``evaluation_loop``), and trainers that apply Liger themselves do not (``Evaluation.fuses_loss``)."""
        evaluation = recipe.evaluation
        assert evaluation is not None
        losses: list[LossKind | None] = [recipe.loss] if evaluation.computes_loss else []
        if losses and recipe.loss is LossKind.TRL and evaluation.kept is not Kept.LOSS:
            losses.append(None)
        makes_logits = evaluation.kept is not Kept.LOSS or not evaluation.fuses_loss
        if losses and recipe.loss is LossKind.LIGER and makes_logits:
            losses = [LossKind.MODEL]
        found: list[EvaluationPass] = []
        for loss in losses:
            sized = recipe.with_changes(micro_batch=evaluation.batch)
            key = (kind, loss, recipe.caches_casts, *self._key_of(sized, backend))
            if key not in self._evaluations:
                tape = tape_for(kind, recipe, is_evaluating=True)
                self._evaluations[key] = evaluation_pass(self._model, tape, self._batch_of(sized), backend, loss=loss)
            found.append(self._evaluations[key])
        return found


def _sized_to_generate(recipe: Recipe) -> Recipe:
    """The recipe with a row for each beam of each sample of a batch. Prompts are padded on the left."""
    assert recipe.evaluation is not None
    rows = recipe.evaluation.batch * recipe.evaluation.beams
    return recipe.with_changes(micro_batch=rows, batching=Batching.PADDED)
