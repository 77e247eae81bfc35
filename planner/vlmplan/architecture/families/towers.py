"""The vision tower inside a composite model, chosen by the model_type of its ``vision_config``."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from vlmplan.architecture.config import Config
from vlmplan.errors import UnknownNameError

TOWERS = {
    "clip_vision_model": ("clip_vision", "ClipVision"),
    "pixtral": ("pixtral_vision", "PixtralVision"),
    "siglip_vision_model": ("siglip_vision", "SiglipVision"),
}
"""Vision model_types, and the modules of families with the class of the tower."""


def vision_tower(config: Config, feature_layers: Sequence[int] = ()) -> Any:
    """The vision tower of a vision configuration: ``forward(pixels, batch, backend)`` returns a ``VisionOutput``.

    ``feature_layers`` are the hidden states that the composite model asks for, as indices into the list of the
    embeddings and the results of all layers. Raises UnknownNameError for a model_type that is not known.
    """
    if config.model_type not in TOWERS:
        raise UnknownNameError(f"{config.path}.model_type", config.model_type, TOWERS)
    family, tower = TOWERS[config.model_type]
    return getattr(import_module(f"vlmplan.architecture.families.{family}"), tower)(config, feature_layers)
