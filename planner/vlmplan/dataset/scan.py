"""Every sample of the files looked at once: its tokens and the sizes of its images, by several processes if it is much.

Bad samples are counted and left out; the first are named. Images are known by their headers, none is decoded.
"""

import multiprocessing
import os
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from vlmplan.chats.data_files import DataFile
from vlmplan.chats.image_files import PixelBudget
from vlmplan.chats.labelled import labelled_of
from vlmplan.chats.named_columns import NamedColumns
from vlmplan.chats.preferences import preference_of
from vlmplan.chats.samples import Sample, nothing_to_train_on, sample_of
from vlmplan.dataset.counting import TokenCounter
from vlmplan.dataset.media import MediaReading, sample_counter
from vlmplan.dataset.model_texts import ModelTexts
from vlmplan.dataset.progress import reading_progress
from vlmplan.dataset.record import MAX_SENTENCES, Dataset, PairTokens, SampleSize, TextTokens
from vlmplan.errors import InputError, MissingPackageError
from vlmplan.files.data_file import Record, records_in

CHUNK_BYTES, CHUNK_SAMPLES = 2**20, 500
"""What a process is given at once: some tenths of a second. A choice."""
LEAST_BYTES = 2 * 2**20
"""Smaller files are read by this process alone: starting others takes longer. A choice."""
MAX_PROCESSES = 8
CHUNKS_AHEAD = 2
"""For each process, so that a large file is not in memory as a whole."""

_CountedBy = tuple[ModelTexts | None, MediaReading]
Rows = tuple[Sample, ...]
"""What is trained on of one sample."""
ImageMark = tuple[str, int, int]
"""An image's path, its bytes and when it was changed (nanoseconds)."""


@dataclass(slots=True)
class Scanned:
    """Results of a chunk, or of all."""

    samples: list[SampleSize] = field(default_factory=list[SampleSize])
    forms: Counter[str] = field(default_factory=Counter[str])
    num_bad: int = 0
    sentences: list[str] = field(default_factory=list[str])
    marks: dict[str, ImageMark] = field(default_factory=dict[str, ImageMark])
    """Of the files of images, videos and sounds that were looked at, by path."""

    def add(self, other: "Scanned") -> None:
        self.samples += other.samples
        self.forms += other.forms
        self.num_bad += other.num_bad
        self.sentences = (self.sentences + other.sentences)[:MAX_SENTENCES]
        self.marks |= other.marks


@dataclass(frozen=True, slots=True)
class _Chunk:
    file: Path
    folders: tuple[Path, ...]
    columns: NamedColumns | None
    records: list[Record]
    media: MediaReading

    @property
    def num_bytes(self) -> int:
        return sum(len(record.content) for record in self.records)


def scan(
    files: Sequence[DataFile],
    texts: ModelTexts | None,
    counter: TokenCounter,
    *,
    source: str,
    image_folder: Path | None = None,
    media: MediaReading,
) -> tuple[Dataset, list[ImageMark]]:
    """The samples of the files, and the files of images, videos and sounds that they show. ``counter`` is that of
    ``texts`` and ``media``.

    Raises UnavailableError for a file that cannot be read, InputError for one that is broken, or without any sample.
    """
    total_bytes = sum(os.path.getsize(file.path) for file in files)
    found = Scanned()
    chunks = _chunks(files, image_folder, media)
    with reading_progress(total_bytes) as advance:
        for chunk_bytes, part in _results(chunks, (texts, media), counter, _num_processes(total_bytes)):
            found.add(part)
            advance(chunk_bytes, len(part.samples) + part.num_bad)
    if not found.samples:
        raise nothing_to_train_on(source, found.num_bad, found.sentences)
    dataset = Dataset(
        source=source,
        samples=tuple(found.samples),
        forms=dict(found.forms),
        num_bad=found.num_bad,
        sentences=tuple(found.sentences),
        counting=counter.about,
        is_exact=counter.is_exact,
    )
    return dataset, list(found.marks.values())


def _chunks(files: Sequence[DataFile], image_folder: Path | None, media: MediaReading) -> Iterator[_Chunk]:
    for file in files:
        folders = file.folders(image_folder)
        records: list[Record] = []
        num_bytes = 0
        for one in records_in(file.path):
            records.append(one)
            num_bytes += len(one.content)
            if num_bytes >= CHUNK_BYTES or len(records) >= CHUNK_SAMPLES:
                yield _Chunk(file.path, folders, file.columns, records, media)
                records, num_bytes = [], 0
        if records:
            yield _Chunk(file.path, folders, file.columns, records, media)


def _num_processes(total_bytes: int) -> int:
    if total_bytes < LEAST_BYTES:
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(MAX_PROCESSES, cores)


def _results(
    chunks: Iterable[_Chunk], counted_by: _CountedBy, counter: TokenCounter, num_processes: int
) -> Iterator[tuple[int, Scanned]]:
    """Bytes and results of each chunk, in order."""
    if num_processes == 1:
        for chunk in chunks:
            yield chunk.num_bytes, _looked_at(chunk, counter)
        return
    # A copy of this process is there at once; beside other threads it might hold a lock that nobody lets go.
    can_fork = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context, initializer=_begin, initargs=counted_by) as pool:
        waiting: deque[tuple[int, Future[Scanned]]] = deque()
        try:
            for chunk in chunks:
                waiting.append((chunk.num_bytes, pool.submit(_in_process, chunk)))
                if len(waiting) > CHUNKS_AHEAD * num_processes:
                    num_bytes, first = waiting.popleft()
                    yield num_bytes, first.result()
            while waiting:
                num_bytes, first = waiting.popleft()
                yield num_bytes, first.result()
        finally:
            pool.shutdown(cancel_futures=True)


_OWN: list[TokenCounter] = []
"""The counter of a process of the pool."""


def _begin(texts: ModelTexts | None, media: MediaReading) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as many processes as cores are there
    _OWN.append(sample_counter(texts, media))


def _in_process(chunk: _Chunk) -> Scanned:
    return _looked_at(chunk, _OWN[-1])


def _looked_at(chunk: _Chunk, counter: TokenCounter) -> Scanned:
    found, bad = Scanned(), dict[int, str]()
    read: list[tuple[int, str, Sequence[Rows]]] = []
    for place, one in enumerate(chunk.records):
        try:
            read.append((place, *_read(chunk, one)))
        except InputError as error:
            bad[place] = str(error)
        except ImportError:
            raise MissingPackageError("samples with images need Pillow: pip install 'vlmplan[data]'") from None
    counted = iter(counter.counts([row for _, _, samples in read for rows in samples for row in rows]))
    for place, form, samples in read:
        tokens = [[next(counted) for _ in rows] for rows in samples]
        problem = next((token for some in tokens for token in some if isinstance(token, InputError)), None)
        if problem is not None:
            bad[place] = str(problem)
            continue
        found.forms[form] += 1
        for rows, some in zip(samples, tokens, strict=True):
            found.samples.append(_size(rows[0], [token for token in some if not isinstance(token, InputError)]))
            found.marks |= _marks(rows[0], found.marks)
    found.num_bad = len(bad)
    found.sentences = [bad[place] for place in sorted(bad)[:MAX_SENTENCES]]
    return found


def _read(chunk: _Chunk, record: Record) -> tuple[str, Sequence[Rows]]:
    """The name of its form, and the rows of its samples: one of each, of a preference both that begin with its prompt.
    Raises InputError, naming the record, for one that cannot be used."""
    if chunk.media.has_labels:
        form, answers = labelled_of(record, chunk.folders, PixelBudget(0), file=chunk.file, columns=chunk.columns)
        return form, [(answer.sample,) for answer in answers]
    if chunk.media.prefers:
        form, preference = preference_of(record, chunk.folders, PixelBudget(0), file=chunk.file, columns=chunk.columns)
        return form, [(preference.chosen, preference.rejected)]
    form, sample = sample_of(
        record,
        chunk.folders,
        PixelBudget(0),
        file=chunk.file,
        columns=chunk.columns,
        no_videos=chunk.media.no_videos,
        no_sounds=chunk.media.no_sounds,
    )
    return form, [(sample,)]


def _size(sample: Sample, tokens: Sequence[TextTokens | PairTokens]) -> SampleSize:
    """The size of a sample, whose rows have so many tokens: of several the longest counts."""
    sizes = tuple((image.width, image.height) for image in sample.images)
    headers, seconds = (video.header for video in sample.videos), (sound.seconds for sound in sample.sounds)
    found = SampleSize(0, sizes, tuple(headers), tuple(seconds))
    first = tokens[0]
    if isinstance(first, PairTokens):
        return found._replace(text_tokens=first.prompt, answer_tokens=first.answer)
    if len(tokens) == 1:
        return found._replace(text_tokens=first.text, learnt_tokens=first.learnt)
    lengths = [token.text for token in tokens if isinstance(token, TextTokens)]
    return found._replace(text_tokens=max(lengths), shorter_tokens=min(lengths))


def _marks(sample: Sample, known: Mapping[str, ImageMark]) -> dict[str, ImageMark]:
    """The files that a sample shows, but for those that are known."""
    sources = [shown.source for shown in sample.shown]
    sources += [frame for video in sample.videos for frame in video.frames]
    paths = dict.fromkeys(str(source) for source in sources if isinstance(source, Path))
    marks = (image_mark(path) for path in paths if path not in known)
    return {mark[0]: mark for mark in marks if mark is not None}


def image_mark(path: str) -> ImageMark | None:
    """What tells that an image file is the one that was looked at; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return path, status.st_size, status.st_mtime_ns
