"""What a program says of how large its processor lets images be: as it loads one, or of its image processor later."""

import ast
import re
from typing import Final

from vlmplan.other_trainers.meaning import OF_PROCESSOR
from vlmplan.other_trainers.programs.calls import Keyword
from vlmplan.other_trainers.programs.gathered import Gathered
from vlmplan.other_trainers.programs.options import last_name

PROCESSOR: Final = re.compile(r"\w*Processor\.from_pretrained")
IMAGE_PROCESSOR: Final = "image_processor"
"""What a processor calls the one of its parts that makes pixels of images."""
SIZES: Final = frozenset(
    """crop_size crop_to_patches do_center_crop do_image_splitting do_pan_and_scan do_resize dynamic_hd
    image_grid_pinpoints image_seq_length max_crops max_image_size max_image_tiles max_num_tiles max_patches max_pixels
    max_slice_nums max_soft_tokens max_tiles merge_size min_patches min_pixels min_tiles size tile_size
    use_image_id""".split()
)
"""Attributes of transformers' image processors that decide how many patches and tokens an image is."""


def take_image_sizes(found: Gathered) -> None:
    """Take them by their names behind ``OF_PROCESSOR``: what is set later goes before what is said while loading."""
    loads = found.last_before([call for call in found.all_calls if PROCESSOR.fullmatch(call.name)])
    told = {} if loads is None else {name: one for name, one in loads.keywords.items() if name in SIZES}
    found.take({OF_PROCESSOR + name: one for name, one in (told | _given_later(found)).items()})


def _given_later(found: Gathered) -> dict[str, Keyword]:
    """What an image processor is given after it is loaded."""
    program = found.program
    stores = [one for one in program.stores if one.name in SIZES and _is_image_processor(found, one.holder)]
    return {one.name: program.stored(one, runs=program.is_certain(one.statement)) for one in stores}


def _is_image_processor(found: Gathered, node: ast.expr) -> bool:
    """Whether it is ``processor.image_processor``, by itself or by a name, or what a class of such loads."""
    if isinstance(node, ast.Name) and isinstance(bound := found.program.bound(node), ast.Attribute):
        node = bound
    made = found.program.call_of(node) if isinstance(node, ast.Name) else None
    is_loaded = made is not None and made.name.endswith("ImageProcessor.from_pretrained")
    return is_loaded or (isinstance(node, ast.Attribute) and last_name(node) == IMAGE_PROCESSOR)
