"""The request of a command line's options, and of the configuration of another trainer that they name."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vlmplan.errors import InputError
from vlmplan.recipe import PLAIN
from vlmplan.recipe.choices import InputGradients, LossKind
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.recipe.switches import option_text
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskTrainer
from vlmplan.recipe.task_losses import LOSSES_OF_TASKS
from vlmplan.request.data_samples import with_data, with_samples
from vlmplan.request.parts import HardwareRequest, VideoRequest, WorkloadRequest
from vlmplan.request.record import ConfiguredRequest, Options, OptionValue, Request
from vlmplan.run.saving import LAUNCHED_TASK
from vlmplan.units import counted
from vlmplan.workload import ModelFiles

if TYPE_CHECKING:
    from vlmplan.other_trainers import Asked, OpenedConfig, TrainerConfig
    from vlmplan.other_trainers.writing import Tool


FILES = ("config", "data", "image_folder")
"""Options that name what the others are completed by."""
WRITTEN_WITHOUT_SOUND = ("trl", "transformers")
"""Trainers for which vlmplan writes what reads the samples: text and images. The others read samples by themselves."""


def parse(options: Options, given_model: ModelFiles | None = None) -> Request:
    """The request of these options, for ``given_model`` in place of one that is looked up by its name.

    Raises as ``Request.with_options`` does, and for ``config`` and ``data`` as ``read_trainer_config`` and
    ``DataSources``.
    """
    path, data = options.get("config"), options.get("data")
    own = whole = own_request(options, given_model)
    if path is not None:
        from vlmplan.models import find_model
        from vlmplan.other_trainers import open_trainer_config

        whole = configured_request(own, open_trainer_config(Path(str(path))), find_model)
    folder = options.get("image_folder")
    if data is None:
        if folder is not None:
            raise InputError("--image-folder says where the images of --data are; give --data too")
        return whole
    return with_data(whole, own, Path(str(data)), None if folder is None else Path(str(folder)))


def own_request(options: Options, given_model: ModelFiles | None = None) -> Request:
    """What the user says beside a configuration and samples."""
    own = Request().with_options({name: value for name, value in options.items() if name not in FILES})
    own = for_its_task(own, configured=options.get("config"))
    own = own if given_model is None else replace(own, model=given_model.id, given_model=given_model)
    _check_audio(own, options)
    if own.videos == VideoRequest():
        return own
    from vlmplan.request.videos import with_videos

    return with_videos(own, options)


def _check_audio(own: Request, options: Options) -> None:
    """Raise InputError for sounds without a length, beside samples that are described in another way, and of tasks."""
    asked = own.workload
    if not asked.num_audios:
        return
    if asked.audio_seconds is None:
        if options.get("data") is not None:  # a limit of its samples
            return
        raise InputError(
            f"--audios-per-sample is {asked.audios_per_sample} without --audio-seconds; give the seconds of each sound"
        )
    given = f"--audio-seconds is {asked.audio_seconds:g}"
    if options.get("data") is not None and (own.made_for is not None or options.get("config") is not None):
        raise InputError(
            f"{given}, but --data {options['data']} says itself what samples are like, and sounds in samples are read "
            f"for vlmplan's own trainer alone; leave one of them off"
        )
    if own.task.task() is not None:
        raise InputError(f"{given}, but samples with sound are planned without --task; leave one of them off")
    if own.made_for is not None and own.made_for.value in WRITTEN_WITHOUT_SOUND:
        raise InputError(f"{given}, but what --for {own.made_for.value} writes reads no sound; leave one of them off")


def for_its_task(own: Request, *, configured: OptionValue = None) -> Request:
    """A request with a task is made for TRL. Raises InputError where another trainer is named, and for configurations
    of other trainers, which are read as those of samples as they are."""
    if configured is not None and own.task.kind is None:  # the file says which task it is
        return own
    task = own.task.task()
    if task is None:
        return own
    from vlmplan.other_trainers.writing import Tool

    name = f"--task {task.kind.value}"
    own = _with_own_loss(own, task)
    of_tool = None if configured is not None else _as_its_tool(own, task)
    if of_tool is not None:
        return of_tool
    if task.trainer not in (TaskTrainer.TRL, TaskTrainer.LLAMA_FACTORY):
        if own.made_for is not None or configured is not None:
            other = f"--config {configured}" if own.made_for is None else f"--for {own.made_for.value}"
            raise InputError(
                f"{name} with --task-trainer {task.trainer.value} does not go with {other}; leave one of them off"
            )
        chosen = DecidedRecipe(loss=LOSSES_OF_TASKS.get((task.trainer, task.kind)))
        return replace(own, recipe=own.recipe.completed(chosen))
    if own.made_for not in (None, Tool.TRL):
        raise InputError(f"{name} is planned as TRL trains it, but --for is {own.made_for.value}; leave --for off")
    if configured is not None:
        raise InputError(f"{name} does not go with --config {configured}, which is read as it trains; give options")
    if task.vllm_sleep_level and own.recipe.expandable_segments is None:  # what vLLM's sleep mode refuses
        own = replace(own, recipe=replace(own.recipe, expandable_segments=False))
    if own.made_for is not None:
        own = _as_trls_scripts(own, task)
    if own.made_for is None and own.workload.saving is None:
        own = replace(own, workload=replace(own.workload, saving=LAUNCHED_TASK))
    return replace(own, made_for=Tool.TRL, is_made_for_task=own.made_for is None)


def _as_its_tool(own: Request, task: TrainingTask) -> Request | None:
    """A task as the tool trains it for which the plan is, where that has a loss of its own for it; LLaMA-Factory is
    meant where it trains, too, and ms-swift trains reward models as TRL. None for others."""
    from vlmplan.other_trainers.writing import Tool

    tools = {
        Tool.LLAMA_FACTORY: TaskTrainer.LLAMA_FACTORY,
        Tool.MS_SWIFT: TaskTrainer.MS_SWIFT,
        Tool.AXOLOTL: TaskTrainer.AXOLOTL,
    }
    if own.made_for is Tool.MS_SWIFT and task.is_reward and own.task.trainer is None:  # whose trainer is TRL's
        return replace(own, task=replace(own.task, reentrant_checkpoints=False))
    is_meant = task.is_of_llama_factory and own.made_for is None
    tool = Tool.LLAMA_FACTORY if is_meant else own.made_for
    trainer = None if tool is None else tools.get(tool)
    loss = None if trainer is None else LOSSES_OF_TASKS.get((trainer, task.kind))
    if tool is None or trainer is None or loss is None or own.task.trainer not in (None, trainer):
        return None
    decided = own.recipe.completed(DecidedRecipe(loss=loss))
    return replace(own, task=replace(own.task, trainer=trainer), recipe=decided, made_for=tool)


def _with_own_loss(own: Request, task: TrainingTask) -> Request:
    """A reward model has one loss."""
    loss = LossKind.BRADLEY_TERRY if task.is_reward else None
    return replace(own, recipe=own.recipe.completed(DecidedRecipe(loss=loss)))


def _as_trls_scripts(own: Request, task: TrainingTask) -> Request:
    """What TRL's own scripts do where the user says nothing, and the bundled trainer does otherwise."""
    from vlmplan.other_trainers.trl.grpo import VLLM_MEMORY

    decided = own.recipe.completed(DecidedRecipe(input_gradients=InputGradients.ALL))
    if task.uses_vllm_here and task.vllm_memory is None:
        own = replace(own, task=replace(own.task, vllm_memory=VLLM_MEMORY))
    return replace(own, recipe=decided)


def configured_request(own: Request, opened: "OpenedConfig", find_model: Callable[[str], ModelFiles]) -> Request:
    """``own`` with what the file means where nothing else is said."""
    from vlmplan.other_trainers import deepspeed_optimizer, read_opened, refuse_contradictions

    path = opened.path
    config = read_opened(opened, _asked(own, find_model))
    if own.ds_config is not None:
        config = replace(config, options={**config.options, **deepspeed_optimizer(own.ds_config)})
    if own.model is None and "model" not in config.options:
        raise InputError(f"{path} names no model; give --model")
    if own.made_for is not None:
        _refuse_another_trainer(own.made_for, config)
    alone = Request().with_options(config.options)
    clipping = DecidedRecipe(gradient_clipping=config.gradient_clipping)
    alone = replace(
        alone,
        workload=replace(alone.workload, saving=config.saving, loader_workers=config.loader_workers),
        recipe=alone.recipe.completed(clipping),
        ds_config=config.ds_config,
    )
    notes = (_summary(config), *(_of_file(path, one) for one in (*config.notes, *_overridden(own, config))))
    configured = ConfiguredRequest(
        path=path, opened=opened, config=config, alone=alone, notes=notes, given=own.recipe.names, own=own
    )
    configured = configured.without_notes(*_answered(own.workload))
    whole = replace(own.completed(alone), configured=configured)
    if whole.ds_config is not None:
        refuse_contradictions(config, whole.ds_config, own.recipe.names)
    return whole


def on_other_machines(request: Request, options: Options) -> Request:
    """The request with other values of these options, ``gpu`` among them. A configuration is read again where the
    number of GPUs changes, or whether they compute in bf16: its trainer's launcher and defaults go by that.

    Raises as ``Request.with_options`` and ``configured_request``.
    """
    asked, configured = request.with_options(options), request.configured
    if configured is None or _launched_on(asked.hardware) == _launched_on(request.hardware):
        return asked
    from vlmplan.models import find_model

    own = own_request(asked.options(), asked.given_model)
    whole, data = configured_request(own, configured.opened, find_model), asked.from_data
    return whole if data is None else with_samples(whole, own, data.source.sources, data.image_folder)


def _of_file(path: Path, sentence: str) -> str:
    if sentence.startswith(f"{path} "):
        return sentence
    return type(sentence)(f"{path}: {sentence}")  # a caveat stays one


def _answered(samples: WorkloadRequest) -> list[str]:
    """How notes end whose question the user's own options answer."""
    from vlmplan.data_rules import FOR_LARGEST, FOR_LONGEST

    asked = {FOR_LONGEST: samples.seq_len, FOR_LARGEST: samples.image_size}
    no_images = [FOR_LARGEST] if samples.images_per_sample == 0 else []
    return [end for end, value in asked.items() if value is not None] + no_images


def _refuse_another_trainer(tool: "Tool", config: "TrainerConfig") -> None:
    """Raise InputError where a configuration is not of the trainer that is planned for, whose defaults differ."""
    from vlmplan.other_trainers.writing import title_of, tool_of_trainer

    if tool_of_trainer(config.trainer) is not tool:
        raise InputError(
            f"{config.source} is a configuration of {config.trainer}, but --for {tool.value} plans for "
            f"{title_of(tool)}; give its settings as options"
        )


def _summary(config: "TrainerConfig") -> str:
    return (
        f"{config.source} is read as {config.trainer} reads it: {counted(len(config.said), 'key')}, "
        f"{counted(len(config.defaults), 'default')} of its own, {len(config.idle)} without effect on memory or time; "
        f"vlmplan check lists them"
    )


def _asked(own: Request, find_model: Callable[[str], ModelFiles]) -> "Asked":
    from vlmplan.other_trainers import Asked

    recipe = own.recipe
    return Asked(
        model=own.model,
        num_gpus=_num_gpus(own.hardware),
        num_nodes=own.hardware.node_count,
        uses_deepspeed=True if own.ds_config is not None else _named_engine(recipe),
        shards=recipe.fsdp,
        method=recipe.method,
        precision=recipe.precision,
        computes_in_bf16=partial(_computes_in_bf16, own.hardware),
        find_model=lambda name: find_model(name) if own.given_model is None else own.given_model,
    )


def _computes_in_bf16(hardware: HardwareRequest) -> bool | None:
    """Whether the card that is asked for does; None where it is no one card of the catalog: this machine's, several to
    choose from, or one of the user's own files."""
    from vlmplan.catalog import load_catalog

    gpus = hardware.gpus
    if len(gpus) != 1 or gpus[0].is_this_machine:
        return None
    try:
        return load_catalog().gpu(gpus[0].name).supports_bf16
    except InputError:
        return None


def _launched_on(hardware: HardwareRequest) -> tuple[int | None, bool | None]:
    """What reading a configuration depends on."""
    return _num_gpus(hardware), _computes_in_bf16(hardware)


def _num_gpus(hardware: HardwareRequest) -> int | None:
    """GPUs of all machines; None where a search chooses, or this machine is asked."""
    gpus = hardware.gpus
    counts = {gpu.num_gpus or 1 for gpu in gpus if gpu.num_gpus is not None or not gpu.is_this_machine}
    return counts.pop() * hardware.node_count if len(gpus) == 1 and len(counts) == 1 else None


def _named_engine(recipe: DecidedRecipe) -> bool | None:
    """Whether options name DeepSpeed as the engine; None: they name none."""
    if recipe.zero_stage is not None:
        return recipe.zero_stage != PLAIN
    if recipe.fsdp:
        return False
    offloads = [kind for kind in (recipe.offload_optimizer, recipe.offload_params) if kind is not None]
    return True if (recipe.hpz or 1) > 1 or any(kind.value != "none" for kind in offloads) else None


def _overridden(own: Request, config: "TrainerConfig") -> list[str]:
    """Options of ``own`` that say something else than the configuration."""
    return [
        f"{option_text(name, given)} is taken in place of {_in_place(name, value)}"
        for name, value in config.options.items()
        if (given := own.option(name)) not in (None, value)
    ]


def _in_place(name: str, value: OptionValue) -> str:
    return option_text(name, value) if isinstance(value, bool) else str(value)
