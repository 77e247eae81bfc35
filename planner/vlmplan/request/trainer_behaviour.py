"""What another trainer makes of a setup by itself: one that is planned for (``--for``), or whose file is read."""

from dataclasses import replace
from typing import TYPE_CHECKING

from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.request.record import Request
from vlmplan.workload import ModelFiles

if TYPE_CHECKING:
    from vlmplan.other_trainers.writing import Tool


def with_trainer_defaults(decided: DecidedRecipe, made_for: "Tool | None", model: ModelFiles) -> DecidedRecipe:
    """What is open as the trainer that it is made for has it in every setup."""
    if made_for is None:
        return decided
    from vlmplan.other_trainers.writing import usual

    full = DecidedRecipe(train_vision=decided.full_vision or None, train_projector=decided.full_projector or None)
    return decided.completed(full).completed(usual(made_for, model, decided.batching))


BEHAVIOUR_FOLLOWS = ("method", "precision", "zero_stage")
"""What another trainer's own ways with types and autocast follow from."""


def as_its_trainer(request: Request, model: ModelFiles) -> DecidedRecipe:
    """The request's recipe. Where it is a configuration's with another method, precision or stage than that has, what
    the trainer does by itself is what it does with these. Raises InputError for a model with an encoder and a decoder
    where that trainer takes prompt and answer for one text, as all do but scripts of transformers' own."""
    decided, configured = request.decided, request.configured
    if configured is None or request.made_for is not None:
        return decided
    if model.is_encoder_decoder:
        _refuse_two_texts(configured.config.trainer)
    alone = configured.alone.recipe
    if all(getattr(decided, name) == getattr(alone, name) for name in BEHAVIOUR_FOLLOWS):
        return decided
    from vlmplan.other_trainers.writing import behaviour, tool_of_trainer

    tool = tool_of_trainer(configured.config.trainer)
    if tool is None:
        return decided
    stage = DecidedRecipe(zero_stage=None if request.ds_config is None else request.ds_config.zero_stage or 0)
    before, now = (behaviour(tool, one.completed(stage).recipe(), model) for one in (alone, decided))
    changes = {
        name: getattr(now, name)
        for name in now.names - configured.given
        if getattr(decided, name) in (None, getattr(alone, name))
        and getattr(alone, name) in (None, getattr(before, name))
    }
    return replace(decided, **changes)


def _refuse_two_texts(trainer: str) -> None:
    from vlmplan.other_trainers.writing import Tool, objection_to_two_texts, tool_of_trainer

    tool = tool_of_trainer(trainer)
    if tool not in (None, Tool.TRANSFORMERS):
        raise InputError(objection_to_two_texts(tool))


def refuse_beyond_trainer(tool: "Tool", recipe: Recipe, model: ModelFiles) -> None:
    """Raise InputError for what the trainer cannot do."""
    from vlmplan.other_trainers.writing import objection, objection_to_experts

    reason = objection(tool, recipe, model) or objection_to_experts(tool, recipe, model)
    if reason is not None:
        raise InputError(reason)
