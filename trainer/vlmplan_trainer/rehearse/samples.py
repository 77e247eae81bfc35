"""The samples of a micro batch, in the words of the plan, and the tensors that become of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vlmplan_trainer.rehearse.sounds import AudioSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """One image, in the words of ``vlmplan.architecture.images.ImageShape``."""

    num_tokens: int
    num_placeholder_tokens: int
    num_vision_sequences: int
    num_patch_columns: int
    num_patch_rows: int
    resized_width: int
    resized_height: int
    num_tile_columns: int = 1
    num_tile_rows: int = 1
    num_cross_attention_states: int = 0
    num_unpadded_columns: int = 0
    num_unpadded_rows: int = 0
    has_padded_sequences: bool = False
    num_padding_patches: int = 0
    num_overview_columns: int = 0
    num_overview_rows: int = 0
    is_clip: bool = False
    num_frames: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A micro batch of equal samples: ``num_tokens`` each, ``images_per_sample`` images of ``width`` x ``height`` and
    ``audios_per_sample`` sounds.

    ``sequences``: all are one row, and each is made of parts of these lengths, which are samples of their own; None: a
    row for each.
    """

    micro_batch: int
    num_tokens: int
    images_per_sample: int = 0
    image: ImageSpec | None = None
    width: int = 0
    height: int = 0
    sequences: tuple[int, ...] | None = None
    audios_per_sample: int = 0
    audio: AudioSpec | None = None
    target_tokens: int = 0  # of each answer, where a decoder writes it; ``num_tokens`` are the prompt's then

    @property
    def num_images(self) -> int:
        return self.micro_batch * self.images_per_sample


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """``values``: integer tensors as they are; ``shapes``: of tensors of floats."""

    values: dict[str, torch.Tensor]
    shapes: dict[str, tuple[int, ...]]

    def made(self, fake: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        """All as processors hand them out: what is of tokens, then pixels, then what is beside those, such as masks.
        ``fake`` makes a tensor of known value."""
        ids = self.values.get("input_ids")
        values = {name: fake(value) for name, value in self.values.items()}
        floats = {name: torch.empty(shape, dtype=torch.float32) for name, shape in self.shapes.items()}
        of_tokens = {name: value for name, value in values.items() if ids is not None and value.shape == ids.shape}
        return of_tokens | floats | values
