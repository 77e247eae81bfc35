"""Tokenizers and processors, from a folder or the Hugging Face hub."""

from dataclasses import dataclass
from typing import Any

from vlmplan.model_types.thinkers import THINKERS

VIDEO = "video_processor"


def load_processor(
    source: str,
    *,
    is_vision: bool,
    hears_prompt: bool = False,
    needs_images: bool = False,
    revision: str | None = None,
) -> Any:
    """The processor of a vision model or of one that hears what others read, the tokenizer of a text model. Runs no
    code of the checkpoint.

    ``needs_images``: where no class puts the part for images and the tokenizer together, both are loaded apart.
    """
    from transformers import AutoProcessor, AutoTokenizer
    from transformers.utils import is_torchvision_available

    where = {"revision": revision, "trust_remote_code": False}
    if hears_prompt:
        return AutoProcessor.from_pretrained(source, **where)
    if not is_vision:
        return AutoTokenizer.from_pretrained(source, **where)
    if not is_torchvision_available():
        found = _processor_without_video(source, where)
        if found is not None:
            return found
    found = AutoProcessor.from_pretrained(source, **where)
    return found if hasattr(found, "image_processor") or not needs_images else _put_together(source, where)


@dataclass(frozen=True, slots=True)
class ImagesAndTokens:
    """The parts of a processor of which transformers has none, and no file names one (a captioner of ViT and GPT-2)."""

    image_processor: Any
    tokenizer: Any


def _put_together(source: str, where: dict[str, Any]) -> Any:
    from transformers import AutoImageProcessor, AutoTokenizer

    images = AutoImageProcessor.from_pretrained(source, **where)
    return ImagesAndTokens(images, AutoTokenizer.from_pretrained(source, **where))


def _processor_without_video(source: str, where: dict[str, Any]) -> Any:
    """The model's processor less its part for videos, which needs torchvision; None where it has no such part.

    transformers 5 refuses to load such a processor at all without torchvision, though its image processor has a
    variant on PIL. The processor's class passes its parts on in the order of its ``__init__``, the video part mostly
    last.
    """
    from transformers import AutoConfig, ProcessorMixin

    class _Parts(ProcessorMixin):
        """What the class's ``__init__`` passes its parts on to, wherever in their order the video part is, or by name
        (Gemma 4)."""

        def __init__(self, *parts: Any, **named: Any) -> None:
            named = {name: part for name, part in named.items() if name != VIDEO}
            super().__init__(*(part for part in parts if part is not None), **named)

    full_class = _full_class(AutoConfig.from_pretrained(source, **where))
    if full_class is None or VIDEO not in full_class.get_attributes():
        return None
    without_video = {
        "get_attributes": classmethod(_attributes_without_video),
        "_get_arguments_from_pretrained": classmethod(_arguments_without_video),
    }
    return type(full_class.__name__, (full_class, _Parts), without_video).from_pretrained(source, **where)


def _full_class(config: Any) -> Any:
    """The class that transformers names for a configuration, of a thinker for the whole model; None without one."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    whole = next((whole for whole, one in THINKERS.items() if one.model_type == config.model_type), None)
    return PROCESSOR_MAPPING.get(type(config) if whole is None else CONFIG_MAPPING[whole], None)


def lacks_video(processor: Any) -> bool:
    """Whether the processor is one without its part for videos, which transformers itself would not have loaded."""
    own, *above = type(processor).__mro__
    return "_get_arguments_from_pretrained" in vars(own) and VIDEO in _attributes(above[0])


def _attributes(kind: Any) -> list[str]:
    return kind.get_attributes() if hasattr(kind, "get_attributes") else []


def _attributes_without_video(cls: Any) -> list[str]:
    full_class = cls.__mro__[1]
    return [name for name in full_class.get_attributes() if name != VIDEO]


def _arguments_without_video(cls: Any, *given: Any, **named: Any) -> list[Any]:
    """The arguments with None for the part, which some classes (SmolVLM's) ask for if only to pass it on."""
    found = [*super(cls, cls)._get_arguments_from_pretrained(*given, **named)]
    found.insert(cls.__mro__[1].get_attributes().index(VIDEO), None)
    return found
