"""Images as the processor takes them: opened, upright, in RGB."""

from typing import TYPE_CHECKING

from vlmplan.chats.image_files import EmbeddedImage, ImageSource, base64_bytes, decoded_base64, opened_lazily
from vlmplan.chats.preferences import raw_of
from vlmplan.chats.references import Reference
from vlmplan.json_reader import parse_json_object

if TYPE_CHECKING:
    from PIL.Image import Image


def opened(source: ImageSource, *, name: str) -> "Image":
    """The image upright and in RGB; what is transparent becomes white. Raises InputError as ``checked_size`` does."""
    from PIL import ImageOps

    with opened_lazily(_embedded(source) if isinstance(source, EmbeddedImage) else source, name) as image:
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


def _embedded(source: EmbeddedImage) -> bytes:
    with source.file.open("rb") as file:
        file.seek(source.offset)
        line = file.read(source.num_bytes)
    where = str(source.file)
    turns = raw_of(parse_json_object(line.decode("utf-8-sig"), source=where), source=where).turns
    shown = [part for turn in turns for part in turn.content if isinstance(part, Reference)]
    references = [part for part in shown if not part.is_video]
    reference = references[source.index]
    data = base64_bytes(reference)
    return decoded_base64(reference.text) if data is None else data
