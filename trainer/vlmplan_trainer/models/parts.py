"""What a model consists of: vision encoder, projector and language model, told apart by names.

The same cut as the planner's (``PARTS`` of its families), made on transformers' own modules.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from vlmplan.model_types.encoder_decoder import HEARING_TYPES
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Part
from vlmplan_trainer.probe import PROJECTOR_WORDS, name_of, text_names, vision_names

INNER_PROJECTOR_WORDS = (*PROJECTOR_WORDS, "merger", "downsample")
"""Parts of the names of modules inside a tower that are projectors, as the planner has them (``generic.building``)."""


OUTER_PROJECTORS: Mapping[str, str] = {"phi4_multimodal": "model.embed_tokens_extend"}
"""Modules around the encoders, where the language model is no module of its own but holds them, by model_type."""
MERGERS_OF_TOWERS: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7"), ("vit_merger",)
)
"""Modules between a tower's layers, which are the tower's as its other layers are, by model_type."""


CONSTANT_CLASSES = ("SinusoidalPositionalEmbedding",)
"""Ends of the names of classes whose weights are computed once and frozen (Pegasus, Marian)."""
CONSTANT_NAMES: Mapping[str, str] = dict.fromkeys(HEARING_TYPES, "model.encoder.embed_positions.weight")
"""Weights of other classes that are computed once and frozen, by model_type."""
HEARING_ENCODER = "model.encoder"
"""Of a model whose encoder hears a sound in the place of a prompt."""


class Parts:
    """The parts of a transformers model that has no adapters yet, by prefixes of names."""

    def __init__(self, model: Any) -> None:
        self.prefixes = _prefixes(model)

    def __getitem__(self, name: str) -> Part:
        """The part of a module or parameter: that of the longest prefix, the language model where there is none."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            part = self.prefixes.get(".".join(parts[:length]))
            if part is not None:
                return part
        return Part.LANGUAGE


def _prefixes(model: Any) -> dict[str, Part]:
    towers, texts = vision_names(model, model.config), text_names(model, model.config)
    if model.config.model_type in HEARING_TYPES:
        towers = [HEARING_ENCODER]
    prefixes = dict.fromkeys(towers, Part.VISION)
    if model.config.model_type in OUTER_PROJECTORS:
        prefixes[OUTER_PROJECTORS[model.config.model_type]] = Part.PROJECTOR
    own = MERGERS_OF_TOWERS.get(model.config.model_type, ())
    for tower in towers:
        for child, _ in model.get_submodule(tower).named_children():
            if child not in own and any(word in child for word in INNER_PROJECTOR_WORDS):
                prefixes[f"{tower}.{child}"] = Part.PROJECTOR
    if texts:
        ends = [name_of(model, model.get_input_embeddings()), name_of(model, model.get_output_embeddings())]
        prefixes |= dict.fromkeys((*texts, *filter(None, ends)), Part.LANGUAGE)
        _add_what_stands_between(model, "", prefixes, tuple(prefixes))
    return prefixes


def _add_what_stands_between(module: nn.Module, name: str, prefixes: dict[str, Part], known: tuple[str, ...]) -> None:
    """What is neither a tower nor the language model, nor holds one of them, is a projector."""
    if name in prefixes:
        return
    prefix = f"{name}." if name else ""
    if not any(other.startswith(prefix) for other in known):
        prefixes[name] = Part.PROJECTOR
        return
    prefixes |= {prefix + own: Part.PROJECTOR for own, _ in module.named_parameters(recurse=False)}
    for child_name, child in module.named_children():
        _add_what_stands_between(child, prefix + child_name, prefixes, known)


def full_modules(model: nn.Module, parts: Parts, recipe: Recipe) -> list[str]:
    """The names of the largest modules that have weights of ``Recipe.full_parts`` alone, but for lists of modules,
    which peft does not take for ``modules_to_save``."""
    full = recipe.full_parts
    found: list[str] = []

    def look(module: nn.Module, name: str) -> None:
        names = [f"{name}.{own}" if name else own for own, _ in module.named_parameters()]
        if not any(parts[one] in full for one in names):
            return
        if name and not isinstance(module, nn.ModuleList) and all(parts[one] in full for one in names):
            found.append(name)
            return
        for child_name, child in module.named_children():
            look(child, f"{name}.{child_name}" if name else child_name)

    look(model, "")
    return found


def freeze(model: nn.Module, parts: Parts, recipe: Recipe) -> None:
    """Let what the recipe trains of the model's own weights need gradients: all parts but the frozen ones, or where
    adapters will be those that are trained in full beside them."""
    frozen, full = recipe.frozen_parts, recipe.full_parts
    constants = {
        id(parameter)
        for module in model.modules()
        if type(module).__name__.endswith(CONSTANT_CLASSES)
        for parameter in module.parameters()
    }
    constant_name = CONSTANT_NAMES.get(str(getattr(model.config, "model_type", "")))
    for name, parameter in model.named_parameters():
        is_constant = id(parameter) in constants or name == constant_name
        is_wanted = parts[name] in full if recipe.trains_adapters else parts[name] not in frozen
        is_trained = is_wanted and not is_constant
        if parameter.is_floating_point():
            parameter.requires_grad_(is_trained)
