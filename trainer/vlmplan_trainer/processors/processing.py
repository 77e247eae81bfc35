"""What a model's processor makes of images, without the checkpoint's tokenizer: which tensors, and how many tokens.

The processor is transformers' own class with the settings of preprocessor_config.json, or its defaults with the size
that the vision tower fixes; the tokenizer only has to count (``stand_in``). Without torchvision the variant on PIL is
taken, as transformers does, and the part for videos, which needs torchvision, is left out.
"""

import importlib
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vlmplan.errors import InputError
from vlmplan_trainer.processors.stand_in import StandInTokenizer

WRAPPERS = (
    ("image_start_token", "image_end_token"),
    ("boi_token", "eoi_token"),
    ("vision_start_token", "vision_end_token"),
)
"""What chat templates write around an image's placeholder, by the processors' names of it."""
PLACEHOLDERS = ("image_placeholder_token", "image_token", "boi_token")
"""What processors call the text that stands for an image, the most telling first."""
TOKEN_KEYS = ("image_token_id", "image_token_index", "media_placeholder_token_id", "boi_token_id")
"""What configurations call the id of the tokens that an image's features take the place of."""
NUM_TEXT_IDS = 60
"""Ids that words are made of."""
OF_TOWER = {
    "patch_size": "patch_size",
    "merge_size": "spatial_merge_size",
    "temporal_patch_size": "temporal_patch_size",
}
"""Settings of image processors that the vision tower fixes, by the names that its configuration has for them. A
processor that calls one ``vision_`` has another setting by the bare name: its tiles are no patches."""
MERGED = ("patch_size", "spatial_merge_size")
"""Settings of processors that count an image's tokens by the tower's patches and how many become one."""


class LeftOut:
    """What stands in the place of the part for videos, whose settings some processors look at."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """``tensors``: by the names that the model's ``forward`` has. ``num_tokens`` of one sample with its images and no
    word; ``num_placeholders`` of those stand for features. ``token_inputs``: what is said of each token beside its id
    and whether it is one."""

    tensors: dict[str, torch.Tensor]
    num_tokens: int
    num_placeholders: int
    token_inputs: list[str]
    class_name: str


def processor_for(config: Any, preprocessor: Mapping[str, Any] | None) -> Any:
    """The processor of transformers' configuration ``config``. Raises InputError where it cannot be had."""
    settings = dict(preprocessor or {})
    kind = _processor_class(config, settings)
    lenient = type(kind.__name__, (kind,), {"check_argument_for_proper_class": _checked_unless_left_out})
    of_tower = _settings_of_tower(kind, config)
    image_processor = image_processor_of(config, settings) if "image_processor" in _parts_of(kind) else None
    refusal: Exception | None = None
    for asked in ((), ("image_token",)):  # some take it that the tokenizer has one
        made: dict[str, Any] = {}
        for name in _parts_of(kind):
            if name == "image_processor":
                made[name] = image_processor
            elif "tokenizer" in name:
                made[name] = StandInTokenizer(*asked)
            else:
                made[name] = LeftOut() if name == "video_processor" else None
        try:
            return lenient(**made, **of_tower)
        except ImportError as error:
            raise InputError(_first_sentence(error)) from None
        except Exception as error:  # processors raise anything at all for parts that are not there
            refusal = refusal or error
    assert refusal is not None
    raise InputError(f"{kind.__name__} cannot be made here: {_first_sentence(refusal)}")


def processed(
    config: Any,
    preprocessor: Mapping[str, Any] | None,
    *,
    width: int,
    height: int,
    images_per_sample: int,
    num_samples: int,
    num_tokens: int | None = None,
) -> Processed:
    """The tensors of ``num_samples`` equal samples with white images, ``num_tokens`` long; None: one word each.

    Raises InputError for images that the processor refuses, and where the samples have no room for theirs.
    """
    from PIL import Image

    processor = processor_for(config, preprocessor)
    image = Image.new("RGB", (width, height), "white")
    made = _accepted(processor, [[image] * images_per_sample] * num_samples)
    own = made["input_ids"].shape[1]
    if not own and image_token_of(config) is not None:
        name = type(processor).__mro__[1].__name__
        raise InputError(f"{name} leaves the tokens of images to the checkpoint's chat template")
    made = _lengthened(made, own + 1 if num_tokens is None else num_tokens)
    ids = made["input_ids"]
    placeholder = _placeholder(processor, ids[:, :own])
    made["input_ids"] = _with_ids_of(config, ids, placeholder)
    return Processed(
        tensors=made,
        num_tokens=own,
        num_placeholders=0 if placeholder is None else int((ids[0] == placeholder).sum()),
        token_inputs=[
            name
            for name, value in made.items()
            if value.shape == ids.shape and name not in ("input_ids", "attention_mask")
        ],
        class_name=type(processor).__mro__[1].__name__,
    )


# -- making the processor ----------------------------------------------------------------------------------------------


def _processor_class(config: Any, settings: Mapping[str, Any]) -> Any:
    """The class by what the files say, by transformers' table, or the one class beside the model's configuration."""
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    named = settings.get("processor_class") or PROCESSOR_MAPPING_NAMES.get(config.model_type)
    if isinstance(named, str):
        return _class_named(named)
    package = type(config).__module__.rpartition(".")[0]
    name = package.rpartition(".")[2]
    try:
        module = importlib.import_module(f"{package}.processing_{name}")
    except ImportError as error:
        reason = "" if isinstance(error, ModuleNotFoundError) else f": {_first_sentence(error)}"
        raise InputError(f"{_unnamed(config)}{reason}") from None
    found = [
        value
        for key, value in vars(module).items()
        if key.endswith("Processor") and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise InputError(_unnamed(config))
    return found[0]


def _unnamed(config: Any) -> str:
    return (
        f"transformers names no processor of model_type {config.model_type!r}, and no preprocessor_config.json does as "
        f"processor_class"
    )


def _parts_of(kind: Any) -> list[str]:
    try:
        return kind.get_attributes()
    except ImportError as error:  # a class that stands where the real one needs another package
        raise InputError(_first_sentence(error)) from None


def _class_named(name: str) -> Any:
    import transformers

    try:
        return getattr(transformers, name)
    except (AttributeError, ImportError) as error:
        raise InputError(f"{name} cannot be had: {_first_sentence(error)}") from None


def image_processor_of(config: Any, settings: Mapping[str, Any], vision: Any = None) -> Any:
    """The processor with the settings of preprocessor_config.json, or defaults and the size that the vision tower
    fixes, whose configuration is ``vision``, or that which ``config`` has of it. Raises InputError without one."""
    kind = _image_processor_class(config, settings)
    try:
        if settings:
            return kind.from_dict(dict(settings))
        return kind(**_fixed_size(kind(), vision or getattr(config, "vision_config", None)))
    except ImportError as error:
        raise InputError(_first_sentence(error)) from None


def _image_processor_class(config: Any, settings: Mapping[str, Any]) -> Any:
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.utils import is_torchvision_available

    named = settings.get("image_processor_type") or settings.get("feature_extractor_type")
    if isinstance(named, str):
        base = named.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
        names = {"pil": f"{base}Pil", "torchvision": base}
    else:
        package = type(config).__module__.split(".")[-2]
        known = (IMAGE_PROCESSOR_MAPPING_NAMES.get(key) for key in (config.model_type, package))
        names = next(filter(None, known), None) or _names_beside(config)
    names = {variant: name for variant, name in names.items() if name}
    order = ("torchvision", "pil") if is_torchvision_available() else ("pil", "torchvision")
    for variant in order:
        if variant in names:
            try:
                return _class_named(names[variant])
            except InputError:
                continue
    raise InputError(f"transformers names no image processor of model_type {config.model_type!r}")


def _names_beside(config: Any) -> dict[str, str]:
    """The image processors in the folder of the model's configuration; of models that share another's, none."""
    package = type(config).__module__.rpartition(".")[0]
    name = package.rpartition(".")[2]
    names: dict[str, str] = {}
    for variant, end in (("torchvision", ""), ("pil", "_pil")):
        try:
            module = importlib.import_module(
                f"{package}.image_processing{end}_{name}" if end else f"{package}.image_processing_{name}"
            )
        except ImportError:
            continue
        own = [
            key
            for key, value in vars(module).items()
            if "ImageProcessor" in key and getattr(value, "__module__", "") == module.__name__
        ]
        if len(own) == 1:
            names[variant] = own[0]
    return names


def _fixed_size(processor: Any, vision: Any) -> dict[str, Any]:
    """What the vision tower fixes: its patches, and the side of images where the class's default is a square too."""
    found: dict[str, Any] = {}
    for name, key in OF_TOWER.items():
        value = getattr(vision, key, None)
        own = f"vision_{name}" if hasattr(processor, f"vision_{name}") else name
        if isinstance(getattr(processor, own, None), int) and isinstance(value, int):
            found[own] = value
    side = getattr(vision, "image_size", None)
    side = side[0] if isinstance(side, list | tuple) else side
    size = {key: value for key, value in dict(getattr(processor, "size", None) or {}).items() if value}
    if not isinstance(side, int):
        return found
    if size.keys() == {"height", "width"} and size["height"] == size["width"]:
        found["size"] = {"height": side, "width": side}
    elif size.keys() == {"shortest_edge"}:
        found |= {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    return found


def _settings_of_tower(kind: Any, config: Any) -> dict[str, Any]:
    """What the processor has to know of the model and a checkpoint's processor_config.json says, by the same names."""
    vision = getattr(config, "vision_config", None)
    found: dict[str, Any] = {}
    parameters = inspect.signature(kind.__init__).parameters
    fixed = MERGED if parameters.keys() >= set(MERGED) else ()
    for name, parameter in parameters.items():
        if parameter.default is None or name in fixed:
            value = getattr(config, name, None) or getattr(vision, name, None)
            if isinstance(value, int | float | str):
                found[name] = value
            elif name == "vision_feature_select_strategy":
                found[name] = "default"
    if "num_additional_image_tokens" in parameters:
        found["num_additional_image_tokens"] = int(
            getattr(vision, "model_type", "").startswith("clip")
        )  # its class token
    return found


def _checked_unless_left_out(self: Any, name: str, argument: Any) -> Any:
    """The part for videos or sound is not there."""
    if argument is None or isinstance(argument, LeftOut):
        return None
    above: Any = super(type(self), self)
    return above.check_argument_for_proper_class(name, argument)


# -- calling it --------------------------------------------------------------------------------------------------------


def _forms(processor: Any) -> Iterator[str]:
    """Texts that may stand for one image."""
    for key in PLACEHOLDERS:
        token = getattr(processor, key, None)
        if isinstance(token, str):
            yield token
            for start, end in WRAPPERS:
                around = getattr(processor, start, None), getattr(processor, end, None)
                if all(isinstance(text, str) for text in around):
                    yield f"{around[0]}{token}{around[1]}"
    yield ""


def _accepted(processor: Any, images: list[list[Any]]) -> dict[str, torch.Tensor]:
    """What the processor makes of the images of samples without words: called in the first way that it takes.

    Raises InputError with what it says to the first way where it takes none.
    """
    refusal: Exception | None = None
    flat = [image for of_sample in images for image in of_sample]
    for form in _forms(processor):
        texts = [form * len(of_sample) for of_sample in images]
        for named in ({"text": texts, "images": images}, {"text": texts, "images": flat}, {"images": flat}):
            try:
                made = dict(processor(**named, return_tensors="pt", return_mm_token_type_ids=True))
            except Exception as error:  # processors raise anything at all
                refusal = refusal or error
                continue
            if isinstance(made.get("input_ids"), torch.Tensor) and len(made["input_ids"]) == len(images):
                return {name: value for name, value in made.items() if isinstance(value, torch.Tensor)}
    reason = "" if refusal is None else f": {_first_sentence(refusal)}"
    raise InputError(f"{type(processor).__mro__[1].__name__} refuses images of this size{reason}")


def _lengthened(made: dict[str, torch.Tensor], num_tokens: int) -> dict[str, torch.Tensor]:
    """The samples with words behind their images. Raises InputError where there is no room for one."""
    own = made["input_ids"].shape[1]
    if own > num_tokens:
        raise InputError(f"the images of a sample take {own} tokens, and there are {num_tokens}")
    made.setdefault("attention_mask", torch.ones_like(made["input_ids"]))
    longer = dict(made)
    for name, value in made.items():
        if value.dim() > 1 and value.shape[:2] == made["input_ids"].shape and not value.is_floating_point():
            words = value.new_zeros((len(value), num_tokens - own, *value.shape[2:]))
            longer[name] = torch.cat((value, words + (name == "attention_mask")), dim=1)
    return longer


def _placeholder(processor: Any, ids: torch.Tensor) -> int | None:
    """The id of the tokens that features take the place of: the processor's own, or the one that comes most often."""
    counts = Counter(ids[0].tolist())
    own = getattr(processor, "image_token_id", None)
    if isinstance(own, int) and counts[own]:
        return own
    token, count = next(iter(counts.most_common(1)), (0, 0))
    return token if count > 2 else None


def image_token_of(config: Any) -> int | None:
    """The id of the tokens that features take the place of, by the configuration; None where it has none."""
    return next((value for key in TOKEN_KEYS if isinstance(value := getattr(config, key, None), int)), None)


def _with_ids_of(config: Any, ids: torch.Tensor, placeholder: int | None) -> torch.Tensor:
    """``ids`` with the configuration's id in the place of the placeholder, and words in the place of all others."""
    reserved = {
        value for key, value in vars(config).items() if key.endswith(("_id", "_index")) and isinstance(value, int)
    }
    words = [index for index in range(5, 5 + NUM_TEXT_IDS) if index not in reserved]
    row = torch.tensor(words)[torch.arange(ids.shape[1]) % len(words)].repeat(len(ids), 1)
    token = image_token_of(config)
    if placeholder is None or token is None:
        return row
    return torch.where(ids == placeholder, token, row)


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text.partition(". ")[0].rstrip(".") or type(error).__name__
