"""Images whose token a processor takes between two others alone, which the model's chat template writes (HunyuanOCR).

Source: transformers 5.23 ``models/hunyuan_vl/processing_hunyuan_vl.py`` (``HunYuanVLProcessor.validate_inputs``).
"""

from functools import cached_property
from typing import Any

import torch

from vlmplan.chats.downscaling import Size
from vlmplan_trainer.data.downscaling import ImageMeter
from vlmplan_trainer.data.encode import Encoder


class WrappedMeter(ImageMeter):
    """The size of a processor's output without what is around its images, which is text."""

    @cached_property
    def shown_text(self) -> str:
        processor = self._processor
        return f"{processor.image_start_token}{processor.image_token}{processor.image_end_token}"

    def _made(self, size: Size, number: int = 1, **options: bool) -> Any:
        made = super()._made(size, number, **options)
        around = torch.tensor([self._processor.image_start_token_id, self._processor.image_end_token_id])
        made["input_ids"] = made["input_ids"][:, ~torch.isin(made["input_ids"][0], around)]
        return made


class WrappedImageEncoder(Encoder):
    """Encodes samples whose images stand between two tokens."""

    meter_class = WrappedMeter
