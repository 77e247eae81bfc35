"""Scans that are kept between runs, by content: of the same samples, images and tokenizer the same is found again.

The key is made of the files' SHA-256, the tokenizer's and the rules' version; images are as they were if their size and
time of change are. What is kept is numbers and a few sentences, compressed.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from vlmplan.chats.data_files import DataFile, data_files
from vlmplan.chats.video_files import VideoHeader
from vlmplan.dataset.media import MediaReading, sample_counter
from vlmplan.dataset.model_texts import model_texts
from vlmplan.dataset.record import RULES_VERSION, Dataset, SampleSize
from vlmplan.dataset.scan import ImageMark, image_mark, scan
from vlmplan.errors import UnavailableError
from vlmplan.files import open_regular
from vlmplan.files.user_cache import keep_text, kept_text
from vlmplan.workload import ModelFiles

FOLDER = "datasets"
MAX_KEPT_BYTES = 256 * 2**20
"""Of a kept scan, unpacked: some million samples."""


def dataset(
    path: Path,
    model: ModelFiles,
    *,
    names: Sequence[str] = (),
    image_folder: Path | None = None,
    media: MediaReading | None = None,
) -> Dataset:
    """The samples of ``--data``, as ``model`` reads them; scanned, or as they were found before.

    Raises what ``data_files`` and ``scan`` raise.
    """
    media = media or MediaReading()
    files, texts = data_files(path, names, takes=media.takes), model_texts(model)
    counter = sample_counter(texts, media)
    key = _key(files, f"{counter.digest}/{media}", str(path), image_folder)
    kept = _kept(key)
    if kept is not None:
        return kept
    found, marks = scan(files, texts, counter, source=str(path), image_folder=image_folder, media=media)
    _keep(key, found, marks)
    return found


def _key(files: Sequence[DataFile], counted_by: str, source: str, image_folder: Path | None) -> str:
    digest = hashlib.sha256()
    parts = [str(RULES_VERSION), source, str(image_folder), counted_by]
    parts += [f"{file.path}\0{file.columns}\0{_sha256(file.path)}" for file in files]
    digest.update("\0\0".join(parts).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with open_regular(path) as file:
            while block := file.read(2**20):
                digest.update(block)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _keep(key: str, found: Dataset, marks: Sequence[ImageMark]) -> None:
    sizes = sorted({size for sample in found.samples for size in sample.images})
    places = {size: index for index, size in enumerate(sizes)}
    values = {
        "source": found.source,
        "tokens": [sample.text_tokens for sample in found.samples],
        "answers": [sample.answer_tokens for sample in found.samples],
        "shorter": [sample.shorter_tokens for sample in found.samples],
        "learnt": [sample.learnt_tokens for sample in found.samples],
        "images": {
            str(index): [places[size] for size in sample.images]
            for index, sample in enumerate(found.samples)
            if sample.images
        },
        "videos": {
            str(index): [astuple(video) for video in sample.videos]
            for index, sample in enumerate(found.samples)
            if sample.videos
        },
        "sounds": {str(index): sample.sounds for index, sample in enumerate(found.samples) if sample.sounds},
        "sizes": sizes,
        "forms": dict(found.forms),
        "num_bad": found.num_bad,
        "sentences": found.sentences,
        "counting": found.counting,
        "is_exact": found.is_exact,
        "marks": marks,
    }
    packed = base64.b64encode(zlib.compress(json.dumps(values).encode(), 6))
    keep_text(packed.decode("ascii"), FOLDER, f"{key}.txt")


def _video(values: Sequence[Any]) -> VideoHeader:
    width, height, num_frames, seconds, turns, is_listed = values
    return VideoHeader(
        width=int(width),
        height=int(height),
        num_frames=int(num_frames),
        seconds=float(seconds),
        quarter_turns=int(turns),
        is_listed=bool(is_listed),
    )


def _kept(key: str) -> Dataset | None:
    """What was found before; None where that is nothing, or images are other ones."""
    text = kept_text(FOLDER, f"{key}.txt")
    if text is None:
        return None
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(text, validate=True), MAX_KEPT_BYTES)
        values: Any = json.loads(content)
        if any(image_mark(path) != (path, size, changed) for path, size, changed in values["marks"]):
            return None
        sizes = [(int(width), int(height)) for width, height in values["sizes"]]
        shown: dict[str, list[int]] = values["images"]
        images = {int(index): tuple(sizes[place] for place in places) for index, places in shown.items()}
        videos = {int(index): tuple(map(_video, listed)) for index, listed in values["videos"].items()}
        sounds = {int(index): tuple(map(float, listed)) for index, listed in values["sounds"].items()}
        columns = (values["tokens"], values["answers"], values["shorter"], values["learnt"])
        samples = tuple(
            SampleSize(
                int(tokens),
                images.get(i, ()),
                videos.get(i, ()),
                sounds.get(i, ()),
                int(answer),
                int(shorter),
                None if learnt is None else int(learnt),
            )
            for i, (tokens, answer, shorter, learnt) in enumerate(zip(*columns, strict=True))
        )
        return Dataset(
            source=str(values["source"]),
            samples=samples,
            forms={str(name): int(count) for name, count in values["forms"].items()},
            num_bad=int(values["num_bad"]),
            sentences=tuple(map(str, values["sentences"])),
            counting=str(values["counting"]),
            is_exact=bool(values["is_exact"]),
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, zlib.error, RecursionError):
        return None
