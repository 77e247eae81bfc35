"""What a trainer does with samples before they are a micro batch: order, padding, packing, cuts, sizes of images."""

from dataclasses import dataclass
from enum import Enum


class Order(Enum):
    """Of the samples in an epoch."""

    RANDOM = "random"
    BY_LENGTH = "by length"
    SEQUENTIAL = "as in the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRules:
    """The bundled trainer's where nothing else is said.

    ``pads_to`` is the multiple of tokens that a micro batch is padded to. ``drops_long``: samples over the limit are
    left out, where others are cut. ``packs`` samples into rows of the limit. Images of more than ``max_pixels`` are
    made smaller, of fewer than ``min_pixels`` larger. ``names`` are the data sets of a dataset_info.json.
    ``image_folder`` is where the trainer looks for images first, by its name in the configuration.
    """

    trainer: str = "vlmplan"
    order: Order = Order.RANDOM
    pads_to: int = 8
    packs: bool = False
    drops_long: bool = False
    min_pixels: int = 0
    max_pixels: int | None = None
    names: tuple[str, ...] = ()
    image_folder: str | None = None

    @property
    def is_bundled(self) -> bool:
        return self.trainer == BUNDLED


BUNDLED = "vlmplan"
OF_EVERY_IMAGE = "every image is taken as large as"
"""How a note on the size of images begins that has no meaning where the samples are known."""
LLAMA_FACTORY_PIXELS = 768 * 768, 32 * 32
"""The most and the fewest of an image, where nothing else is said (``hparams/model_args.py``, 0.9.5)."""


def rules_of(tool: str | None) -> DataRules:
    """Those of a trainer that is planned for, where its configuration says nothing; None is the bundled one."""
    if tool is None:
        return DataRules()
    if tool == "llamafactory":
        most, fewest = LLAMA_FACTORY_PIXELS
        return DataRules(trainer=tool, max_pixels=most, min_pixels=fewest)
    return DataRules(trainer=tool, pads_to=1, drops_long=tool == "ms-swift")
