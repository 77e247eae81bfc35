"""Micro batches of one rank: encoded when they are needed, padded on the right.

Texts are padded to the longest of the micro batch, rounded up. What the processor makes of images has images (patches,
for Qwen-VL) in dimension 0 and is put one after the other there, each other dimension padded with zeros to the largest:
tiles of LLaVA-NeXT and LLaVA-OneVision, pixels of Pixtral, whose models are told the true sizes beside, and images of
Idefics3 and SmolVLM, whose models drop images of zeros. Llama 3.2 Vision has samples in dimension 0 and their images in
the next. MiniCPM-V takes the patches of all images side by side in one row. Spectrograms of sounds are padded like this
too, and so are the masks of their frames. Samples without images or sounds add nothing.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vlmplan.chats.samples import Sample
from vlmplan.errors import InputError
from vlmplan.sampler import Shares, epoch_order
from vlmplan.units import counted
from vlmplan_trainer.data.downscaling import PIXELS
from vlmplan_trainer.data.encode import SEQUENCE_KEYS, Encoded, Encoder
from vlmplan_trainer.data.scan import DatasetScan, scanned
from vlmplan_trainer.data.sounds import FEATURES, FEATURES_OF_MASK, MASK
from vlmplan_trainer.data.videos import VIDEO_PIXELS
from vlmplan_trainer.labels import DECODER_INPUTS, IGNORED_LABEL, TARGET_LABELS
from vlmplan_trainer.sequence_parallel import part_of_samples

PADS_TO = 8
"""Tensor cores want multiples of 8 tokens."""
PADDED_WITH = {"image_attention_mask": 1, TARGET_LABELS: IGNORED_LABEL}
"""What is not there is made of, where not of zeros: Phi-4-multimodal's processor lets all patches of tiles that are not
there see each other, and its model leaves them out afterwards; behind the end of an answer nothing is learnt."""
SIZES_OF_PACKED = {"pixel_values": "target_sizes", "pixel_values_videos": "target_sizes_videos"}
"""What has images in its last dimension, and what is beside it then: MiniCPM-V 4.6 takes ``pixel_values[:1]`` alone."""

PLACES_OF_PATCHES = "image_token_pooling"
"""Which patches become each token of Molmo 2: its processor counts those of all samples that it is given at once."""


class Batches:
    """The micro batches of one rank in one epoch, again and again.

    Samples that cannot be trained on are left out first, unless a scan has done so; ``scan`` says which. Those at
    the end of an epoch that fill no whole step are left out of it, other ones in each epoch; ``num_left_over`` counts
    them. Where ``shares`` take all, each that is missing in the last micro batches is one token that nothing is
    learned from: all ranks compute together, and Ulysses with as many rows as ever. ``pads_to`` is the multiple that
    texts are padded to; the plan's length gives every micro batch that length.

    In data with images a micro batch without any, of texts or of what is left out after all, gets a blank one at the
    end of its shortest text, without effect on the loss: the vision tower has to run on all ranks or on none. So it is
    with videos, for which the tower runs once more, and with sounds.

    Raises InputError if what is left fills no step.
    """

    def __init__(
        self,
        samples: Sequence[Sample] | DatasetScan,
        encoder: Encoder,
        shares: Shares,
        *,
        seed: int = 0,
        groups_by_length: bool = False,
        pads_to: int = PADS_TO,
    ) -> None:
        self._shares = shares
        self._part, self._num_parts = 0, 1
        self.scan = samples if isinstance(samples, DatasetScan) else scanned(encoder, samples)
        self._samples, self._encoder, self._seed = self.scan.samples, encoder, seed
        self._rows = self.rows_of(self.scan, encoder.seq_len)
        refuse_too_few(self.scan, num_rows=len(self._rows), samples_per_step=self._shares.least_samples)
        row_lengths = [sum(self.scan.lengths[index] for index in row) for row in self._rows]
        self._lengths = row_lengths if groups_by_length else None
        self._pads_to = pads_to
        self._shows_images = any(sample.images for sample in self._samples)
        self._shows_videos = any(sample.videos for sample in self._samples)
        self._has_sounds = any(sample.sounds for sample in self._samples)
        self._epoch = self._start = 0

    def take_part(self, part: int, num_parts: int) -> None:
        """Give this part of the tokens of every micro batch: other ranks with the same samples have the others."""
        self._part, self._num_parts = part, num_parts

    def __len__(self) -> int:
        """Micro batches in a whole epoch, the same on every rank."""
        return self._shares.num_micro_batches(len(self._rows))

    @property
    def num_left_over(self) -> int:
        """Samples (packed rows) of an epoch that fill no whole step."""
        return self._shares.num_left_over(len(self._rows))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A position that ``resume`` was told stays."""
        self._epoch = epoch

    def resume(self, position: int) -> None:
        """Let the next iteration begin after the first ``position`` samples of the epoch, counted over all ranks."""
        if not 0 <= position <= len(self._rows):
            raise InputError(f"the run stopped after {position} samples of an epoch, but the data has "
                             f"{len(self._rows)}; a run goes on with the data that it began with")  # fmt: skip
        self._start = position

    def __iter__(self) -> Iterator[Encoded]:
        start, self._start = self._start, 0
        order = epoch_order(len(self._rows), seed=self._seed, epoch=self._epoch, lengths=self._lengths)
        # A variable here would keep the micro batch for as long as it is trained on.
        yield from map(self._batch, self._shares.micro_batches(order, position=start))

    def _batch(self, places: Sequence[int]) -> Encoded:
        rows = [
            self._encoder.encode_or_nothing(self._samples[index]) for place in places for index in self._rows[place]
        ]
        num_missing = self._shares.micro_batch - len(places)
        rows += [self._encoder.nothing for _ in range(num_missing)]
        if self._shows_images:
            rows = [*self._encoder.alongside(rows)]
        blanks = [self._encoder.blank_image] if self._shows_images and self._encoder.needs_blanks else []
        blanks += [self._encoder.blank_video] if self._shows_videos else []
        blanks += [self._encoder.blank_sound] if self._has_sounds else []
        for blank in blanks:
            pixels = blank.keys() & {VIDEO_PIXELS, *PIXELS, *FEATURES}
            if not any(row.keys() & pixels for row in rows):
                shortest = min(range(len(rows)), key=lambda index: rows[index]["input_ids"].shape[1])
                rows[shortest] = with_blank(rows[shortest], self._encoder, blank)
        whole = self._laid_out(rows, [len(self._rows[place]) for place in places] + [1] * num_missing)
        return part_of_samples(whole, part=self._part, num_parts=self._num_parts, pad_id=self._encoder.pad_id)

    @staticmethod
    def rows_of(scan: DatasetScan, seq_len: int) -> list[list[int]]:
        """The samples of each row of a micro batch."""
        return [[index] for index in range(len(scan.samples))]

    def _laid_out(self, rows: Sequence[Encoded], counts: Sequence[int]) -> Encoded:
        """A micro batch of encoded samples, of which ``counts`` has those of each of its rows."""
        return collated(rows, pad_id=self._encoder.pad_id, pads_to=self._pads_to, seq_len=self._encoder.seq_len)


def refuse_too_few(scan: DatasetScan, *, samples_per_step: int, num_rows: int | None = None) -> None:
    """Raise InputError if the samples of ``scan``, which are packed into ``num_rows``, fill no step."""
    num_rows = len(scan.samples) if num_rows is None else num_rows
    if num_rows >= samples_per_step:
        return
    if num_rows < len(scan.samples):
        raise InputError(
            f"the data's {len(scan.samples)} samples are packed into {counted(num_rows, 'row')} of --seq-len tokens, "
            f"but one step of the plan takes {samples_per_step} rows; more samples or a smaller --global-batch are "
            f"needed"
        )
    raise InputError(
        f"{_num_samples_of(scan)}, but one step of the plan takes {samples_per_step}; more samples or a smaller "
        f"--global-batch are needed"
    )


def refuse_none(scan: DatasetScan) -> None:
    """Raise InputError if ``scan`` has no sample to evaluate."""
    if not scan.samples:
        raise InputError(f"{_num_samples_of(scan)}; one or more are needed")


def _num_samples_of(scan: DatasetScan) -> str:
    were = "was" if scan.num_skipped == 1 else "were"
    left_out = f" after {scan.num_skipped} {were} left out" if scan.num_skipped else ""
    first = f" (the first: {scan.sentences[0]})" if scan.sentences else ""
    return f"the data has {counted(len(scan.samples), 'sample')}{left_out}{first}"


def with_blank(row: Encoded, encoder: Encoder, blank: Encoded) -> Encoded:
    """``row`` with a blank image, video or sound behind its text; the text gives way where the length does not suffice,
    but for what the row shows itself and what stands before that."""
    room = encoder.seq_len - blank["input_ids"].shape[1]
    if room < 1:
        raise InputError(f"--seq-len {encoder.seq_len} has no room for an image; a longer one is needed")
    shown = torch.isin(row["input_ids"][0], encoder.shown_ids).nonzero()
    room = max(room, int(shown.max()) + 1) if len(shown) else room
    result = {name: value for name, value in row.items() if name not in SEQUENCE_KEYS}
    for name in SEQUENCE_KEYS:
        if name in row or name in blank:
            text = row.get(name, torch.zeros_like(row["input_ids"]))
            result[name] = torch.cat([text[:, :room], blank[name]], dim=1)
    return {**result, **{name: value for name, value in blank.items() if name not in SEQUENCE_KEYS}}


def collated(rows: Sequence[Encoded], *, pad_id: int, pads_to: int, seq_len: int) -> Encoded:
    """One micro batch of ``rows``. Raises no error: what does not fit ``seq_len`` was cut before."""
    has_tokens = any("input_ids" in row for row in rows)  # else a mask is of the patches of an image
    longest = max((row["input_ids"].shape[1] for row in rows if has_tokens), default=0)
    num_tokens = min(math.ceil(longest / pads_to) * pads_to, max(seq_len, longest)) if has_tokens else 0
    rows = with_places_among_all(with_masks_of_frames(rows))
    names = list(dict.fromkeys(name for row in rows for name in row))
    fills = {"input_ids": pad_id, "labels": IGNORED_LABEL, DECODER_INPUTS: pad_id}
    result: Encoded = {}
    for name in names:
        if name in SEQUENCE_KEYS and has_tokens:
            values = [row.get(name, torch.zeros_like(row["input_ids"])) for row in rows]
            sizes = num_tokens, *(max(shown) for shown in zip(*(value.shape[2:] for value in values), strict=True))
            result[name] = torch.cat([padded(value, sizes, fills.get(name, 0)) for value in values])
        else:
            values = [row[name] for row in rows if name in row]
            is_packed = SIZES_OF_PACKED.get(name) in names
            result[name] = (
                torch.cat(values, dim=-1) if is_packed else joined(values, PADDED_WITH.get(name, fills.get(name, 0)))
            )
    return result


def with_masks_of_frames(rows: Sequence[Encoded]) -> Sequence[Encoded]:
    """``rows`` with masks of the frames of their sounds where the model takes one of several sounds alone, as
    ``Phi4MultimodalFeatureExtractor`` has it."""
    if sum(len(row[FEATURES_OF_MASK]) for row in rows if FEATURES_OF_MASK in row) < 2:
        return rows
    return [
        row | {MASK: torch.ones(row[FEATURES_OF_MASK].shape[:2], dtype=torch.bool)}
        if FEATURES_OF_MASK in row and MASK not in row
        else row
        for row in rows
    ]


def with_places_among_all(rows: Sequence[Encoded]) -> Sequence[Encoded]:
    """``rows`` in which places of patches count those of the rows before; -1 is none."""
    made: list[Encoded] = []
    num_before = 0
    for row in rows:
        if PLACES_OF_PATCHES not in row:
            made.append(row)
            continue
        places = row[PLACES_OF_PATCHES]
        made.append(row | {PLACES_OF_PATCHES: torch.where(places >= 0, places + num_before, places)})
        num_before += math.prod(row["pixel_values"].shape[:2])
    return made


def joined(values: Sequence[Tensor], fill: int = 0) -> Tensor:
    """Tensors one after the other in dimension 0, other dimensions padded with ``fill`` to the largest."""
    largest = tuple(max(sizes) for sizes in zip(*(value.shape[1:] for value in values), strict=True))
    return torch.cat([padded(value, largest, fill) for value in values])


def padded(value: Tensor, sizes: Sequence[int], fill: int) -> Tensor:
    """``value`` with ``fill`` behind it, so that the dimensions after the first have ``sizes``."""
    missing = [size - have for size, have in zip(sizes, value.shape[1:], strict=True)]
    if not any(missing):
        return value
    pads = [amount for size in reversed(missing) for amount in (0, size)]
    return torch.nn.functional.pad(value, pads, value=fill)
