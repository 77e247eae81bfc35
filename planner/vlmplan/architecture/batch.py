"""The shape of what one GPU trains on at a time."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.units import DType

if TYPE_CHECKING:
    from vlmplan.architecture.audio import AudioShape
    from vlmplan.architecture.images import ImageShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The shape of one micro batch on one GPU.

    ``num_tokens`` are positions of the language model per sample, those of ``images_per_sample`` images of equal shape
    ``image`` and of ``audios_per_sample`` sounds of equal shape ``audio`` included. ``sequences``: the samples are in
    one row, one behind the other, and these are their lengths; None: a row for each. ``pixel_dtypes``, of spectrograms
    too, are as ``Recipe.pixel_dtypes`` has them; none is the type that the model computes in.
    """

    micro_batch: int
    num_tokens: int
    images_per_sample: int = 0
    image: "ImageShape | None" = None
    audios_per_sample: int = 0
    audio: "AudioShape | None" = None
    sequence_parallel: int = 1
    """Ranks that share each sample; ``num_tokens`` are those of one."""
    sequences: PackedLengths | None = None
    pixel_dtypes: tuple[DType, ...] = ()
    target_tokens: int = 0
    """Of each answer that a decoder writes, where ``num_tokens`` are the prompt's; 0: one stack has both."""
    encodes_images: bool = False
    """Whether an encoder reads an image alone, and ``num_tokens`` are those of the answer that a decoder writes."""
    scored_tokens: int | None = None
    """Tokens of each row that have a label, where TRL's head looks at them alone; None: all but the first."""
    has_kl_rows: bool = False
    """Whether it has token ids, masks and places of answers once more: of answers to other prompts (KTO)."""
    has_kl_images: bool = False
    """Whether those have images and sounds of their own (ms-swift 4.6 ``template/base.py`` ``_kto_data_collator``)."""
    is_cloned: bool = False
    """Whether each forward of a preference loss runs on a copy of all inputs, which goes when it has made that loss."""

    copies_logits: bool = False
    """Whether a loss of answers that are good or bad copies the logits of both apart (LLaMA-Factory)."""
    learns_chosen: bool = False
    """Whether the loss of preferences has no reference, but the cross-entropy of the chosen answers (axolotl,
    ms-swift)."""

    keeps_graph: bool = False
    """Whether the training loop holds a micro batch's graph, without what it saves, until the next's loss is there."""
    keeps_logits: bool = False
    """Whether it holds its logits, too."""

    @property
    def token_shape(self) -> tuple[int, int]:
        """(rows, tokens) of ``input_ids``."""
        if self.sequences is None:
            return self.micro_batch, self.num_tokens
        return 1, self.micro_batch * self.num_tokens

    def attention(self, backend: AttentionBackend) -> AttentionBackend:
        """``backend``, whose causal attention is among the tokens of each sample."""
        return backend if self.sequences is None else replace(backend, sequences=self.sequences)

    @property
    def num_images(self) -> int:
        return self.micro_batch * self.images_per_sample

    @property
    def num_vision_sequences(self) -> int:
        """Tiles, frames or images that the tower runs on one by one."""
        assert self.image is not None
        return self.num_images * self.image.num_vision_sequences

    @property
    def num_audios(self) -> int:
        return self.micro_batch * self.audios_per_sample
