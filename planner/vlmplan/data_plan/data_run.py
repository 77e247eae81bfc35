"""What the micro batches of real samples take: the peak of the worst, the time of all, and what is only padding.

Peaks and seconds are those of ``estimate`` for equal samples that cover a micro batch. Seconds are computed at a few
lengths and numbers of patches and read off straight lines between them.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from vlmplan.chats.downscaling import Size
from vlmplan.data_plan.covering import Covering, Sounds, covering
from vlmplan.data_plan.hangs import hang_of
from vlmplan.data_plan.lengths import Trained
from vlmplan.data_plan.sampling import MicroBatch, Ranks, micro_steps, rows_of
from vlmplan.data_plan.source import DataSource
from vlmplan.data_rules import DataRules, Order
from vlmplan.dataset.images import ImageAmounts
from vlmplan.estimation import Estimate, Estimator
from vlmplan.workload import Workload

NUM_LENGTHS, NUM_PATCHES, NUM_ANSWERS = 17, 5, 5
"""At which seconds are computed. A choice: between them they are off by a thousandth or two (attention grows with
the square of a length)."""
MAX_DRAWN_SAMPLES, MAX_COMPARED_SAMPLES = 100_000, 25_000
"""Of a run that are put into micro batches one by one, but a whole epoch of it at the least, and of what it is compared
with; longer runs are as their beginnings. A choice: half a second."""
MAX_CANDIDATES = 24
"""Micro batches whose peaks are computed at most; of more on the front the neighbours are taken as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstMicroBatch:
    """The micro batch with the highest peak, as the samples that cover it, and the step of the drawn order in which it
    comes, from 1."""

    covering: Covering
    micro_batch: MicroBatch
    step: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRun:
    """A run on samples as they are. Bytes are of tensors at the peak of the fullest GPU.

    ``bound_bytes`` are those that no order of the samples exceeds, of samples like ``bound``. ``training_seconds``
    are all steps; None if a speed is not known. ``evaluation_seconds`` are those of all evaluations, as far as they are
    known. ``padding_fraction``: part of the computed tokens that are padding. ``hang`` is
    the sentence why ranks may wait for each other for ever.
    """

    order: Order
    trained: Trained
    worst: WorstMicroBatch
    bound: Covering
    bound_bytes: int
    steps_per_epoch: int
    num_steps: int
    padding_fraction: float
    training_seconds: float | None
    evaluation_seconds: float = 0.0
    hang: str | None = None

    @property
    def step_seconds(self) -> float | None:
        return None if self.training_seconds is None else self.training_seconds / self.num_steps

    @property
    def run_seconds(self) -> float | None:
        """Seconds of all steps and evaluations."""
        return None if self.training_seconds is None else self.training_seconds + self.evaluation_seconds


class DataRuns:
    """The runs of one estimate's setup on its samples, under the trainer's rules or others."""

    def __init__(self, found: Estimate, source: DataSource, *, estimator: Estimator | None = None) -> None:
        self._found, self._source = found, source
        self._estimator = estimator or Estimator(found.workload, found.recipe)
        self._peaks: dict[Covering, int] = {}
        self._seconds: dict[Covering, float | None] = {}

    def data_run(self, trained: Trained, rules: DataRules) -> DataRun:
        """What becomes of ``trained`` under ``rules``."""
        return self.of(replace(self._source, rules=rules, trained=trained), MAX_COMPARED_SAMPLES)

    def image_tokens(self, covers: Covering, size: Size) -> int:
        """Tokens of an image of this size in such a sample. Raises InputError for one that is refused."""
        return covers.image(self._source.amounts, size).num_tokens

    def sound_tokens(self, covers: Covering) -> int:
        """Tokens of all sounds of such a sample."""
        if not covers.audios_per_sample:
            return 0
        return covers.audios_per_sample * self._source.found.sound_tokens[covers.audio_seconds]

    def of(self, source: DataSource, most_samples: int | None = None) -> DataRun:
        """What becomes of the samples of ``source``; of ``most_samples`` of them where a beginning will do."""
        trained, rules = source.trained, source.rules
        amounts, recipe = source.amounts, self._found.recipe
        ranks = Ranks(recipe.micro_batch, self._found.cluster.num_gpus, recipe.grad_accum)
        workload = self._found.workload
        bound = source.covering
        run = _drawn_run(trained, rules, ranks, workload.epochs, most_samples)
        coverings = _Coverings(trained, amounts, ranks.micro_batch)
        worst = max(
            (self._worst(micro_batch, step, coverings) for micro_batch, step in run.candidates()),
            key=lambda one: one.peak_bytes,
        )
        drawn_seconds = self._run_seconds(run, coverings, ranks.grad_accum)
        planned_share = self._source.num_rows / len(self._source.trained.samples.shapes)
        num_rows = workload.num_samples * (run.num_rows / len(trained.samples.shapes)) / planned_share
        num_steps = max(1, -(-round(num_rows * workload.epochs) // ranks.samples_per_step))
        return DataRun(
            order=rules.order,
            trained=trained,
            worst=worst,
            bound=bound,
            bound_bytes=self.peak_bytes(bound),
            steps_per_epoch=run.steps_per_epoch,
            num_steps=num_steps,
            padding_fraction=1 - run.real_tokens / run.computed_tokens,
            training_seconds=None if drawn_seconds is None else drawn_seconds * num_steps / run.num_steps,
            evaluation_seconds=self._found.evaluation_seconds_of(num_steps) or 0.0,
            hang=hang_of(self._found, source),
        )

    def _worst(self, micro_batch: MicroBatch, step: int, coverings: "_Coverings") -> WorstMicroBatch:
        covers = coverings.of(micro_batch)
        return WorstMicroBatch(covering=covers, micro_batch=micro_batch, step=step, peak_bytes=self.peak_bytes(covers))

    def peak_bytes(self, covers: Covering) -> int:
        """Bytes of tensors at the peak of a run on such samples: those of ``estimate``."""
        if covers not in self._peaks:
            estimator = self._estimator.with_samples(self.workload(covers))
            self._peaks[covers] = estimator.timeline(self._found.recipe, self._found.cluster).peak.total
        return self._peaks[covers]

    def seconds(self, covers: Covering) -> float | None:
        """Seconds of a step on such samples."""
        if covers not in self._seconds:
            estimator = self._estimator.with_samples(self.workload(covers))
            timed = estimator.step_time(self._found.recipe, self._found.cluster)
            self._seconds[covers] = None if timed is None else timed.expected.total
        return self._seconds[covers]

    def workload(self, covers: Covering) -> Workload:
        width, height = covers.image_size or (self._found.workload.image_width, self._found.workload.image_height)
        return replace(
            self._found.workload,
            seq_len=covers.seq_len,
            images_per_sample=covers.images_per_sample,
            image_width=width,
            image_height=height,
            clip_frames=covers.clip_frames,
            audios_per_sample=covers.audios_per_sample,
            audio_seconds=covers.audio_seconds,
            target_len=covers.target_len or None,
        )

    def _run_seconds(self, run: "_Run", coverings: "_Coverings", grad_accum: int) -> float | None:
        """Seconds of the drawn steps. In each micro step the ranks wait for the slowest."""
        plain = self._plain(run)
        of_text = self._line([replace(plain, seq_len=length) for length in _spread(*run.lengths, NUM_LENGTHS)])
        of_answers = self._line_of_answers(run, plain)
        of_images = self._line_of_patches(run, coverings)
        of_sounds = _nothing if plain.audios_per_sample else self._line_of_sounds(run, coverings)
        if of_text is None or of_answers is None or of_images is None or of_sounds is None:
            return None

        def seconds(one: MicroBatch) -> float:
            of_both = of_text(one.num_tokens) + of_answers(one.num_answer_tokens)
            return of_both + of_images(one.patches) + of_sounds(one.sound_seconds)

        return sum(max(map(seconds, step)) for step in run.micro_steps) / grad_accum

    def _plain(self, run: "_Run") -> Covering:
        """The longest samples and answers without images, and without sounds but where the encoder hears nothing
        else."""
        answers = max(one.num_answer_tokens for step in run.micro_steps for one in step)
        plain = Covering(seq_len=run.lengths[1], target_len=answers)
        if not self._found.workload.model.hears_prompt:
            return plain
        return replace(plain, audios_per_sample=1, audio_seconds=self._found.workload.audio_seconds)

    def _line_of_answers(self, run: "_Run", plain: Covering) -> Callable[[float], float] | None:
        """Seconds that shorter answers than the longest, beside the longest samples, save of a step."""
        if not plain.target_len:
            return _nothing
        least = max(1, min(one.num_answer_tokens for step in run.micro_steps for one in step))
        lengths = _spread(least, plain.target_len, NUM_ANSWERS)
        found = [self.seconds(replace(plain, target_len=length)) for length in lengths]
        known = [(length, one) for length, one in zip(lengths, found, strict=True) if one is not None]
        if len(known) < len(found):
            return None
        return straight([(length, one - known[-1][1]) for length, one in known])

    def _line(self, points: Sequence[Covering]) -> Callable[[float], float] | None:
        seconds = [self.seconds(point) for point in points]
        if any(one is None for one in seconds):
            return None
        return straight([(point.seq_len, one) for point, one in zip(points, seconds, strict=True) if one is not None])

    def _line_of_patches(self, run: "_Run", coverings: "_Coverings") -> Callable[[float], float] | None:
        """Seconds that images add to a step, by the patches of a micro batch."""
        if not run.most_patches:
            return _nothing
        least, most = run.patches
        points: list[tuple[float, float]] = [(0.0, 0.0)]
        for patches in _spread(least, most, NUM_PATCHES):
            covers = coverings.of_patches(patches, num_tokens=run.lengths[1])
            more = self._more_seconds(covers)
            if more is None:
                return None
            points.append((coverings.patches_of(covers), more))
        return straight(sorted(dict(points).items()))

    def _line_of_sounds(self, run: "_Run", coverings: "_Coverings") -> Callable[[float], float] | None:
        """Seconds that sounds add to a step, by the seconds of all of a micro batch as they are padded."""
        heard = {one.sound_seconds: one for step in run.micro_steps for one in step if one.num_sounds}
        in_order = [heard[length] for length in sorted(heard)]
        points: list[tuple[float, float]] = [(0.0, 0.0)]
        for place in sorted({round(index * (len(in_order) - 1) / (NUM_PATCHES - 1)) for index in range(NUM_PATCHES)}):
            if not in_order:
                break
            covers = coverings.of(in_order[place]._replace(patches=0, num_images=0))
            more = self._more_seconds(covers)
            if more is None:
                return None
            points.append((coverings.sound_seconds_of(covers), more))
        return straight(sorted(dict(points).items()))

    def _more_seconds(self, covers: Covering) -> float | None:
        """What a step on such samples takes beside one on as much text."""
        whole, of_text = self.seconds(covers), self.seconds(covers.of_text)
        return None if whole is None or of_text is None else whole - of_text


def _nothing(at: float) -> float:
    return 0.0


def straight(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """The function that is a straight line between neighbouring points, in ascending order, and beyond the ends.

    >>> straight([(0, 0), (10, 20)])(5)
    10.0
    """
    places = [place for place, _ in points]

    def value(at: float) -> float:
        if len(points) == 1:
            return points[0][1]
        index = min(max(bisect_right(places, at), 1), len(points) - 1)
        (left, low), (right, high) = points[index - 1], points[index]
        return low + (high - low) * (at - left) / (right - left)

    return value


def _spread(least: int, most: int, count: int) -> list[int]:
    """Whole numbers from ``least`` to ``most``, at equal ratios."""
    ratio = most / least
    return sorted({round(least * ratio ** (index / (count - 1))) for index in range(count)})


class _Coverings:
    """Equal samples for micro batches of ``num_rows`` of these samples."""

    def __init__(self, trained: Trained, amounts: ImageAmounts, num_rows: int) -> None:
        self._samples, self._amounts, self._num_rows = trained.samples, amounts, num_rows
        images = sum(shape.num_images for shape in trained.samples.shapes)
        self._patches_per_image = sum(shape.patches for shape in trained.samples.shapes) / max(1, images)

    def of(self, one: MicroBatch) -> Covering:
        covers = covering(
            self._samples,
            self._amounts,
            num_tokens=one.num_tokens,
            num_patches=one.patches,
            num_images=one.num_images,
            num_rows=self._num_rows,
            sounds=Sounds(one.num_sounds, one.seconds),
        )
        return replace(covers, target_len=one.num_answer_tokens)

    def of_patches(self, patches: int, *, num_tokens: int) -> Covering:
        """A micro batch with so many patches, in images of the usual size."""
        images = max(1, round(patches / self._patches_per_image))
        return self.of(MicroBatch(num_tokens, patches, images, 0))

    def patches_of(self, covers: Covering) -> int:
        """Patches that a micro batch of such samples has."""
        image = covers.image(self._amounts)
        patches = image.num_encoded_patches if image.is_clip else image.num_patches
        return self._num_rows * covers.images_per_sample * patches

    def sound_seconds_of(self, covers: Covering) -> float:
        """Seconds of all sounds of a micro batch of such samples."""
        return self._num_rows * covers.audios_per_sample * covers.audio_seconds


@dataclass(slots=True)
class _Run:
    """The drawn part of a run."""

    micro_steps: list[list[MicroBatch]]
    steps_per_epoch: int
    grad_accum: int
    num_rows: int
    real_tokens: int
    computed_tokens: int

    @property
    def num_steps(self) -> int:
        return max(1, len(self.micro_steps) // self.grad_accum)

    @property
    def lengths(self) -> tuple[int, int]:
        every = [one.num_tokens for step in self.micro_steps for one in step]
        return min(every), max(every)

    @property
    def patches(self) -> tuple[int, int]:
        """The fewest, but not none, and the most."""
        every = [one.patches for step in self.micro_steps for one in step if one.patches]
        return min(every), max(every)

    @property
    def most_patches(self) -> int:
        return max(one.patches for step in self.micro_steps for one in step)

    def candidates(self) -> Iterator[tuple[MicroBatch, int]]:
        """Micro batches than which no other has more tokens, longer answers, more patches and more of sounds, with
        their steps; neighbours as one with the most of each where there are many."""
        first: dict[tuple[int, tuple[float, ...]], tuple[MicroBatch, int]] = {}
        for number, step in enumerate(self.micro_steps):
            for one in step:
                key = (one.num_tokens, (one.patches, one.sound_seconds, one.num_answer_tokens))
                first.setdefault(key, (one, number // self.grad_accum + 1))
        front: list[tuple[MicroBatch, int]] = []
        most: list[tuple[float, ...]] = []  # of those that have as many tokens or more
        for key in sorted(first, reverse=True):
            if not any(_covers(other, key[1]) for other in most):
                most = [other for other in most if not _covers(key[1], other)] + [key[1]]
                front.append(first[key])
        size = -(-len(front) // MAX_CANDIDATES)
        for start in range(0, len(front), size):
            group = front[start : start + size]
            longest = group[0]
            fullest = max((one for one, _ in group), key=lambda one: one.patches)
            loudest = max((one for one, _ in group), key=lambda one: one.sound_seconds)
            answers = max(one.num_answer_tokens for one, _ in group)
            together = longest[0]._replace(
                patches=fullest.patches,
                num_images=fullest.num_images,
                num_sounds=loudest.num_sounds,
                seconds=loudest.seconds,
                num_answer_tokens=answers,
            )
            yield together, longest[1]


def _covers(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether ``one`` has as much of everything."""
    return all(mine >= its for mine, its in zip(one, other, strict=True))


def _drawn_run(trained: Trained, rules: DataRules, ranks: Ranks, epochs: float, most_samples: int | None) -> _Run:
    per_epoch: list[list[MicroBatch]] = []
    steps: list[list[MicroBatch]] = []
    most = None if most_samples is None else max(1, most_samples // ranks.samples_per_step) * ranks.grad_accum
    num_drawn, epoch, rows = 0, 0, rows_of(trained, rules)
    while epoch < epochs and (not steps or (most is None and num_drawn < MAX_DRAWN_SAMPLES)):
        per_epoch = list(islice(micro_steps(rows, trained, rules, ranks, epoch=epoch), most))
        kept = per_epoch if epochs - epoch >= 1 else per_epoch[: max(1, round(len(per_epoch) * (epochs - epoch)))]
        steps += kept
        num_drawn += len(trained.samples.shapes)
        epoch += 1
    every = [one for step in steps for one in step]
    computed = sum(one.computed_tokens for one in every) * ranks.micro_batch
    return _Run(
        micro_steps=steps,
        steps_per_epoch=max(1, len(rows) // ranks.samples_per_step),
        grad_accum=ranks.grad_accum if len(per_epoch) >= ranks.grad_accum else 1,
        num_rows=len(rows),
        real_tokens=min(computed, sum(one.real_tokens for one in every)),
        computed_tokens=computed,
    )
