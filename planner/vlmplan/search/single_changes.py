"""Single changes of a setup or of what is asked for, each as options of the command line on top of the present ones.

What saves memory comes from ``launch.changes``; here is besides what costs money or time: hardware, and the size of
the samples.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from vlmplan.errors import InputError
from vlmplan.gpu_choice import parse_gpu_choice
from vlmplan.launch.changes import CHANGES, SHARES, Situation
from vlmplan.launch.plan_options import ADAPTER_OPTIONS
from vlmplan.recipe import LossKind, Method
from vlmplan.sample_images import image_tokens
from vlmplan.search.clusters import MAX_GPUS_PER_NODE
from vlmplan.units import counted

HALF = (1, 2)
FACTORS = (2, 4)
"""By how much more hardware is tried. A choice."""
LEAN = ("chunked loss", "leaner attention", "an 8-bit optimizer")
"""Changes of ``launch.changes`` that a search does not try by itself."""
OWN_CHOICES = ("micro_batch", "grad_accum", "zero_stage", "offload_optimizer", "offload_params")
OWN_SWITCHES = ("activation_checkpointing", "vision_activation_checkpointing", "expandable_segments")
"""Options and switches that the search decides unless the user does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleChange:
    """``options`` replace those of the command line; None takes one away. ``keeps_results``: the same model comes out,
    but for rounding and the order in which samples are added up."""

    name: str
    options: Mapping[str, Any] = field(hash=False)
    keeps_results: bool = True


def hardware_changes(name: str, num_gpus: int, num_nodes: int, most: int | None) -> Iterator[SingleChange]:
    """More and fewer GPUs of the same kind, which ``--gpu`` calls ``name``; ``most`` go into a machine."""
    for factor in FACTORS:
        if num_gpus * factor <= (most or MAX_GPUS_PER_NODE):
            yield _with_gpus(name, num_gpus * factor)
    if num_gpus % 2 == 0:
        yield _with_gpus(name, num_gpus // 2)
    yield SingleChange(name="another node", options={"num_nodes": num_nodes + 1})


def _with_gpus(name: str, count: int) -> SingleChange:
    return SingleChange(name=f"{counted(count, 'GPU')} a node", options={"gpu": (f"{name}:{count}",)})


def method_changes(present: Method) -> Iterator[SingleChange]:
    """The other methods; full fine-tuning has no options of adapters."""
    for method in Method:
        if method is not present:
            dropped = dict.fromkeys(ADAPTER_OPTIONS) if method is Method.FULL else {}
            options = {"method": method.value, **dropped}
            yield SingleChange(name=f"{method.value} instead of {present.value}", options=options, keeps_results=False)


def sample_changes(at: Situation, shares: tuple[tuple[int, int], ...] = (HALF,)) -> Iterator[SingleChange]:
    """Parts of the text, and images with parts of their sides, whose tokens then leave the sample."""
    workload = at.workload
    images = image_tokens(workload)
    text = workload.seq_len - images
    for part, whole in shares:
        if text * part // whole:
            name, options = f"{part}/{whole} of the text", {"seq_len": images + text * part // whole}
            yield SingleChange(name=name, options=options, keeps_results=False)
    for part, whole in shares if workload.images_per_sample else ():
        width, height = workload.image_width * part // whole, workload.image_height * part // whole
        with suppress(InputError):
            smaller = replace(workload, image_width=width, image_height=height)
            options = {"image_size": f"{width}x{height}", "seq_len": text + image_tokens(smaller)}
            yield SingleChange(name=f"images of {part}/{whole} the side", options=options, keeps_results=False)


def recipe_changes(at: Situation) -> Iterator[SingleChange]:
    """Activation checkpointing and the loss the other way round."""
    checkpoints = at.recipe.activation_checkpointing
    options: dict[str, Any] = dict.fromkeys(OWN_SWITCHES[:2], not checkpoints)
    yield SingleChange(name=f"{'no ' if checkpoints else ''}activation checkpointing", options=options)
    other = LossKind.FULL if at.recipe.loss is LossKind.CHUNKED else LossKind.CHUNKED
    yield SingleChange(name=f"the {other.value} loss", options={"loss": other.value})


def lean_changes(at: Situation) -> Iterator[list[SingleChange]]:
    """What takes less memory, each kind as a list from the smallest change on, those that keep the results first."""
    for change in CHANGES:
        if change.name in LEAN:
            keeps = change.keeps_results
            yield [SingleChange(name=change.name, options=one, keeps_results=keeps) for one in change.levels(at)]
    methods = tuple(Method)
    later = methods[methods.index(at.recipe.method) + 1 :]
    yield from ([one] for one in method_changes(at.recipe.method) if one.options["method"] in {m.value for m in later})
    sizes = list(sample_changes(at, SHARES))
    yield [one for one in sizes if "image_size" not in one.options]
    yield [one for one in sizes if "image_size" in one.options]


def freed_changes(given: Mapping[str, Any]) -> Iterator[SingleChange]:
    """Options of the user that the search would decide by itself, taken away."""
    for name in (*OWN_CHOICES, *OWN_SWITCHES):
        if given.get(name) is not None:
            yield SingleChange(name=f"--{name.replace('_', '-')} left to the search", options={name: None})


def larger_scope(given: Mapping[str, Any], num_nodes: int) -> Iterator[SingleChange]:
    """More of the hardware that a search was asked to look at."""
    choices = [parse_gpu_choice(text) for text in given["gpu"]]
    if choices and all(choice.num_gpus or not choice.is_this_machine for choice in choices):
        for factor in FACTORS:
            options = {"gpu": tuple(f"{choice.name}:{(choice.num_gpus or 1) * factor}" for choice in choices)}
            yield SingleChange(name=f"{factor} times the GPUs", options=options)
    for factor in FACTORS:
        yield SingleChange(name=counted(num_nodes * factor, "node"), options={"num_nodes": num_nodes * factor})
