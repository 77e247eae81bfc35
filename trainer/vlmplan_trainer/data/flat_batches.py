"""Micro batches of one row: samples one behind the other, each by itself or packed into rows before."""

from collections.abc import Mapping, Sequence

from vlmplan.recipe.choices import Batching
from vlmplan.sampler import packed
from vlmplan_trainer.data.batches import Batches, joined, with_masks_of_frames
from vlmplan_trainer.data.encode import SEQUENCE_KEYS, Encoded
from vlmplan_trainer.data.flat_rows import flat_row
from vlmplan_trainer.data.scan import DatasetScan


class FlatBatches(Batches):
    """No padding, unless rows are to have the plan's length: then the last sample of each is padded."""

    def _laid_out(self, rows: Sequence[Encoded], counts: Sequence[int]) -> Encoded:
        seq_len = self._encoder.seq_len
        lengths = filled(rows, counts, seq_len) if self._pads_to >= seq_len else None
        rows = with_masks_of_frames(rows)
        result = flat_row(rows, pad_id=self._encoder.pad_id, lengths=lengths)
        names = dict.fromkeys(name for row in rows for name in row if name not in SEQUENCE_KEYS)
        return result | {name: joined([row[name] for row in rows if name in row]) for name in names}


class PackedBatches(FlatBatches):
    """Rows of as many samples as fit together, which stay together in every epoch."""

    @staticmethod
    def rows_of(scan: DatasetScan, seq_len: int) -> list[list[int]]:
        return packed(scan.lengths, seq_len)


def filled(rows: Sequence[Encoded], counts: Sequence[int], seq_len: int) -> list[int]:
    """Lengths of samples of which the last of each row, of which ``counts`` has the samples, fills it up to ``seq_len``
    tokens."""
    lengths = [row["input_ids"].shape[1] for row in rows]
    first = 0
    for count in counts:
        lengths[first + count - 1] += max(0, seq_len - sum(lengths[first : first + count]))
        first += count
    return lengths


BATCHES: Mapping[Batching, type[Batches]] = {
    Batching.PADDED: Batches,
    Batching.PADDING_FREE: FlatBatches,
    Batching.PACKED: PackedBatches,
}
