"""What a plan decides of a trainer of TRL's: optimizer, schedule, types, checkpoints and what is measured.

``planned_trainer`` makes a class of one of TRL's trainers and ``PlannedTrainer``; names of methods are transformers'
(``trainer.py`` 5.23) and TRL's (``grpo_trainer.py`` 1.16).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import AutocastKwargs
from torch.optim.lr_scheduler import LambdaLR

from vlmplan.errors import InputError
from vlmplan.launch.run_steps import task_steps_per_epoch
from vlmplan.phase_names import INIT, REFERENCE, RESUME, SAVE, SCORE
from vlmplan.plan import Plan
from vlmplan.recipe import Recipe
from vlmplan.recipe.reference_adapters import copies_adapters
from vlmplan.units import counted
from vlmplan_trainer.engines.optimizers import make_optimizer, set_learning_rate, trained_of
from vlmplan_trainer.engines.ranks import RanksHere
from vlmplan_trainer.loop import Position, Rates
from vlmplan_trainer.models.base_model import base_model
from vlmplan_trainer.models.checkpointing import set_checkpointing
from vlmplan_trainer.models.parts import Parts
from vlmplan_trainer.models.weight_types import REFERENCE_ADAPTER
from vlmplan_trainer.options import Options
from vlmplan_trainer.saving.best import BestResult
from vlmplan_trainer.saving.checkpoint import published
from vlmplan_trainer.saving.random_state import own_numbers
from vlmplan_trainer.trl_training.phases import TaskPhases

TRAINED_ADAPTER = "default"
"""The adapters that TRL is given, of which ``REFERENCE_ADAPTER`` is its copy (``dpo_trainer.py`` 1.16)."""


@dataclass(slots=True, kw_only=True)
class TokenCounts:
    """The tokens of the micro batches of a step on this rank."""

    num_tokens: int = 0
    num_answer_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class PlannedRun:
    """What the trainer of a run needs of it. ``position`` is where training is, as checkpoints keep it. ``best``: what
    is kept of the best evaluation; None: nothing is."""

    plan: Plan
    options: Options
    rates: Rates
    phases: TaskPhases
    signature: Mapping[str, Any]
    position: Position
    counts: TokenCounts
    ranks: RanksHere
    best: BestResult | None = None

    @property
    def stops_early(self) -> bool:
        """Whether too many evaluations in a row have found no lower loss."""
        return self.best is not None and self.best.found.ends_run


def planned_trainer(kind: type) -> Callable[..., Any]:
    """A trainer of TRL's that keeps to a plan; it takes a ``planned`` more."""
    return type(f"Planned{kind.__name__}", (PlannedTrainer, kind), {})


class PlannedTrainer:
    """The part of such a trainer that is not TRL's."""

    def __init__(self, *arguments: Any, planned: PlannedRun, **named: Any) -> None:
        self.planned = planned
        with keeping_adapters(named["model"], planned.plan.recipe):
            super().__init__(*arguments, **named)
        trainer = self._trainer
        if not planned.plan.recipe.caches_casts:
            trainer.accelerator.autocast_handler = AutocastKwargs(cache_enabled=False)

    @property
    def _trainer(self) -> Any:
        """The whole of it."""
        return self

    def _send_telemetry(self) -> None:
        """Nobody is told of this run."""

    def create_model_card(self, *arguments: Any, **named: Any) -> None:
        """The result has its own."""

    # -- the optimizer ---------------------------------------------------------------------------------------------

    def create_optimizer(self, model: Any = None) -> Any:
        trainer = self._trainer
        if trainer.optimizer is None:
            planned = self.planned
            trained = trained_of(trainer.model if model is None else model)
            weight_decay = planned.options.weight_decay
            trainer.optimizer = make_optimizer(trained, planned.plan.recipe, weight_decay=weight_decay)
            set_learning_rate(trainer.optimizer, planned.rates.peak)
        return trainer.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """What is made last before a checkpoint is read, where there is one."""
        trainer, planned = self._trainer, self.planned
        if planned.position.step:
            planned.phases.switch(RESUME)
        if trainer.lr_scheduler is None:
            rates = planned.rates
            part = lambda step: rates.at(step) / rates.peak if rates.peak else 1.0  # noqa: E731 - pickled nowhere
            trainer.lr_scheduler = LambdaLR(trainer.optimizer if optimizer is None else optimizer, part)
            trainer._created_lr_scheduler = True
        return trainer.lr_scheduler

    def _wrap_model(self, *arguments: Any, **named: Any) -> Any:
        wrapped = super()._wrap_model(*arguments, **named)  # pyright: ignore[reportAttributeAccessIssue]
        handler = self._trainer.accelerator.ddp_handler
        if handler is not None:
            handler.gradient_as_bucket_view = self.planned.plan.recipe.gradient_as_bucket_view
        return wrapped

    def _precompute_ref_logps(self, *arguments: Any, **named: Any) -> Any:
        """The engine that computes them is not left around the model that is trained by another one."""
        with self.planned.phases.precomputing():
            found = super()._precompute_ref_logps(*arguments, **named)  # pyright: ignore[reportAttributeAccessIssue]
            trainer = self._trainer
            if trainer._precompute_engine is not None and self.planned.plan.recipe.zero_stage == 3:
                leave_sharded_model(trainer._precompute_engine)
                trainer._precompute_engine = None
            return found

    def _get_train_sampler(self, *arguments: Any, **named: Any) -> Any:
        sampler: Any = super()._get_train_sampler(*arguments, **named)  # pyright: ignore[reportAttributeAccessIssue]
        plan, task = self.planned.plan, self.planned.plan.recipe.task
        if task is not None and task.is_grpo:
            steps_per_epoch = task_steps_per_epoch(plan, task, len(sampler.data_source))
            skip_epochs(sampler, self.planned.position.step // steps_per_epoch)
        return sampler

    def _run_epoch(self, *arguments: Any, **named: Any) -> None:
        """The rest of an epoch, if the run has a step left: the Trainer counts them only behind one (transformers 5.23
        ``trainer.py``), so that what was ended behind its last step would do another."""
        trainer = self._trainer
        if trainer.state.global_step < self.planned.rates.num_steps and not self.planned.stops_early:
            super()._run_epoch(*arguments, **named)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            trainer.control.should_training_stop = True

    # -- phases ----------------------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        with self.planned.phases.rollout() if self._trainer.model.training else nullcontext():
            return super()._generate_and_score_completions(inputs)  # pyright: ignore[reportAttributeAccessIssue]

    def _generate(self, *arguments: Any, **named: Any) -> Any:
        with nullcontext() if self._trainer.model.training else self.planned.phases.generating():
            return super()._generate(*arguments, **named)  # pyright: ignore[reportAttributeAccessIssue]

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled() and self._trainer.model.training:
            self.planned.phases.switch(REFERENCE)
        return super()._get_per_token_logps_and_entropies(*arguments, **named)  # pyright: ignore[reportAttributeAccessIssue]

    def _calculate_rewards(self, *arguments: Any, **named: Any) -> Any:
        if self._trainer.model.training:
            self.planned.phases.switch(SCORE)
        return super()._calculate_rewards(*arguments, **named)  # pyright: ignore[reportAttributeAccessIssue]

    def evaluation_loop(self, *arguments: Any, **named: Any) -> Any:
        planned, step = self.planned, self._trainer.state.global_step
        ranks = planned.ranks
        # Answers of GRPO are drawn: those of training stay the same whether and when a run evaluates.
        with planned.phases.evaluating(), own_numbers(ranks.device, planned.options.seed, step, ranks.rank):
            return super().evaluation_loop(*arguments, **named)  # pyright: ignore[reportAttributeAccessIssue]

    def compute_loss(self, model: Any, inputs: Mapping[str, Any], *arguments: Any, **named: Any) -> Any:
        if self.planned.plan.recipe.scores_rows and torch.is_grad_enabled():
            self.planned.counts.num_tokens += int(inputs["attention_mask"].sum())
        return super().compute_loss(model, inputs, *arguments, **named)  # pyright: ignore[reportAttributeAccessIssue]

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any], *arguments: Any, **named: Any) -> Any:
        if torch.is_grad_enabled():  # evaluation has none
            self._count(inputs)
            self.planned.phases.begin_loss()
        return super()._compute_loss(model, inputs, *arguments, **named)  # pyright: ignore[reportAttributeAccessIssue]

    def _count(self, inputs: Mapping[str, Any]) -> None:
        counts, answers = self.planned.counts, int(inputs["completion_mask"].sum())
        counts.num_answer_tokens += answers
        whole = inputs.get("attention_mask")
        counts.num_tokens += answers + int(inputs["prompt_mask"].sum()) if whole is None else int(whole.sum())

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """A checkpoint as TRL writes it, published as every checkpoint of this trainer is."""
        planned, arguments = self.planned, self._trainer.args
        save: Any = super()._save_checkpoint  # pyright: ignore[reportAttributeAccessIssue]

        def write(folder: Path) -> None:
            arguments.output_dir = str(folder)
            save(model, trial)

        with planned.phases.meter.phase(SAVE):
            published(
                planned.ranks,
                planned.options.output_dir,
                planned.position,
                write,
                keep_last=planned.options.keep_last,
                run=planned.signature,
            )
        if planned.best is not None:
            planned.best.has_checkpoint()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """DeepSpeed's own files of a checkpoint have the weights, and are what is read of it: no second copy is."""
        if not (_internal_call and self.planned.plan.recipe.uses_deepspeed):
            super().save_model(output_dir, _internal_call)  # pyright: ignore[reportAttributeAccessIssue]

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Weights under the names that they have in the model, by which a checkpoint is read: ``save_pretrained`` alone
        has the names of the files on the hub, of which no weight of some models is found again."""
        write: Any = super()._save  # pyright: ignore[reportAttributeAccessIssue]
        model = self._trainer.model
        # Of adapters the reference's are read again where the trained ones started.
        has_adapters = self.planned.plan.recipe.trains_adapters
        more = {"selected_adapters": [model.active_adapter]} if has_adapters else {"save_original_format": False}
        model.save_pretrained = partial(type(model).save_pretrained, model, **more)
        try:
            write(output_dir, state_dict)
        finally:
            del model.save_pretrained

    def _load_from_checkpoint(self, *arguments: Any, **named: Any) -> None:
        self.planned.phases.switch(RESUME)
        super()._load_from_checkpoint(*arguments, **named)  # pyright: ignore[reportAttributeAccessIssue]
        self.planned.phases.switch(INIT)

    def _issue_warnings_after_load(self, result: Any) -> None:
        """Every weight of a checkpoint is one of the model's and every one of the model's is read, or nothing is."""
        missing = set(result.missing_keys) - set(self._trainer.model.all_tied_weights_keys)
        for what, names in (("lacks", missing), ("has, unlike the model,", set(result.unexpected_keys))):
            if names:
                raise InputError(f"--resume: the checkpoint {what} {counted(len(names), 'weight')}: {min(names)} first")


def skip_epochs(sampler: Any, num_epochs: int) -> None:
    """Let a sampler of GRPO's prompts begin with the order that it has after so many epochs: it draws one after the
    other, and begins with the first wherever a run goes on (``RepeatSampler`` in ``trl/trainer/utils.py`` 1.16)."""
    for _ in range(num_epochs):
        torch.randperm(sampler.num_samples, generator=sampler.generator)


@contextmanager
def keeping_adapters(model: Any, recipe: Recipe) -> Iterator[None]:
    """TRL's trainers take adapters that they find in a model for trained ones, and make a copy of them for the
    reference (``model.add_adapter("ref", ...)``), which one that is the model without adapters has no use for. Within,
    no such copy is made, which under ZeRO-3 would be whole on every GPU, embeddings and head that are trained with
    them too; what TRL copies then, it copies onto itself."""
    if not recipe.trains_adapters or recipe.changes_base or copies_adapters(recipe):
        yield
        return
    own = model.get_parameter
    model.add_adapter = lambda name, config: None
    model.get_parameter = lambda name: own(name.replace(f".{REFERENCE_ADAPTER}.", f".{TRAINED_ADAPTER}."))
    try:
        yield
    finally:
        del model.add_adapter, model.get_parameter


def leave_sharded_model(engine: Any) -> None:
    """Take stage 3's hooks of ``engine`` away from its model.

    TRL keeps it (``_precompute_engine``). A later engine's hooks would come on top of its own, so that two coordinators
    gather and release the same weights, and backward would go through the first one alone: deepspeed 0.19.8
    (``_register_deepspeed_module`` in ``zero/parameter_offload.py``) makes a module's ``pre_bwd_fn`` and
    ``post_bwd_fn`` only where it has none.
    """
    engine.destroy()
    for module in engine.module.modules():
        module.__dict__.pop("pre_bwd_fn", None)
        module.__dict__.pop("post_bwd_fn", None)


def keeping_checkpointing(model: Any, plan: Plan) -> None:
    """Checkpoints of activations that TRL switches off and on again around what needs no gradients come back as the
    plan has them, not in every layer (``disable_gradient_checkpointing`` in ``trl/models/utils.py``)."""
    base = base_model(model)
    parts = Parts(base)

    def enable(*arguments: Any, **named: Any) -> None:
        set_checkpointing(base, parts, plan.recipe)

    base.gradient_checkpointing_enable = enable
