"""``vlmplan models``: the packaged models, or one model in detail."""

import re
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.completion import gpu_names
from vlmplan.cli.option_kinds import WHOLE, check_order, one_of, options
from vlmplan.cli.option_words import ClickValues, given_flags
from vlmplan.cli.options import CATALOG, HOST_RAM, JSON
from vlmplan.cli.output import print_document
from vlmplan.cli.strict_command import StrictCommand
from vlmplan.cli.trainable import METHODS, run_trainable

if TYPE_CHECKING:
    from vlmplan.answers.models import ModelReport
    from vlmplan.models.facts import ModelFacts
    from vlmplan.workload import ModelFiles

SORTS = ("name", "params", "context", "tokens")
OF_LIST = ("family", "vision", "min_params", "max_params")
"""Options that narrow the list of models."""
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


@click.command(cls=StrictCommand)
@click.argument("words", nargs=-1, metavar="[NAME | TEXT...]")
@click.option("--family", multiple=True, metavar="MODEL_TYPE", help="Only models of this model_type (repeatable).")
@click.option("--vision/--no-vision", default=None, help="Only models that take images, or only those that do not.")
@click.option("--min-params", type=count, metavar="COUNT", help="At least so many parameters, such as 500M.")
@click.option("--max-params", type=count, metavar="COUNT", help="At most so many parameters, such as 8B.")
@click.option("--image-size", metavar="WxH", help="Pixels of the image that tokens are counted of.  [default: 448x448]")
@click.option("--sort", type=one_of(SORTS), default="name", show_default=True, help="What the rows go by.")
@click.option(
    "--gpu", shell_complete=gpu_names, metavar="NAME[:COUNT]", help="Show what can be trained on these cards, and how."
)
@click.option("--method", multiple=True, type=one_of(METHODS), help="With --gpu, only this one (repeatable).")
@click.option("--seq-len", type=WHOLE, metavar="N", help="With --gpu, tokens per sample.  [default: 1024]")
@options(HOST_RAM, CATALOG, JSON)
def models(words: tuple[str, ...], image_size: str | None, sort: str, as_json: bool, **terms: Any) -> int:
    """List the packaged models with TEXT in their names, or show all about the model called NAME.

    NAME is an alias, a Hugging Face id (org/name, org/name@revision), a folder or a config.json. Of models that are
    not packaged, config.json and the settings of its processors are fetched, nothing else.

    With --gpu it shows of each the fastest setup of the method that trains most (full, then LoRA, then QLoRA) and fits.
    """
    from vlmplan.answers.models import models_report, print_report
    from vlmplan.models.listing import names_one_model
    from vlmplan.request import image_size as parsed_size
    from vlmplan.units import size_text
    from vlmplan.workload import DEFAULT_IMAGE_SIZE

    size = parsed_size(image_size)
    _check_terms(terms)
    if len(words) == 1 and names_one_model(words[0]):
        _refuse_options_of_list(words[0], terms | {"sort": None if sort == SORTS[0] else sort})
    if terms["gpu"] is not None and image_size is not None:
        raise click.UsageError(
            f"--image-size {image_size} is of the tokens in the list; with --gpu samples have images of "
            f"{size_text(DEFAULT_IMAGE_SIZE)}, and vlmplan recommend plans for others"
        )
    if terms["gpu"] is not None:
        return run_trainable(_facts(words, terms, sort=sort, size=size)[0], terms, as_json=as_json)
    if len(words) == 1 and names_one_model(words[0]):
        report = _one(words[0], size)
    else:
        report = models_report(*_facts(words, terms, sort=sort, size=size), size=size)
    if as_json:
        print_document(report.document)
    else:
        print_report(report)
    return 0


def _one(name: str, size: tuple[int, int]) -> "ModelReport":
    from vlmplan.answers.models import model_report
    from vlmplan.models import found_model
    from vlmplan.models.facts import model_anatomy, model_facts

    found = found_model(name)
    facts = model_facts(found.files, width=size[0], height=size[1])
    return model_report(facts, model_anatomy(found.files), source=found.source, size=size)


def _facts(
    words: tuple[str, ...], terms: ClickValues, *, sort: str, size: tuple[int, int]
) -> "tuple[list[ModelFacts], list[ModelFiles]]":
    """The facts of the model that is named or of the packaged ones that are wanted; and those that vlmplan cannot
    plan."""
    from vlmplan.models import find_model
    from vlmplan.models.facts import model_facts
    from vlmplan.models.listing import ModelFilter, names_one_model, packaged_facts, sorted_facts

    if len(words) == 1 and names_one_model(words[0]):
        return [model_facts(find_model(words[0]), width=size[0], height=size[1])], []
    wanted = ModelFilter(
        words=words,
        families=terms["family"],
        takes_images=terms["vision"],
        min_params=terms["min_params"],
        max_params=terms["max_params"],
        each_size_once=terms["gpu"] is not None,
    )
    facts, unsupported = packaged_facts(wanted, size=size)
    return sorted_facts(facts, sort), unsupported


def _refuse_options_of_list(name: str, terms: ClickValues) -> None:
    """Raise UsageError for options of the list beside the one model that is named."""
    flags = given_flags(models, {term: terms[term] for term in (*OF_LIST, "sort")})
    if flags:
        raise click.UsageError(f"{name} names one model, and {', '.join(flags)} is of their list: leave it off")


def _check_terms(terms: ClickValues) -> None:
    """Raise UsageError for options that need --gpu, InputError for limits between which nothing is."""
    check_order(terms, "min_params", "max_params")
    for name in ("method", "seq_len", "host_ram", "catalog_files"):
        if terms["gpu"] is None and terms[name] not in (None, ()):
            option = "--catalog" if name == "catalog_files" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} is about what can be trained; it needs --gpu NAME")
