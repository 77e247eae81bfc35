"""What ``--data`` decides of a request: how long samples are, which images they have, and how many there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmplan.chats.downscaling import Size
from vlmplan.data_plan.covering import Covering, covering, covering_every_order
from vlmplan.data_plan.lengths import SampleShapes, Trained, sample_shapes, trained
from vlmplan.data_rules import DataRules
from vlmplan.dataset import Dataset, dataset
from vlmplan.dataset.images import ImageAmounts
from vlmplan.models import context_length
from vlmplan.units import counted
from vlmplan.workload import ModelFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Samples, as one trainer gives them to one model. ``found`` are all of them, ``trained`` those at the limit.

    ``limit_source`` says where the limit is from; None: nothing is limited. ``planned_size`` is what images are made no
    larger than, ``max_images`` the most that a sample may show.
    """

    path: Path
    dataset: Dataset
    model: ModelFiles
    rules: DataRules
    found: SampleShapes
    trained: Trained
    limit_source: str | None
    planned_size: Size | None = None
    max_images: int | None = None

    @property
    def amounts(self) -> ImageAmounts:
        return ImageAmounts(self.model, self.rules, self.planned_size)

    @property
    def covering(self) -> Covering:
        """What covers any micro batch that these samples can make."""
        if self.rules.packs:
            return _of_packed_rows(self)
        return covering_every_order(
            self.trained.samples, self.amounts, limit=self.trained.limit, pads_to=self.rules.pads_to
        )

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
                f"--data {name}: {counted(self.found.num_refused, 'sample')} left out, whose images the model's "
                f"processor refuses; first: {self.found.sentences[0]}"
            )
        if kept.num_many_images:
            notes.append(
                f"--data {name}: {counted(kept.num_many_images, 'sample')} left out with more than "
                f"{self.max_images} images (--images-per-sample)"
            )
        if kept.num_no_room:
            notes.append(
                f"--data {name}: {counted(kept.num_no_room, 'sample')} left out, whose images alone take "
                f"{kept.limit:,} tokens or more"
            )
        return notes


def data_source(
    path: Path,
    model: ModelFiles,
    rules: DataRules,
    *,
    limit: int | None = None,
    limit_source: str = "--seq-len",
    planned_size: Size | None = None,
    max_images: int | None = None,
    image_folder: Path | None = None,
    names: Sequence[str] = (),
) -> DataSource:
    """The samples of a file or folder. Raises what ``dataset``, ``sample_shapes`` and ``trained`` raise."""
    read = dataset(path, model, names=names or rules.names, image_folder=image_folder)
    found = sample_shapes(read, model, rules, planned_size)
    source: str | None = limit_source
    if limit is None:
        limit, source = context_length(model), "the model's own limit"
    if limit is None or (source != limit_source and limit >= found.longest):
        limit, source = found.longest, None
    return DataSource(
        path=path,
        dataset=read,
        model=model,
        rules=rules,
        found=found,
        trained=trained(found, rules, limit=limit, max_images=max_images),
        limit_source=source,
        planned_size=planned_size,
        max_images=max_images,
    )


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
    )
