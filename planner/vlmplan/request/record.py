"""What a user asked for, as options of the command line or arguments of a program: every option is read here, once.

``parse`` (in ``parsing``) makes a ``Request`` of options; ``Request.options`` is the inverse. A question that differs
from another is made with ``Request.with_options`` or ``dataclasses.replace``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmplan.errors import InputError
from vlmplan.gpu_choice import GpuChoice, parse_gpu_choice
from vlmplan.hardware import Pricing
from vlmplan.recipe import PLAIN
from vlmplan.recipe.choices import enum_value
from vlmplan.recipe.decided import WITHOUT_OPTION, DecidedRecipe, completed
from vlmplan.recipe.evaluation import COUNTED, OF_BEST, Evaluation, Every, Kept, every_value, parse_every
from vlmplan.recipe.settings import RecipeSettings, option_name
from vlmplan.recipe.switches import option_text
from vlmplan.recipe.task import SFT, TASK_OPTION_NAMES, TrainingTask
from vlmplan.recipe.task_choices import (
    Generation,
    IdleOffload,
    KTOLoss,
    Reference,
    ReferenceShards,
    TaskKind,
    TaskTrainer,
)
from vlmplan.request.parts import (
    EvaluationRequest,
    HardwareRequest,
    Objective,
    SearchRequest,
    TaskRequest,
    VideoRequest,
    WorkloadRequest,
    image_size,
)
from vlmplan.units import size_text
from vlmplan.workload import ModelFiles

if TYPE_CHECKING:
    from vlmplan.data_plan import DataSource
    from vlmplan.deepspeed_config import DsConfig
    from vlmplan.other_trainers import OpenedConfig, TrainerConfig
    from vlmplan.other_trainers.writing import Tool

OptionValue = bool | int | float | str | Path | tuple[str, ...] | None
"""A value of an option as the command line has it; None: the option is not given."""
Options = Mapping[str, OptionValue]
"""Values by the names of options, with underscores."""

_DEFAULTS: Mapping[str, object] = {item.name: item.default for item in fields(RecipeSettings)}
_RECIPE_OPTIONS = [item.name for item in fields(DecidedRecipe) if item.name not in (*WITHOUT_OPTION, "zero_stage")]
"""Settings of the recipe that have an option; the stage is read and written by rules of its own."""
ENUM_OPTIONS: Mapping[str, type[Enum]] = {
    name: type(default) for name in _RECIPE_OPTIONS if isinstance(default := _DEFAULTS[name], Enum)
}
VALUE_OPTIONS = tuple(name for name in _RECIPE_OPTIONS if name not in ENUM_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredRequest:
    """The configuration of another trainer that a request is made of, and what it means by itself. ``notes`` are
    sentences that the user should see, ``given`` the fields of the recipe that he decided beside it, ``own`` all that
    he asked beside it. ``opened`` is the file, to be read for other machines."""

    path: Path
    opened: "OpenedConfig" = field(repr=False, compare=False)
    config: "TrainerConfig"
    alone: "Request"
    notes: tuple[str, ...]
    given: frozenset[str] = frozenset()
    own: "Request | None" = field(default=None, repr=False)

    def without_notes(self, *parts: str) -> "ConfiguredRequest":
        """The same without the notes that hold one of these."""
        config, notes = (
            tuple(note for note in notes if not any(part in note for part in parts))
            for notes in (self.config.notes, self.notes)
        )
        return replace(self, config=replace(self.config, notes=config), notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FromData:
    """The samples that a request is made of, and what they decide by themselves; ``own`` is what the user says of
    samples beside them, which are limits then. ``image_folder`` is the user's."""

    source: "DataSource" = field(hash=False)
    alone: WorkloadRequest
    own: WorkloadRequest
    image_folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything that a user asked for and nothing that he did not. ``ds_config`` is the file of ``--ds-config``.

    ``given_model`` is the model where its configuration is given and not only ``model``, its name. What ``configured``
    and ``from_data`` mean is among the other fields already, under what the user's own options say. ``made_for`` is the
    trainer that is to run it, None the bundled one; ``is_made_for_task``: the bundled one hands it a task. ``videos``
    have become images of ``workload`` once it is parsed, of which ``video_notes`` tell.
    """

    model: str | None = None
    workload: WorkloadRequest = field(default_factory=WorkloadRequest)
    videos: VideoRequest = field(default_factory=VideoRequest)
    hardware: HardwareRequest = field(default_factory=HardwareRequest)
    recipe: DecidedRecipe = field(default_factory=DecidedRecipe)
    evaluation: EvaluationRequest = field(default_factory=EvaluationRequest)
    task: TaskRequest = field(default_factory=TaskRequest)
    ds_config: "DsConfig | None" = None
    search: SearchRequest = field(default_factory=SearchRequest)
    configured: ConfiguredRequest | None = None
    given_model: ModelFiles | None = None
    made_for: "Tool | None" = None
    is_made_for_task: bool = False
    from_data: FromData | None = None
    video_notes: tuple[str, ...] = ()

    @property
    def config_notes(self) -> tuple[str, ...]:
        """What the user should know of how his configuration and his samples were read, and of the trainer that is
        planned for."""
        notes = (*(() if self.configured is None else self.configured.notes), *self.video_notes)
        notes = (*notes, *(() if self.from_data is None else self.from_data.source.notes))
        if self.made_for is None:
            return notes
        from vlmplan.other_trainers.writing import title_of

        return (*notes, f"planned as {title_of(self.made_for)} trains; what it cannot do is left out")

    @property
    def written_for(self) -> "Tool | None":
        """The trainer whose files are written; None where it is the bundled one that runs."""
        return None if self.is_made_for_task else self.made_for

    @property
    def decided(self) -> DecidedRecipe:
        """What is decided of the recipe, its evaluation and its task too. Raises InputError for what cannot be."""
        return replace(self.recipe, evaluation=self._evaluation(), task=self._task())

    def _evaluation(self) -> Evaluation | None:
        """The evaluation that is asked for, with what the trainer that is planned for evaluates in any case."""
        asked = self.evaluation.evaluation()
        if asked is None or self.written_for is None:
            return asked
        from vlmplan.other_trainers.writing import evaluated_by, title_of

        found = evaluated_by(self.written_for, asked, self.model_files)
        for name in ("on_start", "after_training"):
            if getattr(self.evaluation, name) is False and getattr(found, name):
                option = option_text(f"eval_{name}", False)
                raise InputError(f"{title_of(self.written_for)} evaluates then in any case; leave {option} off")
        return found

    def _task(self) -> TrainingTask | None:
        """The task that is asked for, with the checkpoints of TRL's trainers where its own script or axolotl runs
        them."""
        task = self.task.task()
        if task is None or task.is_grpo or self.task.reentrant_checkpoints is not None:
            return task
        is_of_script = task.trainer is TaskTrainer.TRL and self.written_for is not None
        is_of_axolotl = task.is_of_axolotl and task.reference is not Reference.NONE
        return replace(task, reentrant_checkpoints=None) if is_of_script or is_of_axolotl else task

    @property
    def model_files(self) -> ModelFiles:
        """The model, where it is certain that one is named. Raises as ``find_model`` does."""
        from vlmplan.models import find_model

        assert self.model is not None
        return find_model(self.model) if self.given_model is None else self.given_model

    def with_options(self, options: Options) -> "Request":
        """The request with other values of these options; None takes one away.

        Raises InputError for a value that is not allowed, UnavailableError for a file that cannot be read.
        """
        values: dict[str, dict[str, object]] = {"": {}}
        for name, value in options.items():
            option = OPTIONS[name]
            values.setdefault(option.part, {})[option.field] = option.read(value)
        own = values.pop("")
        own |= {part: replace(getattr(self, part), **changes) for part, changes in values.items()}
        return replace(self, **own)

    def option(self, name: str) -> OptionValue:
        """The value of one option; None where it is open, or as ``configured`` or the samples have it."""
        option = OPTIONS[name]
        if self.from_data is None and name in self.workload.clip_options:
            return self.workload.clip_options[name]
        if self.from_data is not None and self._has_as_data(option, self.from_data):
            value = getattr(self.from_data.own, option.field)
        elif name != "config" and self.configured is not None and self._has_as_configured(option):
            value = None
        elif name == "made_for":
            value = self.written_for
        else:
            value = getattr(getattr(self, option.part) if option.part else self, option.field)
        return None if value in (None, ()) else option.write(value)

    def _has_as_configured(self, option: "_Option") -> bool:
        assert self.configured is not None
        mine, its = (getattr(one, option.part) if option.part else one for one in (self, self.configured.alone))
        return getattr(mine, option.field) == getattr(its, option.field)

    def _has_as_data(self, option: "_Option", data: FromData) -> bool:
        if option.part != "workload":
            return False
        alone = getattr(data.alone, option.field)
        return alone is not None and getattr(self.workload, option.field) == alone

    def options(self) -> dict[str, OptionValue]:
        """The values of all options, so that ``parse`` makes the same request of them."""
        return {name: self.option(name) for name in OPTIONS}

    def with_room_for_images(self) -> "Request":
        """The request for samples of ``--data`` with as many images and sounds each as one has at the most, all of
        the largest size and length, and no shorter than those take: the bundled trainer makes no image smaller then,
        and leaves no sample out. Of samples with videos it goes by the patches of all that they show
        (``DataSource.room``)."""
        alone = None if self.from_data is None else self.from_data.alone
        if self.from_data is None or alone is None or (alone.image_size is None and alone.audio_seconds is None):
            return self
        source, planned = self.from_data.source, self.workload
        room = source.room
        longest = max(planned.seq_len or 0, room.seq_len)
        workload = replace(
            planned,
            images_per_sample=room.images_per_sample,
            image_size=room.image_size,
            clip_frames=room.clip_frames,
            audios_per_sample=room.audios_per_sample or None,
            audio_seconds=room.audio_seconds or None,
            seq_len=longest,
        )
        return replace(self, workload=workload)

    def completed(self, defaults: "Request") -> "Request":
        """The request, with what is open here as ``defaults`` has it."""
        parts = {name: completed(getattr(self, name), getattr(defaults, name)) for name in PARTS}
        is_made_for_task = (self if self.made_for is not None else defaults).is_made_for_task
        return replace(completed(self, defaults), **parts, is_made_for_task=is_made_for_task)


PARTS = ("workload", "videos", "hardware", "recipe", "evaluation", "task", "search")


# -- how each option is read and written -----------------------------------------------------------------------------


def _unchanged(value: Any) -> Any:
    return value


class _Option(NamedTuple):
    """The place of an option in a request, and how its value is read and written. ``part`` is empty for the request
    itself."""

    part: str
    field: str
    reads: Callable[[Any], Any] = _unchanged
    write: Callable[[Any], OptionValue] = _unchanged
    is_repeatable: bool = False

    def read(self, value: OptionValue) -> Any:
        if self.is_repeatable:
            texts = value if isinstance(value, tuple) else () if value is None else (str(value),)
            return tuple(self.reads(text) for text in texts)
        return None if value is None else self.reads(value)


def _gpu_texts(gpus: tuple[GpuChoice, ...]) -> str | tuple[str, ...]:
    return str(gpus[0]) if len(gpus) == 1 else tuple(map(str, gpus))


def _ds_config(config: str | Path | Mapping[str, Any]) -> "DsConfig":
    from vlmplan.deepspeed_config import settings_from_ds_config

    return settings_from_ds_config(config)


def _path_of(config: "DsConfig") -> Path:
    return Path(config.source)


def _tool(name: str) -> "Tool":
    from vlmplan.other_trainers.writing import Tool

    return enum_value(Tool, name, "--for")


def _task_kind(name: str) -> TaskKind | str:
    return name if name == SFT else enum_value(TaskKind, name, "--task")


def _task_name(kind: TaskKind | str) -> str:
    return kind.value if isinstance(kind, TaskKind) else kind


def _video_size(text: str) -> tuple[int, int]:
    return image_size(text, option="--video-size")


def _stage(value: Any) -> Any:
    return PLAIN if str(value) == PLAIN else int(value)


def _value(member: Enum) -> str:
    return str(member.value)


def _values(members: tuple[Enum, ...]) -> tuple[str, ...]:
    return tuple(map(_value, members))


def _every(value: Any) -> Every:
    return parse_every(str(value))


def _choice(part: str, field: str, kind: type[Enum], option: str) -> _Option:
    return _Option(part=part, field=field, reads=partial(enum_value, kind, name=option), write=_value)


def _part(part: str, *names: str) -> dict[str, _Option]:
    return {name: _Option(part=part, field=name) for name in names}


OPTIONS: Mapping[str, _Option] = {
    "config": _Option(part="", field="configured", write=attrgetter("path")),
    "made_for": _Option(part="", field="made_for", reads=_tool, write=_value),
    "model": _Option(part="", field="model"),
    "data": _Option(part="", field="from_data", write=attrgetter("source.path")),
    "image_folder": _Option(part="", field="from_data", write=attrgetter("image_folder")),
    "gpu": _Option(part="hardware", field="gpus", reads=parse_gpu_choice, write=_gpu_texts, is_repeatable=True),
    "num_nodes": _Option(part="hardware", field="num_nodes"),
    "ds_config": _Option(part="", field="ds_config", reads=_ds_config, write=_path_of),
    **_part(
        "workload", "seq_len", "sample_len", "target_len", "images_per_sample", "num_samples", "epochs", "global_batch"
    ),
    **_part("workload", "audios_per_sample", "audio_seconds", "save_every", "keep_last"),
    "host_ram": _Option(part="hardware", field="host_ram_gib"),
    "disk": _Option(part="hardware", field="disk_gib"),
    "image_size": _Option(part="workload", field="image_size", reads=image_size, write=size_text),
    "videos_per_sample": _Option(part="videos", field="per_sample"),
    "video_frames": _Option(part="videos", field="frames"),
    "video_seconds": _Option(part="videos", field="seconds"),
    "video_fps": _Option(part="videos", field="fps"),
    "video_size": _Option(part="videos", field="size", reads=_video_size, write=size_text),
    "zero_stage": _Option(part="recipe", field="zero_stage", reads=_stage, write=str),
    **_part("recipe", *VALUE_OPTIONS),
    **{name: _choice("recipe", name, kind, option_name(name)) for name, kind in ENUM_OPTIONS.items()},
    **{f"eval_{name}": _Option(part="evaluation", field=name) for name in COUNTED},
    "eval_every": _Option(part="evaluation", field="every", reads=_every, write=every_value),
    "eval_keeps": _choice("evaluation", "kept", Kept, "--eval-keeps"),
    **{f"eval_{name}": _Option(part="evaluation", field=name) for name in ("on_start", "delay", "after_training")},
    **_part("evaluation", *OF_BEST),
    "eval_loss": _Option(part="evaluation", field="computes_loss"),
    "eval_fused_loss": _Option(part="evaluation", field="fuses_loss"),
    **{option[2:].replace("-", "_"): _Option(part="task", field=name) for name, option in TASK_OPTION_NAMES.items()},
    "task": _Option(part="task", field="kind", reads=_task_kind, write=_task_name),
    "reference": _choice("task", "reference", Reference, "--reference"),
    "kto_loss": _choice("task", "kto_loss", KTOLoss, "--kto-loss"),
    "generation": _choice("task", "generation", Generation, "--generation"),
    "task_trainer": _choice("task", "trainer", TaskTrainer, "--task-trainer"),
    "reference_shards": _choice("task", "reference_shards", ReferenceShards, "--reference-shards"),
    "idle_offload": _choice("task", "idle_offload", IdleOffload, "--idle-offload"),
    **_part("hardware", "inter_node_gbit", "calibration"),
    "objective": _Option(part="search", field="objective", reads=Objective, write=_value),
    **_part("search", "max_usd", "max_hours", "max_usd_per_hour"),
    "provider": _Option(part="search", field="providers", is_repeatable=True),
    "region": _Option(part="search", field="regions", is_repeatable=True),
    "pricing": _Option(part="search", field="pricing", reads=Pricing, write=_values, is_repeatable=True),
    **_part("search", "max_price_age_days", "spot_interruptions_per_day", "download_gbit"),
}
"""In the order in which a command that is made of a plan has them."""
