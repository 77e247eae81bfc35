"""The pictures of a rehearsed micro batch, whatever family's forward takes them."""

from dataclasses import dataclass
from typing import Any

import torch

from vlmplan_trainer.rehearse.samples import ImageSpec, Samples

Made = tuple[dict[str, torch.Tensor], dict[str, tuple[int, ...]]]
"""What a processor hands to a model: tensors that are made, and shapes of pixels that are not, by name."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures of a micro batch: each is ``image`` to the model of ``config``, which is transformers' own.

    ``ids``: (micro_batch, tokens), where ``token`` stands for what becomes of a picture. A model that wants other
    markers among them gets them written there.
    """

    config: Any
    samples: Samples
    image: ImageSpec
    ids: torch.Tensor
    token: int

    @property
    def vision(self) -> Any:
        """The part of ``config`` that is of the tower."""
        return self.config.vision_config

    @property
    def micro_batch(self) -> int:
        return self.samples.micro_batch

    @property
    def per_sample(self) -> int:
        return self.samples.images_per_sample

    @property
    def count(self) -> int:
        return self.samples.num_images

    @property
    def are_features(self) -> torch.Tensor:
        """(micro_batch, tokens): whether ``token`` is there."""
        return self.ids == self.token
