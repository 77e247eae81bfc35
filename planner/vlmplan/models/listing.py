"""Packaged models by what the user wants to see, and what names one of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vlmplan.architecture.families import FAMILIES
from vlmplan.errors import UnknownNameError
from vlmplan.models.facts import ModelFacts, model_facts
from vlmplan.models.packaged import WAYS_TO_NAME, alias_by_repo_name, packaged_files, packaged_models, plannable_models
from vlmplan.workload import ModelFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFilter:
    """What the user wants to see; empty or None means any.

    ``each_size_once`` leaves out checkpoints with the files of another model where that one is seen.
    """

    words: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    takes_images: bool | None = None
    min_params: float | None = None
    max_params: float | None = None
    each_size_once: bool = False

    @property
    def asks_for_facts(self) -> bool:
        """Whether a model that vlmplan cannot build may not be listed."""
        return self.takes_images is not None or self.min_params is not None or self.max_params is not None

    def accepts_name(self, model: ModelFiles) -> bool:
        text = f"{model.id} {model.hub_id or ''} {model.model_type}".casefold()
        return all(word.casefold() in text for word in self.words) and (
            not self.families or model.model_type in self.families
        )

    def accepts(self, facts: ModelFacts) -> bool:
        return (
            (self.takes_images is None or facts.takes_images is self.takes_images)
            and (self.min_params is None or facts.num_params >= self.min_params)
            and (self.max_params is None or facts.num_params <= self.max_params)
        )


def packaged_facts(wanted: ModelFilter, *, size: tuple[int, int]) -> tuple[list[ModelFacts], list[ModelFiles]]:
    """The packaged models that ``wanted`` accepts, and those that vlmplan cannot plan.

    Checkpoints with the files of another model are seen by the words of their names alone. Raises UnknownNameError if
    a family or the words are those of no model.
    """
    own = [packaged_files(alias) for alias, model in packaged_models().items() if not model.is_sibling]
    families = sorted({model.model_type for model in own})
    for family in wanted.families:
        if family not in families:
            raise UnknownNameError("model_type", family, families)
    named = [model for model in own if wanted.accepts_name(model)]
    if wanted.words and not (named and wanted.each_size_once):
        siblings = (packaged_files(alias) for alias, model in packaged_models().items() if model.is_sibling)
        named += filter(wanted.accepts_name, siblings)
    if not named and wanted.words:
        num_known = len(plannable_models())
        raise UnknownNameError("model", " ".join(wanted.words), packaged_models(), WAYS_TO_NAME, num_known=num_known)
    facts = [model_facts(m, width=size[0], height=size[1]) for m in named if m.model_type in FAMILIES]
    rest = [] if wanted.asks_for_facts else [m for m in named if m.model_type not in FAMILIES]
    return list(filter(wanted.accepts, facts)), rest


def sorted_facts(facts: Iterable[ModelFacts], sort: str) -> list[ModelFacts]:
    """The models in order: by name, or the smallest first and equal ones by name."""

    def key(row: ModelFacts) -> tuple[int, str]:
        numbers = {
            "name": 0,
            "params": row.num_params,
            "context": row.context_length or 0,
            "tokens": row.image.num_tokens if row.image else 0,
        }
        return numbers[sort], row.model.id

    return sorted(facts, key=key)


def names_one_model(word: str) -> bool:
    """Whether a word names a model rather than a part of names."""
    return (
        word.casefold() in packaged_models()
        or word.casefold() in alias_by_repo_name()
        or "/" in word
        or word.startswith((".", "~"))
        or word.endswith(".json")
        or Path(word).is_dir()
    )
