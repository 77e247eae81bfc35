"""Whether a plan can run here, before anything is written or started: every reason why not, one sentence each.

Judges ``Facts`` and reads data files, the output folder and the model's; asks nothing else.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vlmplan.catalog import Catalog
from vlmplan.chats.data_files import data_files, num_samples_in
from vlmplan.chats.named_columns import EVERYTHING
from vlmplan.errors import VlmplanError
from vlmplan.files import open_regular
from vlmplan.launch.devices import gpu_problems
from vlmplan.launch.extensions import lock_sentence
from vlmplan.launch.facts import FLASH_ATTENTION, Facts
from vlmplan.launch.finished import merges_only
from vlmplan.launch.hosts import hostfile_problems, read_hostfile
from vlmplan.launch.model_folder import model_folder_problems
from vlmplan.launch.run_folder import folder_problems
from vlmplan.launch.task_runs import reference_warnings, task_problems
from vlmplan.model_types.language_parts import SUFFIX
from vlmplan.models import described
from vlmplan.models.stored_weights import left_out_weights
from vlmplan.notes import listed
from vlmplan.plan import Plan
from vlmplan.plan.unlaunched import recipe_problems, row_problems
from vlmplan.recipe.choices import AttentionImplementation
from vlmplan.rules.models import TYING_TYPES
from vlmplan.run.saving import Interval, Saving
from vlmplan.run.training import (
    CHECKPOINTS,
    MANIFEST,
    TrainerOptions,
    adapter_problem,
    best_problem,
    flag,
    monitor_problems,
)
from vlmplan.units import counted, gib_text
from vlmplan.versions import install_command, needed_packages

if TYPE_CHECKING:
    from vlmplan.request.setup import RequestedSetup

NUM_SAMPLES_TOLERANCE = 0.01
"""Part by which the number of samples may differ from the plan's before the plan's time and price are said to."""
CHUNK_BYTES = 1 << 20
OF_WHISPER = ("language", "speech_task")
"""Options that the trainer refuses for other models, once all ranks have started (``data/language.py``)."""
OF_FILES = ("skip_bad_samples", "image_folder")
"""Options of samples that are read, and not made up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """``problems`` keep a run from starting, ``warnings`` do not; sentences."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def preflight(
    plan: Plan, options: TrainerOptions, facts: Facts, catalog: Catalog, *, hostfile: Path | None = None
) -> Findings:
    """Everything that keeps ``plan`` from running here, and what the user should know if it does."""
    if merges_only(plan, options):
        return Findings(
            problems=tuple(_merge_problems(plan, options, facts)), warnings=tuple(_version_warnings(plan, facts))
        )
    is_here = runs_here(plan, facts, hostfile)
    problems = [
        *_verdict_problems(plan),
        *(recipe_problems(plan.recipe) if plan.recipe.task is None else ()),
        *row_problems(plan.recipe, plan.workload.model),
        *task_problems(plan, options),
        *_package_problems(plan, facts),
        *monitor_problems(options.monitor, lambda package: facts.packages.get(package) is not None),
        *((facts.port_problem,) if is_here and facts.port_problem is not None else ()),
        *(lock_sentence(lock) for lock in facts.held_locks if is_here),
        *_host_problems(plan, facts, hostfile),
        *(gpu_problems(plan, facts, catalog) if is_here else ()),
        *(_ram_problems(plan, facts, resumes=options.resume) if is_here else ()),
        *_disk_problems(plan, options, facts),
        *_nvme_problems(plan, facts),
        *model_problems(plan, options),
        *data_problems(plan, options),
        *folder_problems(options.output_dir, plan, resumes=options.resume),
    ]
    warnings = [*_version_warnings(plan, facts), *_sample_warnings(plan, options), *_evaluation_warnings(plan, options)]
    warnings.extend(reference_warnings(plan.recipe, options))
    if Path(plan.model_source).is_absolute() and not options.random_weights:
        model = plan.workload.model
        warnings.extend(left_out_weights(described(model, model.config), Path(plan.model_source)))
    if plan.expected.verdict == "tight":
        warnings.append("the plan is tight: less than its reserve of GPU memory stays free")
    if plan.expected.nvme_swap_bytes:
        warnings.append(f"the run writes to {plan.recipe.nvme_path} too, where it offloads")
    if plan.hardware.num_nodes > 1:
        looked = "the other nodes were" if is_here else "the nodes were"
        warnings.append(f"{looked} not looked at; each needs the same GPUs, Python environment and files")
    return Findings(problems=tuple(problems), warnings=tuple(warnings))


def _merge_problems(plan: Plan, options: TrainerOptions, facts: Facts) -> Iterator[str]:
    """Why the adapter of a run that has ended cannot be merged here: in host memory, without a GPU."""
    yield from _package_problems(plan, facts)
    yield from model_problems(plan, options)
    yield from folder_problems(options.output_dir, plan, resumes=True)
    needed = merged_bytes(plan)
    for place, free in (("of host RAM", facts.available_ram_bytes), ("of disk", facts.free_disk_bytes)):
        if free is not None and needed > free:
            yield f"--merge-adapters: the merged model takes {gib_text(needed)} {place}, but {gib_text(free)} are free"


def runs_here(plan: Plan, facts: Facts, hostfile: Path | None) -> bool:
    """Whether this machine is one of those that train: the only one, or one of the hostfile's."""
    if plan.hardware.num_nodes == 1:
        return True
    try:
        hosts = () if hostfile is None else tuple(read_hostfile(hostfile))
    except VlmplanError:
        return False
    return any(_is_this_machine(host, facts) for host in hosts)


def writes_report_here(plan: Plan, facts: Facts, hostfile: Path | None) -> bool:
    """Whether the first rank, which writes the report, runs on this machine; False where that is not known."""
    if plan.hardware.num_nodes == 1:
        return True
    try:
        first = next(iter(() if hostfile is None else read_hostfile(hostfile)), None)
    except VlmplanError:
        return False
    return first is not None and _is_this_machine(first, facts)


def _is_this_machine(host: str, facts: Facts) -> bool:
    return host == "localhost" or host.partition(".")[0] == facts.host_name.partition(".")[0]


def _verdict_problems(plan: Plan) -> Iterator[str]:
    expected, hardware = plan.expected, plan.hardware
    if expected.verdict != "does_not_fit":
        return
    if expected.peak_device_bytes > hardware.usable_bytes:
        needed, usable = gib_text(expected.peak_device_bytes), gib_text(hardware.usable_bytes)
        yield f"the plan does not fit: it needs {needed} of the {usable} that can be used of each GPU"
    else:
        yield "the plan does not fit its hardware, as `vlmplan estimate` shows; `vlmplan recommend` finds one that does"


# -- software --------------------------------------------------------------------------------------------------------


def missing_packages(plan: "Plan | RequestedSetup", packages: Mapping[str, str | None]) -> list[str]:
    """The needed packages that are not installed, and flash-attn where attention is its; ``packages`` are versions."""
    names = needed_packages(plan.recipe, plan.workload)
    names += [FLASH_ATTENTION] if plan.recipe.attention is AttentionImplementation.FLASH_ATTENTION_2 else []
    return [name for name in names if packages.get(name) is None]


def _package_problems(plan: Plan, facts: Facts) -> Iterator[str]:
    missing = missing_packages(plan, facts.packages)
    others = [name for name in missing if name != FLASH_ATTENTION]
    if others:
        install = install_command(others, plan.recipe)
        yield f"training needs {', '.join(others)}, not installed here: {install}"
    if FLASH_ATTENTION in missing:
        attention = plan.recipe.attention.value
        yield f"--attention {attention} needs {FLASH_ATTENTION}, not installed here: pip install {FLASH_ATTENTION}"


def _version_warnings(plan: Plan, facts: Facts) -> Iterator[str]:
    differing = [
        f"{name} {facts.packages[name]} (plan: {planned})"
        for name in needed_packages(plan.recipe, plan.workload)
        if (planned := plan.versions.get(name)) is not None
        and (installed := facts.packages.get(name)) is not None
        and _public(installed) != _public(planned)
    ]
    if differing:
        yield f"other versions than the plan's numbers were checked with: {', '.join(differing)}"


def _public(version: str) -> str:
    """``2.13.0+cu130`` is 2.13.0."""
    return re.split(r"[+]", version)[0]


def _host_problems(plan: Plan, facts: Facts, hostfile: Path | None) -> Iterator[str]:
    num_nodes = plan.hardware.num_nodes
    if num_nodes == 1:
        if hostfile is not None:
            yield "--hostfile was given, but the plan is for one node; plan for several with --num-nodes"
        return
    if hostfile is None:
        yield f"the plan is for {num_nodes} nodes; --hostfile FILE has to name them, as HOST slots=GPUS in each line"
        return
    if not facts.has_pdsh:
        yield "several nodes are started through pdsh, which is not installed here: apt-get install pdsh"
    try:
        slots = read_hostfile(hostfile)
    except VlmplanError as error:
        yield str(error)
        return
    yield from hostfile_problems(slots, num_nodes=num_nodes, gpus_per_node=plan.hardware.gpus_per_node)


# -- memory and disk -------------------------------------------------------------------------------------------------


def _ram_problems(plan: Plan, facts: Facts, *, resumes: bool) -> Iterator[str]:
    needed, ram, available = plan.expected.host_bytes_per_node, facts.host_ram_bytes, facts.available_ram_bytes
    if resumes:
        needed = max(needed, plan.expected.resume_host_bytes or 0)
    if ram is not None and needed > ram:
        yield f"the plan needs {gib_text(needed)} of host RAM, but this machine has {gib_text(ram)}"
    elif available is not None and needed > available:
        yield (
            f"the plan needs {gib_text(needed)} of host RAM, but {gib_text(available)} are free; "
            f"end what else runs on this machine"
        )


def disk_bytes(plan: Plan, options: TrainerOptions) -> int:
    """What a run still has to find room for: its fullest moment over the whole run, less the checkpoints that a run
    which goes on has there already."""
    merged = merged_bytes(plan) if options.merge_adapters else 0
    one = plan.expected.checkpoint_bytes
    num_there = sum(1 for _ in options.output_dir.glob(f"{CHECKPOINTS}/*/{MANIFEST}"))
    there = min(num_there, options.keep_last) if options.resume else 0
    ways = savings(plan, options)
    runs = [plan.run_disk(saving) for saving in ways]
    at_once, kept = max(run.num_at_once for run in runs), max(run.num_kept for run in runs)
    results = ways[0].num_results * plan.expected.export_bytes
    training = max(1, at_once - there) * one + (results if ways[0].keeps_best_result else 0)
    return max(training, max(0, kept - there) * one + results + merged)


def merged_bytes(plan: Plan) -> int:
    """The model with its adapters merged in, in the recipe's type."""
    return plan.recipe.precision.dtype.num_bytes * plan.num_params


def savings(plan: Plan, options: TrainerOptions) -> list[Saving]:
    """What decides when this run is saved: steps, minutes, or its end alone. A run of unknown time may be long."""
    at_end = replace(plan.saving, interval=Interval.STEPS, every=plan.expected.num_steps, keep_last=options.keep_last)
    found = [at_end]
    if options.save_every is not None:
        found.append(replace(at_end, every=options.save_every))
    if options.save_seconds is not None:
        found.append(replace(at_end, interval=Interval.MINUTES, every=options.save_seconds / 60))
    return found


def _disk_problems(plan: Plan, options: TrainerOptions, facts: Facts) -> Iterator[str]:
    needed, free = disk_bytes(plan, options), facts.free_disk_bytes
    if free is not None and needed > free:
        yield (
            f"--output-dir {options.output_dir}: the run writes up to {gib_text(needed)}, but {gib_text(free)} are "
            f"free there; take another folder{_fewer_checkpoints(plan, options, free)}"
        )


def _fewer_checkpoints(plan: Plan, options: TrainerOptions, free: int) -> str:
    """The most checkpoints for which there is room."""
    for keep_last in range(options.keep_last - 1, 0, -1):
        needed = disk_bytes(plan, replace(options, keep_last=keep_last))
        if needed <= free:
            return f", or --keep-last {keep_last}, which needs {gib_text(needed)}"
    return ""


def _nvme_problems(plan: Plan, facts: Facts) -> Iterator[str]:
    path = plan.recipe.nvme_path
    if path is not None and not Path(path).is_absolute():
        yield f"--nvme-path {path} is relative, but ranks run in a folder of their own; give it from / on"
    swap, nvme = plan.expected.nvme_swap_bytes // plan.hardware.num_nodes, facts.free_nvme_bytes
    if swap and nvme is not None and swap > nvme:
        yield f"--nvme-path {plan.recipe.nvme_path}: offload takes {gib_text(swap)}, but {gib_text(nvme)} are free"


# -- model and data --------------------------------------------------------------------------------------------------


def model_problems(plan: Plan, options: TrainerOptions) -> Iterator[str]:
    """What is wrong with the model's folder on this machine, and with what is to be made of the model."""
    model = plan.workload.model
    ties = model.model_type in TYING_TYPES and model.config.get("tie_word_embeddings", True)
    if options.merge_adapters and plan.recipe.trains_adapters and ties:
        yield (
            f"--merge-adapters does not go with {model.id}: layers that share a weight have an adapter each, and peft "
            f"adds all of them to it, for every layer (seen); load the model with its adapter instead"
        )
    source = Path(plan.model_source)
    if model.is_language_part:
        whole = model.id.removesuffix(SUFFIX)
        yield f"{model.id} is the language model alone, and launch trains whole models; plan {whole}"
    elif model.hub_id is None:
        yield f"no checkpoint of {model.id} is known to load; plan for a Hugging Face id or a folder with one"
    elif source.is_absolute() and not source.is_dir():
        moved = "; --model FOLDER says where it is now" if options.resume else ""
        yield f"the model's folder {source} is not on this machine{moved}"
    elif source.is_absolute():
        yield from model_folder_problems(plan, source, random_weights=options.random_weights)


def data_problems(plan: Plan, options: TrainerOptions) -> Iterator[str]:
    """What is wrong with data that can be seen without looking into samples."""
    if options.adapter is not None:
        problem = adapter_problem(options.adapter, plan.recipe)
        if problem is not None:
            yield problem
    problem = best_problem(options, plan.recipe)
    if problem is not None:
        yield problem
    yield from _speech_problems(plan, options)
    needed = plan.samples_per_step
    if options.dummy_data is not None and options.dummy_data < needed:
        yield f"--dummy-data is {options.dummy_data}, but one step of the plan takes {counted(needed, 'sample')}"
    if options.image_folder is not None and not options.image_folder.is_dir():
        yield f"--image-folder {options.image_folder} is no folder"
    files = {"--train-data": options.train_data, "--eval-data": options.eval_data}
    for given, path in files.items():
        if path is None:
            continue
        try:
            problem = next(
                (found for file in data_files(path, takes=EVERYTHING) if (found := _file_problem(file.path))), None
            )
            if problem is not None:
                yield f"{given} {problem}"
                continue
            found = num_samples_in(path)
        except VlmplanError as error:
            yield f"{given} {error}"
            continue
        if given == "--train-data" and found < needed:
            yield f"{given} {path} has {counted(found, 'sample')}, but one step of the plan takes {needed}"


def _speech_problems(plan: Plan, options: TrainerOptions) -> Iterator[str]:
    """Options of Whisper's tokenizer for another model."""
    for name in OF_WHISPER:
        if getattr(options, name) is not None and not plan.workload.model.hears_prompt:
            yield f"{flag(name)} is for Whisper, whose tokenizer writes it before what is said; leave it off"


def _file_problem(path: Path) -> str | None:
    try:
        with open_regular(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                if chunk.strip():
                    return None
        return f"{path} is empty"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"


def _sample_warnings(plan: Plan, options: TrainerOptions) -> Iterator[str]:
    found = options.dummy_data
    if options.train_data is options.eval_data is None:
        idle = [flag(name) for name in OF_FILES if getattr(options, name)]
        if idle:
            verb = "changes" if len(idle) == 1 else "change"
            yield f"{listed(idle)} {verb} nothing here: samples are made up, and none is read from a file"
    if options.train_data is not None:
        with suppress(VlmplanError):  # which is said among the problems
            found = num_samples_in(options.train_data)
    planned = plan.workload.num_samples
    if found is not None and abs(found - planned) > NUM_SAMPLES_TOLERANCE * planned:
        yield f"the data has {counted(found, 'sample')}, the plan's time and price are for {planned:,}"


def _evaluation_warnings(plan: Plan, options: TrainerOptions) -> Iterator[str]:
    """Evaluations that the plan counts otherwise than the trainer does them."""
    evaluation, num_samples = plan.recipe.evaluation, 0
    if options.eval_data is None:
        if evaluation is not None:
            yield "the plan counts evaluations, but nothing is evaluated without --eval-data"
        return
    with suppress(VlmplanError):  # which is said among the problems
        num_samples = num_samples_in(options.eval_data)
    if not num_samples:
        return
    found = f"--eval-data {options.eval_data} has {counted(num_samples, 'sample')}"
    if evaluation is None:
        yield (
            f"{found}, evaluated after every epoch, {counted(plan.recipe.eval_batch, 'sample')} of a GPU at a time, "
            f"but the plan has no evaluation: its seconds, price and bytes are without"
        )
    elif evaluation.samples is None:
        yield f"{found}, but the plan does not say how many are evaluated: its seconds and price are without"
    elif abs(num_samples - evaluation.samples) > NUM_SAMPLES_TOLERANCE * evaluation.samples:
        yield f"{found}, but the seconds and price of the plan's evaluations are for {evaluation.samples:,}"
