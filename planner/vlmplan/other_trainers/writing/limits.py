"""What a trainer lets the settings of a recipe be."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Part, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitContext:
    """What limits look at. ``sees``: the model takes images."""

    recipe: Recipe
    sees: bool

    @property
    def is_plain(self) -> bool:
        """Plain PyTorch, or DDP."""
        return not self.recipe.casts_weights

    @property
    def casts(self) -> bool:
        """Whether ``torch.autocast`` is around forward where the trainer does as accelerate does."""
        return self.is_plain and self.recipe.precision in (Precision.BF16, Precision.FP16)


Allowed = Callable[[LimitContext], tuple[Any, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What one field of a recipe may be. ``allowed``: its values, what the trainer does by itself first; None: any.

    ``sentence`` says so to the user, ``source`` where it was read. ``is_behaviour``: no option of a search tries it, so
    what the user leaves open is as the trainer has it.
    """

    field: str
    allowed: Allowed
    sentence: str
    source: str
    is_behaviour: bool = False


def first_objection(limits: Iterable[Limit], context: LimitContext) -> str | None:
    """The sentence of the first limit that the recipe is beyond."""
    for limit in limits:
        allowed = limit.allowed(context)
        if allowed is not None and getattr(context.recipe, limit.field) not in allowed:
            return limit.sentence
    return None


def behaving(limits: Iterable[Limit], context: LimitContext) -> dict[str, Any]:
    """The values of the fields that are the trainer's behaviour."""
    found = {limit.field: limit.allowed(context) for limit in limits if limit.is_behaviour}
    return {name: values[0] for name, values in found.items() if values is not None}


def always(*values: Any) -> Allowed:
    """These, whatever else is set."""
    return lambda _: values


def part_limits(allowed: Allowed, *, sentence: str, source: str) -> tuple[Limit, ...]:
    """The same limit of whether each part of a model is trained."""
    return tuple(Limit(field=f"train_{part.value}", allowed=allowed, sentence=sentence, source=source) for part in Part)


def model_loss_limit(source: str) -> Limit:
    """The loss of a trainer that calls the model with labels."""
    return Limit(
        field="loss",
        allowed=always(LossKind.MODEL, LossKind.LIGER),
        sentence="its models make all logits at once (--loss model), or none with Liger's loss (liger)",
        source=source,
    )
