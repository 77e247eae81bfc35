"""What ``--data`` decides of a request: how long samples are, which images they have, and how many there are."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlmplan.chats.downscaling import Size
from vlmplan.data_plan.covering import Covering, clips_covering, covering, covering_every_order, most_sounds
from vlmplan.data_plan.lengths import ANY, MostShown, SampleShapes, Trained, sample_shapes, trained
from vlmplan.data_rules import DataRules
from vlmplan.dataset import Dataset, dataset
from vlmplan.dataset.images import ImageAmounts
from vlmplan.dataset.media import media_reading
from vlmplan.dataset.videos import VideoAmounts
from vlmplan.errors import InputError
from vlmplan.models import context_length
from vlmplan.sampler import packed
from vlmplan.units import counted
from vlmplan.workload import ModelFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the samples of a run may have at the most. ``limit`` is in tokens, None for the model's own, and ``source``
    says where it is from; ``planned_size`` is what images are made no larger than, ``most`` what a sample shows.
    """

    limit: int | None = None
    source: str = "--seq-len"
    planned_size: Size | None = None
    most: MostShown = ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Samples, as one trainer gives them to one model. ``found`` are all of them, ``trained`` those at the limit.

    ``limit_source`` says where the limit is from; None: nothing is limited. ``planned_size`` and ``most`` are
    those of ``Limits``. ``sources`` has the same samples under other rules.
    """

    path: Path
    dataset: Dataset
    model: ModelFiles
    rules: DataRules
    found: SampleShapes
    trained: Trained
    limit_source: str | None
    planned_size: Size | None = None
    most: MostShown = ANY
    sources: "DataSources" = field(repr=False, compare=False)

    @property
    def amounts(self) -> ImageAmounts:
        return ImageAmounts(self.model, self.rules, self.planned_size)

    @property
    def video_amounts(self) -> VideoAmounts:
        return VideoAmounts(self.model, self.rules, self.amounts)

    @property
    def covering(self) -> Covering:
        """What covers any micro batch that these samples can make."""
        if self.rules.packs:
            return _of_packed_rows(self)
        return covering_every_order(
            self.trained.samples, self.amounts, limit=self.trained.limit, pads_to=self.rules.pads_to
        )

    @property
    def room(self) -> Covering:
        """So many images of one size that no sample has more or larger ones, in no more tokens than they take. Frames
        of videos need no more than the patches of all images together. So it is with sounds and their seconds."""
        samples = self.trained.samples
        shown = Covering(seq_len=0) if self.found.sizes == () else self._room_of_images
        sounds = most_sounds(samples)
        if not sounds.number:
            return shown
        length = shown.seq_len + sounds.number * samples.sound_tokens[sounds.seconds]
        return replace(shown, seq_len=length, audios_per_sample=sounds.number, audio_seconds=sounds.seconds)

    @property
    def _room_of_images(self) -> Covering:
        samples = self.trained.samples
        most, size = self._room
        if samples.shows_clips:
            patches = samples.heaviest.patches
            return clips_covering(samples, self.amounts, num_tokens=0, num_patches=patches, count=most)
        tokens = most * self.amounts.shape(size, most).num_tokens
        return Covering(seq_len=tokens, images_per_sample=most, image_size=size)

    @property
    def _room(self) -> tuple[int, Size]:
        """Images of the room, and their size."""
        shapes = self.trained.samples.shapes
        most = max(shape.num_images for shape in shapes)
        if not self.dataset.has_videos:
            return most, self.found.sizes[-1][1]
        covers = self.covering
        if covers.clip_frames is not None:
            pictures = max(len(sample.images) for sample in self.dataset.samples)
            return max(covers.images_per_sample, pictures), self.found.sizes[-1][1]
        assert covers.image_size is not None
        pictures = [[self.amounts.seen_size(size) for size in sample.images] for sample in self.dataset.samples]
        sizes = {*(size for shown in pictures for size in shown), covers.image_size}
        patches, size = max((self.amounts.shape(size, 1).num_patches, size) for size in sizes)
        needed = -(-self.trained.samples.heaviest.patches // patches)
        return max(needed, *(len(shown) for shown in pictures)), size

    @property
    def num_rows(self) -> int:
        """What a micro batch counts: samples, or the rows that they are packed into."""
        if not self.rules.packs:
            return len(self.trained.samples.shapes)
        return len(packed([shape.tokens for shape in self.trained.samples.shapes], self.trained.limit))

    @property
    def packed_sample_len(self) -> int:
        """Tokens of equal samples with as many pairs of tokens that see each other as these have: Σl² / Σl."""
        lengths = [shape.tokens for shape in self.trained.samples.shapes]
        return min(self.trained.limit, max(1, round(sum(length**2 for length in lengths) / sum(lengths))))

    @property
    def num_changed(self) -> int:
        """Samples that are not trained on as they are: cut or left out."""
        return self.trained.num_over + self.trained.num_many_images + self.trained.num_many_sounds

    @property
    def shrunk_image_fraction(self) -> float:
        """Part of the images that the trainer makes smaller."""
        images = [size for sample in self.dataset.samples for size in sample.images]
        smaller = sum(math.prod(self.amounts.seen_size(size)) < math.prod(size) for size in images)
        return smaller / len(images) if images else 0.0

    @property
    def notes(self) -> list[str]:
        """What the user should know with every number that is made of the samples."""
        name, kept = self.dataset.source, self.trained
        notes = [] if self.dataset.is_exact else [f"--data {name}: {self.dataset.counting}"]
        total = len(self.dataset.samples) + self.dataset.num_bad
        if self.dataset.num_bad:
            first = self.dataset.sentences[0]
            notes.append(f"--data {name}: {self.dataset.num_bad:,} of {total:,} samples cannot be used; first: {first}")
        if self.found.num_refused:
            notes.append(
                f"--data {name}: {counted(self.found.num_refused, 'sample')} left out, whose "
                f"{self._shown_kinds} the model's processor refuses; first: {self.found.sentences[0]}"
            )
        if kept.num_many_images:
            notes.append(
                f"--data {name}: {counted(kept.num_many_images, 'sample')} left out with more than "
                f"{self.most.images} images (--images-per-sample)"
            )
        if kept.num_many_sounds:
            notes.append(
                f"--data {name}: {counted(kept.num_many_sounds, 'sample')} left out with more or longer sounds, or "
                f"more said in them, than {' or '.join(self.most.options)} says"
            )
        if kept.num_no_room:
            notes.append(
                f"--data {name}: {counted(kept.num_no_room, 'sample')} left out, whose {self._shown_kinds} alone take "
                f"{kept.limit:,} tokens or more"
            )
        return notes

    @property
    def _shown_kinds(self) -> str:
        """What samples show, in words."""
        kinds = {"images": self.dataset.has_images, "sounds": self.dataset.has_sounds}
        return " or ".join(name for name, is_shown in kinds.items() if is_shown)


class DataSources:
    """The samples of a file or folder under any rules and limits, each computed once. They are read when it is made, as
    the trainer of ``rules`` does: raises what ``dataset`` raises."""

    def __init__(self, path: Path, model: ModelFiles, rules: DataRules, *, image_folder: Path | None = None) -> None:
        if model.encodes_one_image:
            given = "--target-len" if model.encodes_images_alone else "--seq-len and --target-len"
            raise InputError(
                f"--data {path}: answers are not measured for {model.id}, whose encoder reads an image; give {given}, "
                f"and the samples to vlmplan launch (--train-data)"
            )
        self._path, self._model = path, model
        self._dataset = dataset(
            path, model, names=rules.names, image_folder=image_folder, media=media_reading(model, rules)
        )
        self._shapes: dict[tuple[Any, ...], SampleShapes] = {}
        self._sources: dict[tuple[DataRules, Limits], DataSource] = {}

    @property
    def has_videos(self) -> bool:
        return self._dataset.has_videos

    def source(self, rules: DataRules, limits: Limits) -> DataSource:
        """The samples under these rules. Raises what ``sample_shapes`` and ``trained`` raise."""
        if (rules, limits) not in self._sources:
            self._sources[rules, limits] = self._source(rules, limits)
        return self._sources[rules, limits]

    def _source(self, rules: DataRules, limits: Limits) -> DataSource:
        found, most = self._found(rules, limits.planned_size), limits.most
        if most.answer_tokens is None and self._model.is_encoder_decoder:
            most = replace(most, answer_tokens=context_length(self._model))
        limit: int | None = limits.limit
        source: str | None = limits.source
        longest = found.longest
        if limit is None:
            limit, source = context_length(self._model), "the model's own limit"
            if self._model.hears_prompt:
                limit = longest
        if limit is None or (source != limits.source and limit >= longest):
            limit, source = longest, None
        return DataSource(
            path=self._path,
            dataset=self._dataset,
            model=self._model,
            rules=rules,
            found=found,
            trained=trained(found, rules, limit=limit, most=most),
            limit_source=source,
            planned_size=limits.planned_size,
            most=most,
            sources=self,
        )

    def _found(self, rules: DataRules, planned: Size | None) -> SampleShapes:
        key = (rules.min_pixels, rules.max_pixels, rules.videos, planned)
        if key not in self._shapes:
            self._shapes[key] = sample_shapes(self._dataset, self._model, rules, planned)
        return self._shapes[key]


def _of_packed_rows(source: DataSource) -> Covering:
    """Rows of the limit, of samples as many as fit: images as dense as in the sample that has most for its length."""
    samples, limit = source.trained.samples, source.trained.limit
    densest = max(samples.shapes, key=lambda shape: shape.patches / shape.tokens)
    rows = limit / densest.tokens
    return covering(
        samples,
        source.amounts,
        num_tokens=limit,
        num_patches=round(densest.patches * rows),
        num_images=max(1, round(densest.num_images * rows)),
        num_rows=1,
        sounds=most_sounds(samples),
    )
