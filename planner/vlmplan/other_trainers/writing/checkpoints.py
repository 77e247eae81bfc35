"""What other trainers do to the model for their activation checkpoints, which no key of theirs changes."""

from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.other_trainers.writing.limits import Limit, LimitContext
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import CheckpointKind, InputGradients
from vlmplan.recipe.task_choices import TaskTrainer


def _input_gradients(kind: InputGradients, words: str, source: str) -> Limit:
    def allowed(context: LimitContext) -> tuple[InputGradients, ...]:
        # TRL's DPO and GRPO are launched with checkpoints that do without, or by TRL's own script.
        task = context.recipe.task
        return (InputGradients.NONE, kind) if task is not None and task.trainer is TaskTrainer.TRL else (kind,)

    return Limit(
        field="input_gradients",
        allowed=allowed,
        sentence=f"where it checkpoints, {words} need gradients; --input-gradients {kind.value} is what it has",
        source=source,
        is_behaviour=True,
    )


GRADIENTS_OF_ALL_INPUTS: Final = _input_gradients(
    InputGradients.ALL,
    "results of all input embeddings",
    "transformers 5.23 modeling_utils.py gradient_checkpointing_enable: enable_input_require_grads",
)
GRADIENTS_OF_TEXT_INPUTS: Final = _input_gradients(
    InputGradients.LANGUAGE,
    "results of the language model's embedding, not of a frozen encoder's,",
    "ms-swift 4.6 trainers/mixin.py _prepare_gradient_checkpointing, model/patcher.py patch_frozen_module",
)
GRADIENTS_BY_PEFT: Final = _input_gradients(
    InputGradients.PEFT,
    "results of all input embeddings of models with adapters, but for packed ones,",
    "peft 0.21 peft_model.py _prepare_model_for_gradient_checkpointing; LLaMA-Factory checkpoints before peft comes",
)


def _kinds(context: LimitContext) -> tuple[CheckpointKind, ...] | None:
    recipe = context.recipe
    if recipe.fsdp or not recipe.activation_checkpointing:
        return None
    # Of tasks axolotl has them as TRL does.
    is_usual = recipe.task is None or recipe.task.is_of_llama_factory
    kinds = (CheckpointKind.REENTRANT, CheckpointKind.NON_REENTRANT)
    return kinds if is_usual else kinds[::-1]


REENTRANT_BY_DEFAULT: Final = Limit(
    field="checkpoint_kind",
    allowed=_kinds,
    sentence="its checkpoints are --checkpoint-kind reentrant or non-reentrant",
    source="axolotl 0.19 utils/config/__init__.py normalize_config: {'use_reentrant': True}; LLaMA-Factory 0.9.5 "
    "hparams/model_args.py: use_reentrant_gc is True",
    is_behaviour=True,
)


def is_told_kind(recipe: Recipe, usual: CheckpointKind) -> bool:
    """Whether a file has to say that checkpoints are not of the ``usual`` kind of its trainer."""
    return recipe.activation_checkpointing and not recipe.fsdp and recipe.checkpoint_kind is not usual


def checkpoint_keys(recipe: Recipe, usual: CheckpointKind = CheckpointKind.NON_REENTRANT) -> dict[str, Any]:
    """``gradient_checkpointing_kwargs``, where they matter."""
    kind = recipe.checkpoint_kind
    is_reentrant = {"use_reentrant": kind.is_reentrant}
    return {"gradient_checkpointing_kwargs": is_reentrant} if is_told_kind(recipe, usual) else {}


def check_reentrant(recipe: Recipe, who: str) -> None:
    """Raise InputError for a task's checkpoints that are not reentrant where TRL's trainers make them so."""
    if recipe.shards_checkpointed_adapters and not recipe.has_reentrant_checkpoints:
        raise InputError(
            f"{who} makes checkpoints reentrant with adapters under ZeRO-3; leave --no-reentrant-checkpoints off, or "
            f"give --zero-stage 2"
        )


def _where_trained(context: LimitContext) -> tuple[bool, ...] | None:
    recipe = context.recipe
    return (recipe.activation_checkpointing and recipe.train_vision,) if context.sees else None


TRAINED_LAYERS_CHECKPOINTED: Final = Limit(
    field="vision_activation_checkpointing",
    allowed=_where_trained,
    sentence="it checkpoints the layers of all parts that are trained, or none",
    source="LLaMA-Factory 0.9.5 model_utils/checkpointing.py custom_gradient_checkpointing_func: has_grad",
    is_behaviour=True,
)
