"""How many samples, rows and micro batches a recipe takes at once."""

from dataclasses import dataclass

from vlmplan.recipe.settings import RecipeSettings
from vlmplan.recipe.task_choices import Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts(RecipeSettings):
    """The settings, and what a step, a rank and a generation of answers take of samples."""

    def samples_per_step(self, num_gpus: int) -> int:
        """Samples of an optimizer step over all ranks: the global batch."""
        return self.micro_batch * self.grad_accum * num_gpus // self.sequence_parallel

    @property
    def eval_batch(self) -> int:
        """Samples of a batch that a rank evaluates: those of a micro batch where no evaluation is planned."""
        return self.micro_batch if self.evaluation is None else self.evaluation.batch

    @property
    def eval_generations(self) -> int:
        """Answers to each sample of what is evaluated: of GRPO as many as are asked for there, else as in training."""
        if self.task is None or not self.task.is_grpo:
            return 1
        asked = None if self.evaluation is None else self.evaluation.generations
        return self.task.num_generations if asked is None else asked

    def samples_evaluated_at_once(self, num_gpus: int) -> int:
        """Samples of a batch that all ranks evaluate together; of GRPO prompts."""
        return self.eval_batch * num_gpus // self.sequence_parallel // self.eval_generations

    def rows_per_step(self, num_gpus: int) -> int:
        """Rows of the model's input of an optimizer step over all ranks, whose tokens a speed counts."""
        return self.samples_per_step(num_gpus) * (1 if self.task is None else self.task.rows_per_sample)

    @property
    def rows(self) -> int:
        """Rows of the model's input in one micro batch on one GPU."""
        return self.micro_batch if self.task is None else self.micro_batch * self.task.rows_per_sample

    @property
    def scores_rows(self) -> bool:
        """Whether the model scores rows, by a head that knows no words (a reward model)."""
        return self.task is not None and self.task.is_reward

    @property
    def micro_batches_at_once(self) -> int:
        """Micro batches whose answers GRPO generates together."""
        assert self.task is not None
        return self.grad_accum if self.task.steps_per_generation is None else self.task.steps_per_generation

    @property
    def micro_batches_per_generation(self) -> int:
        """Micro batches that GRPO trains from one generation of answers to the next (``generate_every`` of TRL's
        ``grpo_trainer.py``)."""
        assert self.task is not None
        return self.micro_batches_at_once * self.task.num_iterations

    @property
    def looks_up_old_probabilities(self) -> bool:
        """Whether GRPO looks up log-probabilities of answers before it trains on them, where those are not of the model
        as it is or not by itself (TRL 1.16: with vLLM unless ``vllm_importance_sampling_correction`` is off, as it is
        with Unsloth 2026.10.9, and where a step trains on no whole generations; ms-swift 4.6 ``_prepare_batch_inputs``:
        always)."""
        assert self.task is not None
        if self.task.is_of_ms_swift:
            return True
        is_of_others = self.task.generation is not Generation.TRANSFORMERS and not self.task.is_of_unsloth
        return is_of_others or self.grad_accum % self.micro_batches_per_generation != 0
