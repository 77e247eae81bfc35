"""The parts of a request: samples and training, machines, and what a search looks for; None or empty is left open."""

import re
from dataclasses import dataclass
from enum import Enum

from vlmplan.errors import InputError, require_within
from vlmplan.gpu_choice import GpuChoice
from vlmplan.hardware import MAX_NUM_NODES, Pricing
from vlmplan.notes import listed
from vlmplan.recipe.evaluation import OPTION_NAMES, Evaluation, Every, Kept, Moment
from vlmplan.recipe.task import OF_VERL, OF_VLLM, SFT, TASK_OPTION_NAMES, TrainingTask, kinds_reading
from vlmplan.recipe.task_choices import (
    Generation,
    IdleOffload,
    KTOLoss,
    Reference,
    ReferenceShards,
    TaskKind,
    TaskTrainer,
)
from vlmplan.run.saving import Saving
from vlmplan.units import GIB, MAX_COUNT
from vlmplan.workload import DEFAULT_IMAGE_SIZE, check_audio

MAX_INTER_NODE_GBIT = 1_000_000
"""What no network comes near."""
MAX_HOST_RAM_GIB = 1_000_000
"""What no machine comes near."""
MAX_DISK_GIB = 1_000_000_000
"""What no file system comes near."""


class Objective(Enum):
    COST = "cost"
    TIME = "time"
    VRAM = "vram"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """Samples and the amount of training, which ``Workload`` checks. ``image_size`` is (width, height) in pixels.
    ``video_fps``, ``video_frames`` and ``video_pixels`` limit what is taken of the videos of given samples,
    ``clip_frames`` is that of ``Workload``. Where the seconds of a sound are said and no number of sounds, a sample has
    one.

    ``saving`` is what the configuration of another trainer says of its checkpoints, ``loader_workers`` what it says of
    processes that open images; ``save_every`` steps and ``keep_last`` are the user's own.
    """

    seq_len: int | None = None
    sample_len: int | None = None
    target_len: int | None = None
    images_per_sample: int | None = None
    image_size: tuple[int, int] | None = None
    num_samples: int | None = None
    epochs: float | None = None
    global_batch: int | None = None
    save_every: int | None = None
    keep_last: int | None = None
    saving: Saving | None = None
    loader_workers: int | None = None
    video_fps: float | None = None
    video_frames: int | None = None
    video_pixels: int | None = None
    audios_per_sample: int | None = None
    audio_seconds: float | None = None
    clip_frames: int | None = None

    def __post_init__(self) -> None:
        check_audio(self.num_audios, 1.0 if self.audio_seconds is None else self.audio_seconds)
        for flag, value in (("--save-every", self.save_every), ("--keep-last", self.keep_last)):
            require_within(flag, value, least=1, most=MAX_COUNT)

    @property
    def num_audios(self) -> int:
        """Sounds of a sample."""
        return int(self.audio_seconds is not None) if self.audios_per_sample is None else self.audios_per_sample

    @property
    def clip_options(self) -> dict[str, int | None]:
        """How videos that are no images to their model are asked for, by options; none where there are none."""
        if self.clip_frames is None:
            return {}
        videos = {"video_frames": self.clip_frames, "videos_per_sample": self.images_per_sample}
        return {"images_per_sample": None, "image_size": None, **videos}


MAX_VIDEO_SECONDS, MAX_VIDEO_FPS = 86_400, 240
"""A day; more than cameras for the public take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest:
    """Videos of a sample: ``frames`` that the model is given of each, whose source is of ``size`` (width, height); in
    place of frames the ``seconds`` of a video, of each of which the model's processor takes ``fps`` frames."""

    per_sample: int | None = None
    frames: int | None = None
    seconds: float | None = None
    fps: float | None = None
    size: tuple[int, int] | None = None

    @property
    def max_pixels(self) -> int | None:
        """Pixels of a frame of ``size``."""
        return None if self.size is None else self.size[0] * self.size[1]

    def __post_init__(self) -> None:
        for flag, value in (("--videos-per-sample", self.per_sample), ("--video-frames", self.frames)):
            require_within(flag, value, least=1, most=MAX_COUNT)
        limits = (("--video-seconds", self.seconds, MAX_VIDEO_SECONDS), ("--video-fps", self.fps, MAX_VIDEO_FPS))
        for flag, rate, most in limits:
            if rate is not None and not 0 < rate <= most:
                raise InputError(f"{flag} is {rate:g}; above 0 and at most {most:,} is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareRequest:
    """Machines. ``gpus``: none is this machine for an estimate, and every offer for a search."""

    gpus: tuple[GpuChoice, ...] = ()
    num_nodes: int | None = None
    host_ram_gib: float | None = None
    disk_gib: float | None = None
    inter_node_gbit: float | None = None
    calibration: bool | None = None

    def __post_init__(self) -> None:
        gib, gbit, disk = self.host_ram_gib, self.inter_node_gbit, self.disk_gib
        if disk is not None and not 0 < disk <= MAX_DISK_GIB:
            raise InputError(f"--disk is {disk:g}; above 0 and at most {MAX_DISK_GIB:,} GiB is needed")
        if gib is not None and not 0 < gib <= MAX_HOST_RAM_GIB:
            raise InputError(f"--host-ram is {gib:g}; above 0 and at most {MAX_HOST_RAM_GIB:,} GiB is needed")
        require_within("--num-nodes", self.num_nodes, least=1, most=MAX_NUM_NODES)
        if gbit is not None and not 0 < gbit <= MAX_INTER_NODE_GBIT:
            raise InputError(f"--inter-node-gbit is {gbit:g}; above 0 and at most {MAX_INTER_NODE_GBIT:,} is needed")

    @property
    def node_count(self) -> int:
        """One where nothing is said."""
        return 1 if self.num_nodes is None else self.num_nodes

    @property
    def uses_calibration(self) -> bool:
        """Whether what was measured on such a GPU counts."""
        return self.calibration is not False

    @property
    def host_bytes(self) -> int | None:
        """Memory of each host."""
        return None if self.host_ram_gib is None else max(1, round(self.host_ram_gib * GIB))

    @property
    def disk_bytes(self) -> int | None:
        """Room of the output folder."""
        return None if self.disk_gib is None else max(1, round(self.disk_gib * GIB))

    @property
    def inter_node_bytes_per_second(self) -> float | None:
        return None if self.inter_node_gbit is None else self.inter_node_gbit * 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What is evaluated between steps; nothing without ``batch``. Fields as ``Evaluation`` has them."""

    batch: int | None = None
    samples: int | None = None
    every: Every | None = None
    kept: Kept | None = None
    accumulation: int | None = None
    new_tokens: int | None = None
    beams: int | None = None
    computes_loss: bool | None = None
    fuses_loss: bool | None = None
    generations: int | None = None
    on_start: bool | None = None
    delay: float | None = None
    after_training: bool | None = None
    early_stopping_patience: int | None = None
    early_stopping_threshold: float | None = None
    load_best_model_at_end: bool | None = None

    def evaluation(self) -> Evaluation | None:
        """The evaluation that is asked for; None where nothing is evaluated. Raises InputError for values out of range,
        and for any without a batch."""
        if self.batch is None:
            given = [option for name, option in OPTION_NAMES.items() if getattr(self, name) is not None]
            if given:
                raise InputError(f"{given[0]} is given without --eval-batch; give the samples of a GPU at a time too")
            return None
        if self.beams is not None and self.beams > 1 and not self.new_tokens:
            raise InputError(
                f"--eval-beams is {self.beams}, but nothing is generated; give --eval-new-tokens too, or leave it off"
            )
        if self.keeps_best and self.computes_loss is False:
            raise InputError("--no-eval-loss leaves no loss by which the best evaluation is known; leave it off")
        return Evaluation(
            batch=self.batch,
            samples=self.samples,
            every=Moment.EPOCH if self.every is None else self.every,
            kept=self.kept or Kept.LOSS,
            accumulation=self.accumulation,
            new_tokens=self.new_tokens or 0,
            beams=1 if self.beams is None else self.beams,
            computes_loss=self.computes_loss is not False,
            fuses_loss=self.fuses_loss is not False,
            generations=self.generations,
            on_start=bool(self.on_start),
            delay=self.delay or 0.0,
            after_training=bool(self.after_training),
            early_stopping_patience=self.early_stopping_patience,
            early_stopping_threshold=self.early_stopping_threshold or 0.0,
            load_best_model_at_end=bool(self.load_best_model_at_end),
        )

    @property
    def keeps_best(self) -> bool:
        """Whether the best is the result."""
        return bool(self.load_best_model_at_end) or self.early_stopping_patience is not None

    @classmethod
    def of(cls, evaluation: Evaluation | None) -> "EvaluationRequest":
        """What asks for this one."""
        return cls() if evaluation is None else cls(**{name: getattr(evaluation, name) for name in OPTION_NAMES})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """What is trained for. ``kind`` is that of a task or ``sft``; the other fields as ``TrainingTask`` has them."""

    kind: TaskKind | str | None = None
    reference: Reference | None = None
    completion_tokens: int | None = None
    num_generations: int | None = None
    steps_per_generation: int | None = None
    num_iterations: int | None = None
    generation: Generation | None = None
    vllm_memory: float | None = None
    vllm_sleep_level: int | None = None
    vllm_tensor_parallel: int | None = None
    reward_params: int | None = None
    kto_loss: KTOLoss | None = None
    reentrant_checkpoints: bool | None = None
    disables_dropout: bool | None = None
    router_loss: bool | None = None
    trainer: TaskTrainer | None = None
    scoring_batch: int | None = None
    idle_offload: IdleOffload | None = None
    reference_shards: ReferenceShards | None = None
    sync_buffer_mib: int | None = None
    sync_groups: int | None = None

    def task(self) -> TrainingTask | None:
        """The task that is asked for; None for samples as they are. Raises InputError for values out of range, and for
        those of another task."""
        given = {name: getattr(self, name) for name in TASK_OPTION_NAMES if getattr(self, name) is not None}
        kind = given.pop("kind", SFT)
        if not isinstance(kind, TaskKind):
            for name in given:
                allowed = _task_names(name)
                raise InputError(f"{TASK_OPTION_NAMES[name]} is given with --task {kind}; it is of --task {allowed}")
            return None
        task = TrainingTask(kind=kind, **given)
        for name in given:
            if kind not in kinds_reading(name):
                others = _task_names(name)
                raise InputError(
                    f"{TASK_OPTION_NAMES[name]} is of --task {others}, but --task is {kind.value}; leave it off"
                )
            if not task.uses_vllm_here and name in OF_VLLM:
                by = task.generation.value
                raise InputError(f"{TASK_OPTION_NAMES[name]} is of --generation vllm, but it is {by}; leave it off")
            if name in OF_VERL and not task.reads(name):
                raise InputError(f"{TASK_OPTION_NAMES[name]} is of --task-trainer {_readers_of(name)}; leave it off")
        return task

    @classmethod
    def of(cls, task: TrainingTask | None) -> "TaskRequest":
        """What asks for this one."""
        if task is None:
            return cls()
        names = [
            name
            for name in TASK_OPTION_NAMES
            if task.kind in kinds_reading(name)
            and (task.uses_vllm_here or name not in OF_VLLM)
            and (name not in OF_VERL or task.reads(name))
        ]
        return cls(**{name: getattr(task, name) for name in names})


def _task_names(field: str) -> str:
    """The tasks that read a field: ``dpo, kto or grpo``."""
    return listed([kind.value for kind in kinds_reading(field)], last="or")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """What a search looks for, and which offers it may take."""

    objective: Objective | None = None
    max_usd: float | None = None
    max_hours: float | None = None
    max_usd_per_hour: float | None = None
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    pricing: tuple[Pricing, ...] = ()
    max_price_age_days: int | None = None
    spot_interruptions_per_day: float | None = None
    download_gbit: float | None = None


def _readers_of(name: str) -> str:
    """Of a field of ``OF_VERL``, whose trainers read it in GRPO."""
    return "ms-swift" if name == "sync_groups" else "verl or easyr1"


def image_size(text: str | None, *, option: str = "--image-size") -> tuple[int, int]:
    """``"448x336"`` → width 448 and height 336. Raises InputError, naming ``option``.

    >>> image_size("448x336")
    (448, 336)
    """
    if text is None:
        return DEFAULT_IMAGE_SIZE
    match = re.fullmatch(r"\s*(\d{1,6})\s*[xX×]\s*(\d{1,6})\s*", text)
    if match is None or not all(int(side) for side in match.groups()):
        needed = "WIDTHxHEIGHT is needed, such as 448x448, with at most 999,999 pixels each"
        raise InputError(f"{option} is {text!r}; {needed}")
    return int(match[1]), int(match[2])
