"""How large a program's processor lets images be: what it is loaded with, and what its image processor is given later.

The processors of transformers 5.23 take their attributes for what a call does not say (``image_processing_utils.py``
``BaseImageProcessor.preprocess``), so that one that is set after loading acts as the keyword does.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from vlmplan.architecture.images import is_bounded_by_pixels
from vlmplan.data_rules import FOR_LARGEST, OF_EVERY_IMAGE
from vlmplan.other_trainers.assembled import largest_image
from vlmplan.other_trainers.meaning import MOST_PIXELS, OF_PROCESSOR, sees
from vlmplan.other_trainers.record import TrainerConfig, Unwritten, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.workload import DEFAULT_IMAGE_SIZE, ModelFiles

FEWEST, SIZE = (OF_PROCESSOR + name for name in ("min_pixels", "size"))
EDGES: Final = {"longest_edge": MOST_PIXELS, "shortest_edge": FEWEST}
"""Of ``size`` where a processor keeps the area of an image within a budget of pixels: what they are called alone."""
BY_FILE: Final = "a model's folder whose preprocessor_config.json says it is planned: --model FOLDER"


def image_size(settings: Settings, model: ModelFiles | None) -> dict[str, Value]:
    """The size that every image is planned with, where the program bounds its pixels. What changes images otherwise is
    refused, unless the checkpoint's own processor does so too."""
    keys = [key for key in settings.keys if key.startswith(OF_PROCESSOR) and key not in settings.own_keys]
    settings.ignore(keys)
    if model is None or not sees(model):
        return {}
    bounds: dict[str, Any] = {}
    for key in keys:
        value = settings.value(key)
        if key in (MOST_PIXELS, FEWEST):
            bounds[key] = value
        elif key == SIZE and _is_of_pixels(model, value):
            edges = {EDGES[edge]: pixels for edge, pixels in cast("dict[str, Any]", value).items()}
            for own, pixels in edges.items():
                settings.make(own, pixels)
            bounds |= edges
            settings.raw(key)
        elif isinstance(value, Unwritten) or value != (model.preprocessor or {}).get(key.removeprefix(OF_PROCESSOR)):
            settings.refuse(key, f"which changes how large images are, and is not read of a program; {BY_FILE}")
    return _within(settings, bounds) if is_bounded_by_pixels(model.model_type) else {}


def _is_of_pixels(model: ModelFiles, size: object) -> bool:
    """Whether a ``size`` is the budget of pixels that the model's processor keeps to."""
    is_table = isinstance(size, Mapping) and cast("Mapping[str, Any]", size).keys() <= EDGES.keys()
    return is_table and is_bounded_by_pixels(model.model_type)


def _within(settings: Settings, bounds: Mapping[str, Any]) -> dict[str, Value]:
    """Images as large as the most pixels allow, or as the fewest ask for where those are more than the default."""
    for key in (MOST_PIXELS, FEWEST):
        value = bounds.get(key)
        if isinstance(value, Unwritten):
            settings.note(f"{key} is {value}, which only running the program tells: {FOR_LARGEST}")
            return {}
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            settings.refuse_whole(f"{key} is {value}; a whole number of 1 or more is needed")
            return {}
        if key in settings:
            settings.raw(key)
    usual = DEFAULT_IMAGE_SIZE[0] * DEFAULT_IMAGE_SIZE[1]
    most, fewest = bounds.get(MOST_PIXELS), bounds.get(FEWEST)
    if most is not None:
        settings.note(f"{OF_EVERY_IMAGE} {MOST_PIXELS} allows, {largest_image(most)}")
    elif fewest is not None and fewest > usual:
        settings.note(f"{OF_EVERY_IMAGE} {FEWEST} asks for, {largest_image(fewest)}: {FOR_LARGEST}")
        most = fewest
    return {} if most is None else {"image_size": largest_image(most)}


def with_bounds(config: TrainerConfig, settings: Settings, model: ModelFiles | None) -> TrainerConfig:
    """The configuration, whose rules for the images of a dataset have the bounds that ``image_size`` has read."""
    if model is None or not is_bounded_by_pixels(model.model_type):
        return config
    bounds = {key.removeprefix(OF_PROCESSOR): settings.value(key) for key in EDGES.values()}
    known = {name: pixels for name, pixels in bounds.items() if isinstance(pixels, int)}
    return replace(config, data_rules=replace(config.data_rules, **known))
