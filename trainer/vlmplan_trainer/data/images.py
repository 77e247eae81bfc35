"""Images as the processor takes them: opened, upright, in RGB."""

from typing import TYPE_CHECKING

from vlmplan.chats.image_files import Embedded, Source, opened_lazily
from vlmplan_trainer.data.embedded import embedded_content

if TYPE_CHECKING:
    from PIL.Image import Image


def opened(source: Source, *, name: str) -> "Image":
    """The image upright and in RGB; what is transparent becomes white. Raises InputError as ``checked_size`` does."""
    from PIL import ImageOps

    content = embedded_content(source, kind="image") if isinstance(source, Embedded) else source
    with opened_lazily(content, name) as image:
        image.load()
        return _rgb(ImageOps.exif_transpose(image))


def _rgb(image: "Image") -> "Image":
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits a pixel; conversion alone would clip them to 255
        return image.convert("F").point(lambda value: value * (1 / 256) + 0).convert("L").convert("RGB")
    if image.has_transparency_data:
        upper = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), upper).convert("RGB")
    return image.convert("RGB")
