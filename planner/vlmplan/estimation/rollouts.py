"""What GRPO runs before it trains: text that transformers generates, forwards for log-probabilities, and vLLM."""

from collections.abc import Callable, Hashable
from dataclasses import replace

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import (
    EvaluationPass,
    GenerationPass,
    evaluation_pass,
    generation_pass,
)
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.storage_log import LoggingTape, expanded
from vlmplan.architecture.tape import Tape
from vlmplan.engines.parameters import ParameterTable
from vlmplan.estimation.micro_batch import tape_for
from vlmplan.estimation.moved_to_host import moved_to_host
from vlmplan.estimation.references import ReferenceRuns, copy_dtype, idle_bytes
from vlmplan.estimation.sent_weights import sync_bytes, whole_bytes
from vlmplan.hardware import Gpu
from vlmplan.memory.evaluated_answers import EvaluatedAnswers
from vlmplan.memory.evaluation import Generated, KeptOutputs
from vlmplan.memory.inference_engine import InferenceEngine, inference_weights, shared_bytes
from vlmplan.memory.replayed_tokens import GenerationOperations
from vlmplan.memory.reservation import EvaluatedOperations
from vlmplan.memory.rollout import Rollout
from vlmplan.memory.rollout_reservation import RolloutOperations
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, Batching, LossKind, Part
from vlmplan.recipe.reference_adapters import runs_without_adapters
from vlmplan.recipe.task_choices import Generation, IdleOffload, Reference, TaskTrainer
from vlmplan.timing import EvaluationWork, GenerationWork, RolloutWork

NOTHING_KEPT = KeptOutputs(sample_bytes=0, numpy_bytes=0, batch_rows=1, num_samples=1, num_ranks=1, accumulation=None)


def scoring_rows(recipe: Recipe) -> int:
    """Answers in a forward that looks up log-probabilities."""
    assert recipe.task is not None
    at_once = recipe.micro_batches_at_once if recipe.task.is_of_unsloth else 1
    return recipe.task.scoring_batch or at_once * recipe.micro_batch


class RolloutRuns:
    """Rollouts of a model on rows of ``seq_len`` tokens. The others are as ``ReferenceRuns`` has them."""

    def __init__(
        self,
        model: Model,
        table: ParameterTable,
        seq_len: int,
        batch_of: Callable[[Recipe], Batch],
        key_of: Callable[[Recipe, AttentionBackend], tuple[Hashable, ...]],
    ) -> None:
        self._model, self._table, self._seq_len = model, table, seq_len
        self._batch_of, self._key_of = batch_of, key_of
        self._references = ReferenceRuns(model, batch_of, key_of)
        self._generations: dict[Hashable, GenerationPass] = {}
        self._passes: dict[Hashable, EvaluationPass] = {}

    def operations(self, recipe: Recipe, backend: AttentionBackend, *, num_ranks: int) -> RolloutOperations:
        """The same on GPUs, with every storage that it makes and frees."""
        found = self.rollout(recipe, backend, num_ranks=num_ranks, is_on_cpu=False, kind=LoggingTape)
        passes = [(one.trace, expanded(one.trace)) for one in found.passes]
        evaluated = None if found.evaluation is None else _generation(found.evaluation.generated)
        return RolloutOperations(found, passes, _generation(found.generated), evaluated)

    def evaluated_operations(
        self, recipe: Recipe, backend: AttentionBackend, *, num_ranks: int
    ) -> EvaluatedOperations | None:
        """The forwards of a batch of the evaluation, as ``operations`` has those of training."""
        found = self._evaluated(recipe, backend, num_ranks=num_ranks, is_on_cpu=False, kind=LoggingTape)
        if found is None:
            return None
        return EvaluatedOperations(found, [(one.trace, expanded(one.trace)) for one in found.passes], last_token=())

    def rollout(
        self,
        recipe: Recipe,
        backend: AttentionBackend,
        *,
        num_ranks: int,
        is_on_cpu: bool,
        kind: type[Tape] = Tape,
    ) -> Rollout:
        """What the recipe, which is one of GRPO, runs on tapes of this ``kind`` before its steps on one of
        ``num_ranks`` GPUs."""
        task = recipe.task
        assert task is not None
        rows = recipe.micro_batches_at_once * recipe.micro_batch
        generated = self._generated(recipe, backend, rows, is_on_cpu=is_on_cpu, kind=kind)
        return Rollout(
            passes=self._looked_up(recipe, backend, kind=kind),
            kept=NOTHING_KEPT,
            has_copy=recipe.reference is Reference.COPY,
            leaves_adapters_out=recipe.reference.is_trained_model,
            num_scored=recipe.micro_batches_at_once,
            generated=generated,
            whole_bytes=whole_bytes(self._table, recipe, num_ranks) if generated is not None else 0,
            sync_bytes=None
            if generated is not None or task.is_of_unsloth
            else sync_bytes(self._table, recipe, num_ranks),
            idle_offload=IdleOffload.NONE if task.is_of_ms_swift else task.idle_offload,
            takes_turns=task.is_of_ms_swift,
            is_within_step=recipe.micro_batches_per_generation % recipe.grad_accum != 0,
            evaluation=self._evaluated(recipe, backend, num_ranks=num_ranks, is_on_cpu=is_on_cpu, kind=kind),
        )

    def _evaluated(
        self,
        recipe: Recipe,
        backend: AttentionBackend,
        *,
        num_ranks: int,
        is_on_cpu: bool,
        kind: type[Tape],
    ) -> EvaluatedAnswers | None:
        """What is evaluated between steps: of all rows of a batch what a rollout makes, and then the model's own
        forward."""
        if recipe.evaluation is None:
            return None
        sized = recipe.with_changes(micro_batch=recipe.evaluation.batch)
        rows = sized.micro_batch
        generated = self._generated(sized, backend, rows, is_on_cpu=is_on_cpu, evaluates=True, kind=kind)
        gathered = whole_bytes(self._table, recipe, num_ranks) if generated is not None else 0
        return EvaluatedAnswers(
            passes=[
                *self._looked_up(sized, backend, evaluates=True, kind=kind),
                self._pass(sized, backend, Reference.NONE, evaluates=True, kind=kind),
            ],
            kept=NOTHING_KEPT,
            has_copy=recipe.reference is Reference.COPY,
            leaves_adapters_out=recipe.reference.is_trained_model,
            reference=int(recipe.looks_up_old_probabilities),
            num_batches=1 if gathered else 2,  # to generate, all weights are gathered, and none is left
            begins_without_order=bool(gathered),  # ``add_hooks`` in trl 1.16 models/utils.py
            generated=generated,
            whole_bytes=gathered,
        )

    def _generated(
        self,
        recipe: Recipe,
        backend: AttentionBackend,
        rows: int,
        *,
        is_on_cpu: bool,
        evaluates: bool = False,
        kind: type[Tape] = Tape,
    ) -> Generated | None:
        """``rows`` answers that transformers generates, in ``evaluates`` without what belongs to training; None where
        vLLM does. Of a model that sees TRL never lets a place of an image be drawn (``suppress_tokens`` in TRL 1.16
        ``grpo_trainer.py``)."""
        task = recipe.task
        assert task is not None
        if task.generation is not Generation.TRANSFORMERS:
            return None
        prompt = self._generation(recipe, backend, rows, evaluates=evaluates, kind=kind)
        answer = task.answer_tokens(self._seq_len)
        return Generated(
            prompt=prompt,
            token=self._generation(
                recipe, backend, rows, num_tokens=1, evaluates=evaluates, is_on_cpu=is_on_cpu, kind=kind
            ),
            prompt_tokens=self._seq_len - answer,
            new_tokens=answer,
            samples=True,
            suppresses=task.trainer is TaskTrainer.TRL and Part.VISION in self._model.PARTS.values(),
        )

    def inference_engine(self, recipe: Recipe, backend: AttentionBackend, gpu: Gpu) -> InferenceEngine | None:
        """vLLM on one of the training GPUs; None where it has no part of them."""
        task = recipe.task
        if task is None or not task.uses_vllm_here:
            return None
        one = self._generation(recipe, backend, 1)
        prompt_tokens = self._seq_len - task.answer_tokens(self._seq_len)
        shared = task.vllm_tensor_parallel
        return InferenceEngine(
            total_bytes=gpu.cuda_visible_bytes or gpu.usable_bytes,
            weight_bytes=inference_weights(self._table, recipe).num_bytes,
            sequence_bytes=(one.cache_bytes * self._seq_len // prompt_tokens + one.state_bytes) // shared,
            num_sequences=recipe.micro_batch * recipe.micro_batches_at_once * shared,
            vocabulary=one.logits,
            utilization=task.vllm_memory,
            sleep_level=task.vllm_sleep_level,
            shared_bytes=shared_bytes(self._table) if task.is_of_unsloth else 0,
        )

    def work(self, recipe: Recipe, backend: AttentionBackend, *, num_ranks: int) -> RolloutWork:
        """What the same takes in time on one of ``num_ranks`` GPUs."""
        rows = recipe.micro_batches_at_once * recipe.micro_batch
        return self._work(recipe, backend, rows, num_ranks)

    def evaluation_work(self, recipe: Recipe, backend: AttentionBackend, *, num_ranks: int) -> EvaluationWork:
        """The same of a batch of an evaluation: its rows are generated and scored at once, then comes the loss. vLLM is
        taken to get the weights for each batch, where TRL sends them for the first of an evaluation."""
        assert recipe.evaluation is not None
        sized = recipe.with_changes(micro_batch=recipe.evaluation.batch)
        work = self._work(sized, backend, sized.micro_batch, num_ranks, evaluates=True)
        return EvaluationWork(
            passes=[self._pass(sized, backend, Reference.NONE, evaluates=True).trace],
            whole_bytes=work.whole_bytes,
            rollout=work._replace(num_micro_batches=sized.grad_accum),  # one batch has all of it
        )

    def _work(
        self, recipe: Recipe, backend: AttentionBackend, rows: int, num_ranks: int, *, evaluates: bool = False
    ) -> RolloutWork:
        """What generating and scoring ``rows`` answers takes; ``evaluates``: without what belongs to training."""
        task = recipe.task
        assert task is not None
        gathered = whole_bytes(self._table, recipe, num_ranks)
        weight_bytes = inference_weights(self._table, recipe).num_bytes
        is_sharded = recipe.zero_stage == 3 and num_ranks > 1
        slept_bytes = 2 * weight_bytes if task.uses_vllm_here and task.vllm_sleep_level == 1 else 0
        return RolloutWork(
            num_micro_batches=recipe.micro_batches_per_generation,
            num_passes=-(-rows // scoring_rows(recipe)),
            generation=self._generation_work(recipe, backend, rows, evaluates=evaluates),
            passes=[one.trace for one in self._looked_up(recipe, backend, evaluates=evaluates)],
            whole_bytes=gathered,
            sent_bytes=weight_bytes if task.uses_vllm_here and not task.is_of_unsloth else 0,
            slept_bytes=slept_bytes + self._moved_bytes(recipe, num_ranks),
            reward_flops=2 * task.reward_params * rows * self._seq_len,
            reward_bytes=task.reward_params * recipe.precision.dtype.num_bytes if is_sharded else 0,
        )

    def _moved_bytes(self, recipe: Recipe, num_ranks: int) -> int:
        """What goes to the host and comes back for one rollout and the steps on it: weights to be sent, to look up
        log-probabilities and to be trained, the optimizer's states to be trained alone; what ms-swift moves once."""
        assert recipe.task is not None
        weights, states = idle_bytes(self._table, recipe, num_ranks)
        moved = moved_to_host(self._table, recipe, num_ranks)
        return 2 * (3 * weights + states) + 2 * moved.host_bytes

    def _generation_work(
        self, recipe: Recipe, backend: AttentionBackend, rows: int, *, evaluates: bool
    ) -> GenerationWork | None:
        """What generating ``rows`` answers takes on each GPU; GPUs that share vLLM's weights generate theirs
        together."""
        task = recipe.task
        assert task is not None
        if task.generation is Generation.SERVER:
            return None
        is_vllm = task.generation is Generation.VLLM
        num_sharing = task.vllm_tensor_parallel if is_vllm else 1
        prompt = self._generation(recipe, backend, num_sharing * rows, is_merged=is_vllm, evaluates=evaluates)
        answer = task.answer_tokens(self._seq_len)
        prompt_tokens = self._seq_len - answer
        return GenerationWork(
            prompt=prompt.trace,
            token=self._generation(
                recipe, backend, num_sharing * rows, num_tokens=1, is_merged=is_vllm, evaluates=evaluates
            ).trace,
            token_cache_bytes=prompt.cache_bytes // prompt_tokens,
            prompt_tokens=prompt_tokens,
            new_tokens=answer,
            is_vllm=is_vllm,
            num_sharing=num_sharing,
        )

    def _generation(
        self,
        recipe: Recipe,
        backend: AttentionBackend,
        rows: int,
        *,
        num_tokens: int | None = None,
        is_merged: bool = False,
        evaluates: bool = False,
        is_on_cpu: bool = False,
        kind: type[Tape] = Tape,
    ) -> GenerationPass:
        """The forward over ``rows`` prompts, or over ``num_tokens`` of each without their images; ``is_merged``:
        adapters are part of the weights. ``evaluates``: the model is not in its mode of training."""
        task = recipe.task
        assert task is not None
        padded = {"batching": Batching.PADDED}  # as vLLM has its rows, whatever training makes of them
        alike = recipe.with_changes(micro_batch=1, **padded)
        of_forward = (kind, rows, num_tokens, is_merged, evaluates, is_on_cpu, recipe.caches_casts)
        key = ("generation", *of_forward, *self._key_of(alike, backend))
        if key not in self._generations:
            recipe = recipe.with_changes(**padded)
            prompt_tokens = self._seq_len - task.answer_tokens(self._seq_len)
            batch = replace(self._batch_of(recipe), micro_batch=rows, num_tokens=prompt_tokens, scored_tokens=None)
            if num_tokens is not None:
                batch = replace(batch, num_tokens=num_tokens, images_per_sample=0, image=None)
            tape = tape_for(kind, recipe, is_evaluating=True)
            tape.switches_adapters_off = is_merged
            tape.stays_in_training_mode = not is_merged and not evaluates and not task.is_of_ms_swift
            if recipe.trains_adapters:  # peft's ``generate`` is the base model's, around whose forward is no autocast
                tape.autocast = None
            is_past_prompt = num_tokens is not None and not is_merged and not is_on_cpu
            self._generations[key] = generation_pass(self._model, tape, batch, backend, is_past_prompt=is_past_prompt)
        return self._generations[key]

    def _looked_up(
        self, recipe: Recipe, backend: AttentionBackend, *, evaluates: bool = False, kind: type[Tape] = Tape
    ) -> list[EvaluationPass]:
        """Old log-probabilities, and those of the reference."""
        references = [Reference.NONE] if recipe.looks_up_old_probabilities else []
        is_before = recipe.task is not None and not recipe.task.runs_reference_within
        references += [recipe.reference] if is_before and recipe.reference is not Reference.NONE else []
        return [self._pass(recipe, backend, reference, evaluates=evaluates, kind=kind) for reference in references]

    def _pass(
        self,
        recipe: Recipe,
        backend: AttentionBackend,
        reference: Reference,
        *,
        evaluates: bool = False,
        kind: type[Tape] = Tape,
    ) -> EvaluationPass:
        task = recipe.task
        assert task is not None
        unchecked = recipe.with_changes(activation_checkpointing=False, vision_activation_checkpointing=False)
        if task.scoring_batch is not None or task.is_of_unsloth:
            recipe = unchecked = unchecked.with_changes(micro_batch=scoring_rows(recipe))
        follows_another = task.is_of_axolotl and recipe.micro_batches_at_once > 1
        dtype = copy_dtype(recipe) if reference is Reference.COPY else None
        if task.is_of_axolotl and reference is Reference.COPY:  # which TRL loads by itself
            backend = replace(backend, implementation=AttentionImplementation.SDPA.value)
        key = (kind, reference, dtype, follows_another, evaluates, *self._key_of(unchecked, backend))
        if key not in self._passes:
            tape = tape_for(kind, recipe, is_evaluating=True)
            tape.switches_adapters_off = reference is Reference.ADAPTER_OFF and runs_without_adapters(recipe)
            is_in_training_mode = reference is not Reference.COPY and not task.is_of_verl
            tape.stays_in_training_mode = is_in_training_mode and not evaluates
            model = self._references.model_of(reference, dtype)
            self._passes[key] = evaluation_pass(
                model,
                tape,
                self._batch_of(recipe),
                backend,
                loss=LossKind.TRL if task.trainer is TaskTrainer.TRL else recipe.loss,
                with_entropy=task.has_entropies and reference is Reference.NONE,  # fused: with it anyway
                follows_another=follows_another,
            )
        return self._passes[key]


def _generation(generated: Generated | None) -> GenerationOperations | None:
    """What forwards over prompts and tokens make and free; None where transformers does not generate."""
    if generated is None:
        return None
    return GenerationOperations(expanded(generated.prompt.trace), expanded(generated.token.trace))
