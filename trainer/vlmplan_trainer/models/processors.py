"""Tokenizers and processors, from a folder or the Hugging Face hub."""

from typing import Any


def load_processor(source: str, *, is_vision: bool, revision: str | None = None) -> Any:
    """The processor of a vision model, the tokenizer of a text model. Runs no code of the checkpoint."""
    from transformers import AutoProcessor, AutoTokenizer
    from transformers.utils import is_torchvision_available

    where = {"revision": revision, "trust_remote_code": False}
    if not is_vision:
        return AutoTokenizer.from_pretrained(source, **where)
    if not is_torchvision_available():
        found = _processor_without_video(source, where)
        if found is not None:
            return found
    return AutoProcessor.from_pretrained(source, **where)


def _processor_without_video(source: str, where: dict[str, Any]) -> Any:
    """The model's processor less its part for videos, which needs torchvision; None where it has no such part.

    transformers 5 refuses to load such a processor at all without torchvision, though its image processor has a
    variant on PIL. The processor's class passes its parts on in the order of its ``__init__``, the video part last.
    """
    from transformers import AutoConfig
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    config = AutoConfig.from_pretrained(source, **where)
    full_class: Any = PROCESSOR_MAPPING.get(type(config), None)
    if full_class is None or full_class.get_attributes()[-1] != "video_processor":
        return None
    without_video = {
        "get_attributes": classmethod(_attributes_without_video),
        "_get_arguments_from_pretrained": classmethod(_arguments_without_video),
    }
    return type(full_class.__name__, (full_class,), without_video).from_pretrained(source, **where)


def lacks_video(processor: Any) -> bool:
    """Whether the processor is one without its part for videos, which transformers itself would not have loaded."""
    own, *above = type(processor).__mro__
    return "_get_arguments_from_pretrained" in vars(own) and "video_processor" in _attributes(above[0])


def _attributes(kind: Any) -> list[str]:
    return kind.get_attributes() if hasattr(kind, "get_attributes") else []


def _attributes_without_video(cls: Any) -> list[str]:
    full_class = cls.__mro__[1]
    return [name for name in full_class.get_attributes() if name != "video_processor"]


def _arguments_without_video(cls: Any, *given: Any, **named: Any) -> list[Any]:
    """None for the part, which some classes (SmolVLM's) ask for if only to pass it on."""
    return [*super(cls, cls)._get_arguments_from_pretrained(*given, **named), None]
