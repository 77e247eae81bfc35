"""The replay of the caching allocator for GRPO: answers come before each step, as TRL has them.

Sources: TRL 1.16 ``grpo_trainer.py``, transformers 5.23 ``generation/utils.py`` and ``cache_utils.py``.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from vlmplan.memory.allocator import Block
from vlmplan.memory.blocks import BlockLog
from vlmplan.memory.evaluated_answers import EvaluatedAnswers
from vlmplan.memory.evaluation import Generated
from vlmplan.memory.gathered_blocks import forward_changes
from vlmplan.memory.replayed_steps import MicroBatch
from vlmplan.memory.replayed_tokens import GenerationOperations, ReplayedTokens
from vlmplan.memory.reservation import Reservation
from vlmplan.memory.rollout import Rollout


class RolloutOperations(NamedTuple):
    """What a ``rollout`` runs: forwards for log-probabilities, and those that generate, None where vLLM does.
    ``evaluated_generation``: those over a batch of its evaluation."""

    rollout: Rollout
    passes: Sequence[MicroBatch]
    generation: GenerationOperations | None
    evaluated_generation: GenerationOperations | None = None


class RolloutReservation(Reservation):
    """``answers``: tensors of micro batches of answers beside the one that is trained on. ``awake``: bytes that vLLM
    takes beside those that it has while the trainer trains, when weights are sent to it and when it generates."""

    def __init__(
        self,
        *args: Any,
        rollout: RolloutOperations,
        answers: Sequence[int],
        awake: tuple[int, int] = (0, 0),
        **options: Any,
    ) -> None:
        """The others are as ``Reservation`` has them."""
        super().__init__(*args, **options)
        self._rollout, self._sizes, self._awake = rollout, answers, awake
        self._answers: list[Block] = []

    def begin_step(self) -> None:
        """As ``Reservation`` has it, behind a rollout: where answers last for several steps, before each of them."""
        self._roll_out(self._rollout)
        super().begin_step()

    def begin_evaluated(self) -> None:
        """Answers to the prompts of a batch of the evaluation, beside those of training."""
        evaluated = self._rollout.rollout.evaluation
        assert isinstance(evaluated, EvaluatedAnswers)
        self._make_answers(
            self._rollout.evaluated_generation, evaluated.generated, gathers_all=evaluated.whole_bytes > 0
        )

    def _roll_out(self, found: RolloutOperations) -> None:
        """Answers, then their log-probabilities. Those before stay until the new ones are there."""
        self._free_left()
        rollout, log = found.rollout, BlockLog()
        self._make_answers(found.generation, rollout.generated, gathers_all=rollout.whole_bytes > 0)
        answers = [self.allocator.allocate(num_bytes) for num_bytes in self._sizes]
        for place, (_, operations) in enumerate(found.passes):
            model = rollout.gathered(place, self._engine, self._trace, log)
            self._engine.runs_second_model = self._evaluates_copy = rollout.is_of_copy(place)
            self._replay_alone(operations, forward_changes(model and model.weights, operations, log, begins=True))
            log.free_all()
            self._change(log.taken())
        self._engine.runs_second_model = self._evaluates_copy = False
        self._engine.end_evaluation()
        for block in self._answers:
            self.allocator.free(block)
        self._answers = answers

    def _make_answers(
        self, operations: GenerationOperations | None, generated: Generated | None, *, gathers_all: bool
    ) -> None:
        """By transformers, or by vLLM. ``gathers_all``: beside whole weights."""
        self._use_vllm(self._rollout.rollout.sync_bytes or 0)
        if operations is None or generated is None:
            return
        whole = [one.parameter.num_bytes for one in self._table.entries if gathers_all]
        gathered = [self.allocator.allocate(num_bytes) for num_bytes in whole]
        self._generate(operations, generated)
        for block in gathered:
            self.allocator.free(block)

    def _use_vllm(self, sync_bytes: int) -> None:
        """An engine that sleeps wakes up and goes to sleep again with an empty cache beside it (``empty_cache`` in
        TRL's ``vllm_generation.py``, and vLLM's own ``sleep``)."""
        for awake, sent in zip(self._awake, (sync_bytes, 0), strict=True):
            if awake:
                self.allocator.empty_cache()
            blocks = [self.allocator.allocate(num_bytes) for num_bytes in (awake, sent) if num_bytes]
            for block in blocks:
                self.allocator.free(block)
            if awake:
                self.allocator.empty_cache()

    def _generate(self, operations: GenerationOperations, generated: Generated) -> None:
        """The forward over prompts leaves keys and values, and states; every token makes keys and values anew, one
        longer, and then logits in 16 bit and in float32 and what tokens are drawn by (``_sample`` in transformers 5.23
        ``generation/utils.py``)."""
        allocate, free = self.allocator.allocate, self.allocator.free
        self._replay_forward(operations.prompt, iter(()))
        inputs = {handle for handle, _ in operations.prompt.batch}
        cached = [(self._storages.pop(handle), grows) for handle, grows in self._cached.items()]
        self._cached.clear()
        self._free_storages([handle for handle in self._storages if handle not in inputs])
        of_cache, states = ([block for block, grows in cached if grows is wanted] for wanted in (True, False))
        tokens = ReplayedTokens(operations.token, of_cache, generated.prompt_tokens, self.allocator)
        held: list[Block] = []
        for number in range(generated.new_tokens):
            if number:
                tokens.run(number)
            narrow, before, held = allocate(2 * generated.prompt.logits), held, []
            for place in range(generated.num_scores):
                held.append(allocate(4 * generated.prompt.logits))
                if before:
                    free(before[place])
            free(narrow)
        for block in (*held, *of_cache, *states):
            free(block)
        self._free_storages(self._storages)
