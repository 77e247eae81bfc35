"""Kimi K2.5: an image is made smaller where it has too many patches, never larger, and padded to whole tokens.

Follows transformers 5.23 ``navit_resize`` in models/kimi_k25/image_processing_kimi_k25.py.
"""

import math

from vlmplan.architecture.images.settings import count, edge, section
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.architecture.images.smart_resize import patch_and_merge_size, shape_of_merged
from vlmplan.errors import InputError

MOST_PATCHES = 16384
"""``max_patches`` of the class."""
MOST_PER_SIDE = 512
"""``size`` of the class: patches, not pixels."""


def kimi_k25_shape(image: Image) -> ImageShape:
    """Raises InputError for settings that the processor refuses."""
    settings = image.preprocessor
    patch_size, merge_size = patch_and_merge_size(
        settings, section(image.config, "vision_config"), default_patch_size=14
    )
    most = count(settings, "max_patches", MOST_PATCHES)
    most_rows, most_columns = (edge(settings, "size", name, MOST_PER_SIDE) for name in ("max_height", "max_width"))
    if most_rows != most_columns:
        raise InputError(f"preprocessor_config.json: size.max_height is {most_rows}, size.max_width is {most_columns}")
    longest = most_rows * patch_size
    num_patches = max(1, image.height // patch_size) * max(1, image.width // patch_size)
    scale = min(1.0, math.sqrt(most / num_patches), longest / image.height, longest / image.width)
    factor = patch_size * merge_size
    height, width = (
        math.ceil(min(max(1, int(side * scale)), longest) / factor) * factor for side in (image.height, image.width)
    )
    return shape_of_merged(height=height, width=width, patch_size=patch_size, merge_size=merge_size)
