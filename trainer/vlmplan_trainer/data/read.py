"""What a run trains on and is looked at with, read before its model is loaded, and what became of every sample.

``vlmplan launch --dry-run`` asks for the same (``look.py``), so that it says and refuses what the start would.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from vlmplan.chats.samplers import no_videos
from vlmplan.chats.samples import MAX_SENTENCES, ReadReport, Sample, read_chats
from vlmplan.errors import InputError
from vlmplan.plan import Plan
from vlmplan.run.training import TrainerOptions
from vlmplan.sample_audio import no_sounds
from vlmplan.units import counted, is_or_are
from vlmplan.workload import Workload
from vlmplan_trainer.data.batches import PADS_TO, refuse_none, refuse_too_few
from vlmplan_trainer.data.begun_texts import BegunTextEncoder
from vlmplan_trainer.data.cross_attention import CrossAttendedEncoder
from vlmplan_trainer.data.dummy import dummy_samples
from vlmplan_trainer.data.encode import Encoder, PlannedSamples
from vlmplan_trainer.data.fenced_images import FencedImageEncoder
from vlmplan_trainer.data.flat_batches import BATCHES
from vlmplan_trainer.data.language import with_language
from vlmplan_trainer.data.pairs import PairEncoder
from vlmplan_trainer.data.queried_images import QueriedImageEncoder
from vlmplan_trainer.data.scan import DatasetScan, scanned
from vlmplan_trainer.data.seen_pairs import ANSWER, DecoderStart, SeenPairEncoder, is_donut, prompting_of
from vlmplan_trainer.data.sounds import PlannedSounds, refuse_sounds_without_packages
from vlmplan_trainer.data.speech import SpeechEncoder
from vlmplan_trainer.data.videos import VideoLimits, refuse_videos_without_packages
from vlmplan_trainer.data.wrapped_images import WrappedImageEncoder
from vlmplan_trainer.models.decoder_inputs import start_token
from vlmplan_trainer.models.load import Processing, load_processing
from vlmplan_trainer.phases import say_phase
from vlmplan_trainer.probe import configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCounts:
    """What became of the samples of one file, or of made-up ones; ``is_evaluation``: of those of --eval-data.

    ``num_samples`` are trained or evaluated on, each once an epoch, in ``forms`` by name (with those that the plan has
    no room for). ``num_bad`` could not be used at all, ``num_no_room`` could, but do not go into the plan,
    ``num_truncated`` are cut at its length. Lengths are in tokens after the cut.
    """

    name: str
    forms: Mapping[str, int]
    num_samples: int
    num_bad: int
    num_no_room: int
    num_truncated: int
    num_images: int
    num_images_reduced: int
    num_videos: int = 0
    num_sounds: int = 0
    shortest: int
    median_length: float
    longest: int
    seq_len: int
    target_len: int = 0
    """Of answers, where a decoder writes them; 0: they are part of the samples."""
    measures: str = "sample"
    """What the lengths are of."""
    is_evaluation: bool = False
    num_tokens: int = 0
    """Of all samples together."""
    num_learnt: int | None = None
    """Those of them that the loss counts; None: they were not counted."""
    sentences: tuple[str, ...]
    """Of the first samples that are left out, each with its place."""

    @property
    def num_left_out(self) -> int:
        return self.num_bad + self.num_no_room

    def as_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values | {"forms": dict(self.forms), "num_left_out": self.num_left_out, "lines": self.lines()}

    def lines(self) -> list[str]:
        """What the user should see."""
        total = self.num_samples + self.num_left_out
        images = counted(self.num_images, "image") if self.num_images else "no images"
        images += f", {counted(self.num_videos, 'video')}" if self.num_videos else ""
        images += f", {counted(self.num_sounds, 'sound')}" if self.num_sounds else ""
        forms = "; ".join(f"{name}: {count:,}" for name, count in self.forms.items())
        use = "evaluate" if self.is_evaluation else "train"
        measures = f"an {self.measures}" if self.measures == ANSWER else f"a {self.measures}"
        lines = [
            f"{counted(self.num_samples, 'sample')} to {use} on, {images}" + (f" ({forms})" if forms else ""),
            self._lengths(measures),
        ]
        if self.num_truncated:
            limits = [f"--seq-len {self.seq_len}"] if self.seq_len else []
            limits += [f"--target-len {self.target_len}"] if self.target_len else []
            lines.append(
                f"{self.num_truncated:,} of {counted(total, 'sample')} {is_or_are(self.num_truncated)} longer than "
                f"{' or '.join(limits)} and cut"
            )
        if self.num_images_reduced:
            num = self.num_images_reduced
            lines.append(f"{counted(num, 'image')} {is_or_are(num)} larger than the plan's and made smaller")
        if self.num_left_out:
            lines.append(f"{self.num_left_out:,} of {counted(total, 'sample')} {is_or_are(self.num_left_out)} left out")
        return [*lines, *(f"left out: {sentence}" for sentence in self.sentences)]

    def _lengths(self, measures: str) -> str:
        span = f"{counted(self.longest, 'token')} in {measures}"
        if self.shortest < self.longest:
            span = f"{self.shortest:,} to {span}, {self.median_length:,.0f} in the middle one"
        return span if self.num_learnt is None else f"{span}; {self.num_learnt:,} of all {self.num_tokens:,} are learnt"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredData:
    """``samples`` are all that were read, ``scan`` has those to train on."""

    samples: list[Sample]
    scan: DatasetScan
    account: SampleCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The data of a run, and what makes a model's inputs of it."""

    processing: Processing
    encoder: Encoder
    train: GatheredData
    evaluation: GatheredData | None


def read_data(plan: Plan, options: TrainerOptions) -> Data:
    """Read and check everything. Raises InputError, UnavailableError or MissingPackageError with what to do."""
    training = _read_training(plan, options)  # a wrong sample is said before a processor is loaded
    evaluation = None if options.eval_data is None else _read(options.eval_data, plan, options)
    every = [*training[0], *(() if evaluation is None else evaluation[0])]
    refuse_videos_without_packages(every, plan.workload.model.model_type)
    refuse_sounds_without_packages(every)
    processing = with_language(load_processing(plan, random_weights=options.random_weights), plan, options)
    encoder = encoder_of(plan, options, processing)
    if options.dummy_data is not None and not encoder.has_template:
        training = [replace(sample, is_plain=True) for sample in training[0]], training[1]
    train = _gathered(str(options.train_data or "made-up samples"), *training, encoder)
    num_rows = len(BATCHES[plan.recipe.batching].rows_of(train.scan, encoder.seq_len))
    refuse_too_few(train.scan, num_rows=num_rows, samples_per_step=plan.samples_per_step)
    looked_at = None
    if evaluation is not None:
        found = _gathered(str(options.eval_data), *evaluation, encoder)
        looked_at = replace(found, account=replace(found.account, is_evaluation=True))
        try:
            refuse_none(looked_at.scan)
        except InputError as error:
            raise InputError(f"--eval-data {options.eval_data}: {error}") from None
    return Data(processing=processing, encoder=encoder, train=train, evaluation=looked_at)


def _read_training(plan: Plan, options: TrainerOptions) -> tuple[list[Sample], ReadReport]:
    if options.dummy_data is None:
        assert options.train_data is not None
        return _read(options.train_data, plan, options)
    workload = plan.workload
    size = (workload.image_width, workload.image_height)
    samples = dummy_samples(
        options.dummy_data,
        num_images=workload.images_per_sample,
        image_size=size,
        seed=options.seed,
        num_sounds=workload.audios_per_sample,
        sound_seconds=workload.audio_seconds,
        asks=workload.model.reads_prompt or bool((workload.model.preprocessor or {}).get("is_vqa")),
    )
    return samples, ReadReport(num_samples=len(samples), num_bad=0)


def _read(path: Path, plan: Plan, options: TrainerOptions) -> tuple[list[Sample], ReadReport]:
    say_phase(f"reading {path}")
    return read_chats(
        path,
        skips_bad=options.skip_bad_samples,
        image_root=options.image_folder,
        no_videos=no_videos(plan.workload.model.model_type),
        no_sounds=no_sounds(plan.workload.model),
    )


def encoder_of(plan: Plan, options: TrainerOptions, processing: Processing) -> Encoder:
    """What makes inputs of the model of samples, as the plan has them."""
    workload, sounds = plan.workload, _planned_sounds(plan.workload)
    if workload.target_tokens:
        return _encoder_of_pairs(workload, options, processing, sounds)
    planned = PlannedSamples(
        seq_len=workload.seq_len,
        image_size=(workload.image_width, workload.image_height) if workload.images_per_sample else None,
        images_per_sample=workload.images_per_sample,
        videos=VideoLimits(fps=workload.video_fps, most_frames=workload.video_frames, max_pixels=workload.video_pixels),
        clip_frames=workload.clip_frames,
        sounds=sounds,
    )
    kind = encoder_class(processing.model_type)
    return kind(processing.processor, planned, model_type=processing.model_type, skips_bad=options.skip_bad_samples)


def encoder_class(model_type: str) -> type[Encoder]:
    """What encodes samples of models that are a decoder."""
    kinds: Mapping[str, type[Encoder]] = {
        "mllama": CrossAttendedEncoder,
        "hunyuan_vl": WrappedImageEncoder,
        "idefics2": FencedImageEncoder,
        "molmo2": BegunTextEncoder,
        "blip-2": QueriedImageEncoder,
        "instructblip": QueriedImageEncoder,
    }
    return kinds.get(model_type, Encoder)


def _encoder_of_pairs(
    workload: Workload, options: TrainerOptions, processing: Processing, sounds: PlannedSounds | None
) -> PairEncoder:
    """What makes inputs of an encoder and a decoder."""
    processor, config = processing.processor, workload.model.config
    planned = PlannedSamples(seq_len=workload.seq_len, sounds=sounds)
    more = {
        "model_type": processing.model_type,
        "target_len": workload.target_tokens,
        "target_pads_to": PADS_TO if options.dummy_data is None else workload.target_tokens,
        "skips_bad": options.skip_bad_samples,
    }
    if workload.model.hears_prompt:
        return SpeechEncoder(processor, planned, begins_with=config.get("decoder_start_token_id"), **more)
    if not workload.model.encodes_one_image:
        return PairEncoder(processor, planned, **more)
    start = None
    if workload.model.encodes_images_alone:
        token = start_token(configuration(dict(config)), processing.files, processor.tokenizer)
        start = DecoderStart(token=token, is_donut=is_donut(config))
    return SeenPairEncoder(processor, planned, prompting=prompting_of(config, processor), start=start, **more)


def _planned_sounds(workload: Workload) -> PlannedSounds | None:
    """What is planned of sounds; None for a model that hears nothing."""
    if no_sounds(workload.model) is not None:
        return None
    return PlannedSounds(
        model=workload.model, per_sample=workload.audios_per_sample, seconds=workload.audio_seconds or None
    )


def _gathered(name: str, samples: list[Sample], report: ReadReport, encoder: Encoder) -> GatheredData:
    say_phase(f"looking at {counted(len(samples), 'sample')}")
    if encoder.needs_images and not any(sample.images for sample in samples):
        raise InputError(
            f"{name} shows no image, and the model's class takes no text without one; give samples with images"
        )
    scan = scanned(encoder, samples)
    has_prompts = not isinstance(encoder, PairEncoder) or encoder.measures != ANSWER
    account = account_of(name, report, scan, seq_len=encoder.seq_len if has_prompts else 0)
    if isinstance(encoder, PairEncoder):
        account = replace(account, target_len=encoder.target_len, measures=encoder.measures)
    return GatheredData(samples=samples, scan=scan, account=account)


def account_of(name: str, report: ReadReport, scan: DatasetScan, *, seq_len: int) -> SampleCounts:
    """What became of the samples of the file ``name``, by what was read and what the plan has room for."""
    return SampleCounts(
        name=name,
        forms=report.forms,
        num_samples=len(scan.samples),
        num_bad=report.num_bad,
        num_no_room=scan.num_skipped,
        num_truncated=scan.num_truncated,
        num_images=sum(len(sample.images) for sample in scan.samples),
        num_images_reduced=scan.num_images_reduced,
        num_videos=sum(len(sample.videos) for sample in scan.samples),
        num_sounds=sum(len(sample.sounds) for sample in scan.samples),
        shortest=min(scan.lengths, default=0),
        median_length=median(scan.lengths or [0]),
        longest=max(scan.lengths, default=0),
        seq_len=seq_len,
        num_tokens=sum(scan.lengths),
        num_learnt=scan.num_learnt,
        sentences=(*report.sentences, *scan.sentences)[:MAX_SENTENCES],
    )
