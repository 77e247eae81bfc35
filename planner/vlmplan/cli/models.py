"""``vlmplan models``: the packaged models, or one model in detail."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.options import CATALOG, HOST_RAM, JSON, options
from vlmplan.cli.trainable import METHODS, run_trainable
from vlmplan.errors import UnknownNameError
from vlmplan.render.lines import say
from vlmplan.render.tables import print_table

if TYPE_CHECKING:
    from vlmplan.models.facts import ModelFacts
    from vlmplan.workload import ModelFiles

SORTS = ("name", "params", "context", "tokens")
_COUNT = re.compile(r"(\d+(?:\.\d*)?(?:e\d+)?)\s*([kmbt]?)", re.IGNORECASE)
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def count(text: str) -> float:
    """A count such as ``7B``, ``500M`` or ``1.5e9``.

    >>> count("7B"), count("500m"), count("1.5e9")
    (7000000000.0, 500000000.0, 1500000000.0)
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no count; 7B, 500M or 1500000000 is needed")
    return float(match[1]) * _FACTORS[match[2].lower()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFilter:
    """What the user wants to see; empty or None means any."""

    words: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    takes_images: bool | None = None
    min_params: float | None = None
    max_params: float | None = None

    @property
    def asks_for_facts(self) -> bool:
        """Whether a model that vlmplan cannot build may not be listed."""
        return self.takes_images is not None or self.min_params is not None or self.max_params is not None

    def accepts_name(self, model: "ModelFiles") -> bool:
        text = f"{model.id} {model.hub_id or ''} {model.model_type}".casefold()
        return all(word.casefold() in text for word in self.words) and (
            not self.families or model.model_type in self.families
        )

    def accepts(self, facts: "ModelFacts") -> bool:
        return (
            (self.takes_images is None or facts.takes_images is self.takes_images)
            and (self.min_params is None or facts.num_params >= self.min_params)
            and (self.max_params is None or facts.num_params <= self.max_params)
        )


@click.command()
@click.argument("words", nargs=-1, metavar="[NAME | TEXT...]")
@click.option("--family", multiple=True, metavar="MODEL_TYPE", help="Only models of this model_type (repeatable).")
@click.option("--vision/--no-vision", default=None, help="Only models that take images, or only those that do not.")
@click.option("--min-params", type=count, metavar="COUNT", help="At least so many parameters, such as 500M.")
@click.option("--max-params", type=count, metavar="COUNT", help="At most so many parameters, such as 8B.")
@click.option("--image-size", metavar="WxH", help="Pixels of the image that tokens are counted of.  [default: 448x448]")
@click.option("--sort", type=click.Choice(SORTS), default="name", show_default=True)
@click.option("--gpu", metavar="NAME[:COUNT]", help="Show what can be trained on these cards, and how.")
@click.option("--method", multiple=True, type=click.Choice(METHODS), help="With --gpu, only this one (repeatable).")
@click.option("--seq-len", type=int, metavar="N", help="With --gpu, tokens per sample.  [default: 1024]")
@options(HOST_RAM, CATALOG, JSON)
def models(words: tuple[str, ...], image_size: str | None, sort: str, as_json: bool, **terms: Any) -> int:
    """List the packaged models with TEXT in their names, or show all about the model called NAME.

    NAME is an alias, a Hugging Face id (org/name, org/name@revision), a folder or a config.json. Of models that are
    not packaged, config.json and the image processor's settings are fetched, nothing else.

    With --gpu it shows of each the fastest setup of the method that trains most (full, then LoRA, then QLoRA) and fits.
    """
    from vlmplan.cli import models_view
    from vlmplan.request import image_size as parsed_size

    size = parsed_size(image_size)
    _check_terms(terms)
    if len(words) == 1 and _names_one(words[0]):
        from vlmplan.models import found_model
        from vlmplan.models.facts import model_anatomy, model_facts

        found = found_model(words[0])
        facts = model_facts(found.files, width=size[0], height=size[1])
        if terms["gpu"] is not None:
            return run_trainable([facts], terms, as_json=as_json)
        report = models_view.model_report(facts, model_anatomy(found.files), source=found.source, size=size)
    else:
        wanted = ModelFilter(
            words=words,
            families=terms["family"],
            takes_images=terms["vision"],
            min_params=terms["min_params"],
            max_params=terms["max_params"],
        )
        facts, unsupported = packaged_facts(wanted, size=size)
        if terms["gpu"] is not None:
            return run_trainable(_sorted(facts, sort), terms, as_json=as_json)
        report = models_view.models_report(_sorted(facts, sort), unsupported, size=size)
    if as_json:
        click.echo(json.dumps(report.document, indent=2))
        return 0
    for index, block in enumerate(report.blocks):
        if index:
            click.echo()
        if isinstance(block, str):
            say(*block.splitlines())
        else:
            print_table(block)
    return 0


def _check_terms(terms: dict[str, Any]) -> None:
    """Raise UsageError for options that need --gpu."""
    for name in ("method", "seq_len", "host_ram", "catalog_files"):
        if terms["gpu"] is None and terms[name] not in (None, ()):
            option = "--catalog" if name == "catalog_files" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} is about what can be trained; it needs --gpu NAME")


def _sorted(facts: "list[ModelFacts]", sort: str) -> "list[ModelFacts]":
    """By name, or the smallest first and equal ones by name."""

    def key(row: "ModelFacts") -> tuple[int, str]:
        numbers = {
            "name": 0,
            "params": row.num_params,
            "context": row.context_length or 0,
            "tokens": row.image.num_tokens if row.image else 0,
        }
        return numbers[sort], row.model.id

    return sorted(facts, key=key)


def _names_one(word: str) -> bool:
    """Whether a word names a model rather than a part of names."""
    from vlmplan.models import packaged_models

    return (
        word.casefold() in packaged_models()
        or "/" in word
        or word.startswith((".", "~"))
        or word.endswith(".json")
        or Path(word).is_dir()
    )


def packaged_facts(wanted: ModelFilter, *, size: tuple[int, int]) -> "tuple[list[ModelFacts], list[ModelFiles]]":
    """The packaged models that ``wanted`` accepts, and those that vlmplan cannot plan.

    Raises UnknownNameError if a family or the words are those of no model.
    """
    from vlmplan.architecture.families import FAMILIES
    from vlmplan.models import packaged_files, packaged_models
    from vlmplan.models.facts import model_facts

    known = {alias: packaged_files(alias) for alias in packaged_models()}
    families = sorted({model.model_type for model in known.values()})
    for family in wanted.families:
        if family not in families:
            raise UnknownNameError("model_type", family, families)
    named = [model for model in known.values() if wanted.accepts_name(model)]
    if not named and wanted.words:
        hint = "`vlmplan models` lists them; others by their Hugging Face id, org/name"
        raise UnknownNameError("model", " ".join(wanted.words), known, hint)
    facts = [model_facts(m, width=size[0], height=size[1]) for m in named if m.model_type in FAMILIES]
    rest = [] if wanted.asks_for_facts else [m for m in named if m.model_type not in FAMILIES]
    return list(filter(wanted.accepts, facts)), rest
