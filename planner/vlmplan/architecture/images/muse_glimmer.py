"""Muse Glimmer: of the whole tokens around an image's own, as many as its budget allows, in the nearest proportions.

Follows transformers 5.23 ``smart_resize`` in models/muse_glimmer/image_processing_muse_glimmer.py.
"""

import math

from vlmplan.architecture.images.settings import count, section
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.architecture.images.smart_resize import patch_and_merge_size

MOST_TOKENS = 4096
"""``max_image_tokens`` of the class."""
NUM_MARKERS = 2
"""Tokens at either end of an image (``MuseGlimmerProcessor.replace_image_token``)."""


def muse_glimmer_shape(image: Image) -> ImageShape:
    """Raises InputError for settings that the processor refuses."""
    settings = image.preprocessor
    patch_size, merge_size = patch_and_merge_size(
        settings, section(image.config, "vision_config"), default_patch_size=14
    )
    side, most = patch_size * merge_size, count(settings, "max_image_tokens", MOST_TOKENS)
    token_rows, token_columns = _grid(image.height / side, image.width / side, most, image.height / image.width)
    return ImageShape(
        num_tokens=token_rows * token_columns + NUM_MARKERS,
        num_placeholder_tokens=token_rows * token_columns,
        num_vision_sequences=1,
        num_patch_columns=token_columns * merge_size,
        num_patch_rows=token_rows * merge_size,
        resized_width=token_columns * side,
        resized_height=token_rows * side,
    )


def _grid(rows: float, columns: float, most: int, proportion: float) -> tuple[int, int]:
    """Rows and columns of tokens; of those as near to the ``proportion`` the first in the set of all, as there."""
    ratio = columns / rows
    if rows * columns > most:
        rows = (most / ratio) ** 0.5
        columns = rows * ratio
    candidates = {
        (high, wide)
        for high in (math.floor(rows), math.ceil(rows))
        for wide in (math.floor(columns), math.ceil(columns))
    }
    fitting = [(high, wide) for high, wide in candidates if high >= 1 and wide >= 1 and high * wide <= most]
    fitting = fitting or [(max(1, round(rows)), max(1, round(columns)))]
    return min(fitting, key=lambda grid: abs(grid[0] / grid[1] - proportion))
