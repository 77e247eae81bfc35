"""Single changes of a setup or of what is asked for, each as options of the command line on top of the present ones.

What saves memory comes from ``changes.kinds``; here is besides what costs money or time: hardware, half the samples.
"""

from collections.abc import Iterator, Sequence

from vlmplan.changes.change import Change
from vlmplan.changes.kinds import SHARES, Space, all_changes, image_change, text_change
from vlmplan.recipe.choices import SEARCHED_METHODS, LossKind, Method
from vlmplan.recipe.settings import ADAPTER_FIELDS
from vlmplan.request import HardwareRequest, Options, OptionValue, Request
from vlmplan.request.setup import RequestedSetup
from vlmplan.rules import losses, model_facts
from vlmplan.search.clusters import MAX_GPUS_PER_NODE
from vlmplan.units import counted
from vlmplan.workload import DEFAULT_GLOBAL_BATCH

HALF = (1, 2)
FACTORS = (2, 4)
"""By how much more hardware is tried. A choice."""
OWN_TO_NOBODY = {"attention", "vllm_tensor_parallel"}
"""Options of a recipe or a task that keep the results and that the search leaves as they are."""
OWN_CHOICES = (
    *("micro_batch", "grad_accum", "zero_stage", "offload_optimizer", "offload_params", "hpz", "dp_shard_size", "loss"),
)
BATCH_OPTIONS = OWN_CHOICES[:2]
OWN_SWITCHES = ("activation_checkpointing", "vision_activation_checkpointing", "expandable_segments")
"""Options and switches that the search decides unless the user does."""


def hardware_changes(name: str, num_gpus: int, num_nodes: int, most: int | None) -> Iterator[Change]:
    """More and fewer GPUs of the same kind, which ``--gpu`` calls ``name``; ``most`` go into a machine."""
    for factor in FACTORS:
        if num_gpus * factor <= (most or MAX_GPUS_PER_NODE):
            yield _with_gpus(name, num_gpus * factor)
    if num_gpus % 2 == 0:
        yield _with_gpus(name, num_gpus // 2)
    yield Change(name="another node", options={"num_nodes": num_nodes + 1})


def _with_gpus(name: str, count: int) -> Change:
    return Change(name=f"{counted(count, 'GPU')} a node", options={"gpu": (f"{name}:{count}",)})


def method_changes(present: Method) -> Iterator[Change]:
    """The other methods; full fine-tuning has no options of adapters."""
    for method in SEARCHED_METHODS:
        if method is not present:
            dropped = dict.fromkeys(ADAPTER_FIELDS) if method is Method.FULL else {}
            options = {"method": method.value, **dropped}
            yield Change(name=f"{method.value} instead of {present.value}", options=options, keeps_results=False)


def sample_changes(at: RequestedSetup, shares: tuple[tuple[int, int], ...] = (HALF,)) -> Iterator[Change]:
    """Parts of the text, and images with parts of their sides, whose tokens then leave the sample."""
    for make in (text_change, image_change):
        yield from (change for part, whole in shares if (change := make(at, part, whole)) is not None)


def recipe_changes(at: RequestedSetup) -> Iterator[Change]:
    """Activation checkpointing and the loss the other way round, where the model has another."""
    checkpoints = at.recipe.activation_checkpointing
    options: Options = dict.fromkeys(OWN_SWITCHES[:2], not checkpoints)
    yield Change(name=f"{'no ' if checkpoints else ''}activation checkpointing", options=options)
    other = LossKind.FULL if at.recipe.loss is LossKind.CHUNKED else LossKind.CHUNKED
    if other in losses(model_facts(at.workload.model)):
        yield Change(name=f"the {other.value} loss", options={"loss": other.value})


def lean_changes(at: RequestedSetup) -> Iterator[Sequence[Change]]:
    """What takes less memory and a search does not try by itself, each kind from the smallest change on, those that
    keep the results first."""
    space = all_changes(at)
    yield from (levels for levels in space.kinds if set(levels[0].options) <= OWN_TO_NOBODY)
    yield from (result for result in space.results if len(result) == 1)
    sizes = list(sample_changes(at, SHARES))
    yield [size for size in sizes if "image_size" not in size.options]
    yield [size for size in sizes if "image_size" in size.options]


def searched_changes(at: RequestedSetup, request: Request, samples_per_step: int | None) -> Space:
    """What can be changed of a search that ``request`` asks for: what the user decided of a recipe, and the samples.
    ``samples_per_step`` as of ``freed_changes``."""
    space = all_changes(at)
    pinned = [levels for levels in space.kinds if set(levels[0].options) <= OWN_TO_NOBODY]
    results = space.results
    if request.recipe.method is None:  # the search tries them all
        results = tuple(result for result in results if not any("method" in change.options for change in result))
    kinds = (*((change,) for change in freed_changes(request, samples_per_step)), *pinned)
    return Space(kinds=kinds, results=results, samples=space.samples)


def freed_changes(request: Request, samples_per_step: int | None) -> Iterator[Change]:
    """Options of the user that the search would decide by itself, taken away.

    A step keeps its samples: where the options that are taken away made them, ``--global-batch`` says so instead.
    ``samples_per_step`` are those of all GPUs, None where machines differ in them: then they change.
    """
    own_to_the_task = {"expandable_segments"} if request.task.vllm_sleep_level else set[str]()  # vLLM refuses them
    for name in (*OWN_CHOICES, *OWN_SWITCHES):
        if request.option(name) is None or name in own_to_the_task:
            continue
        title, options = f"--{name.replace('_', '-')} left to the search", dict[str, OptionValue]({name: None})
        asked = request.workload.global_batch or DEFAULT_GLOBAL_BATCH
        is_of_batch = name in BATCH_OPTIONS and samples_per_step != asked
        if is_of_batch and samples_per_step is not None:
            title, options = (
                f"{title} with --global-batch {samples_per_step}",
                options | {"global_batch": samples_per_step},
            )
        yield Change(name=title, options=options, keeps_results=not is_of_batch or samples_per_step is not None)


def larger_scope(hardware: HardwareRequest, num_nodes: int) -> Iterator[Change]:
    """More of the hardware that a search was asked to look at."""
    choices = hardware.gpus
    if choices and all(choice.num_gpus or not choice.is_this_machine for choice in choices):
        for factor in FACTORS:
            options: Options = {"gpu": tuple(f"{choice.name}:{(choice.num_gpus or 1) * factor}" for choice in choices)}
            yield Change(name=f"{factor} times the GPUs", options=options)
    for factor in FACTORS:
        yield Change(name=counted(num_nodes * factor, "node"), options={"num_nodes": num_nodes * factor})
