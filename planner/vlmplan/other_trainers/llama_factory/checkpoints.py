"""LLaMA-Factory's activation checkpoints (``model/model_utils/checkpointing.py``)."""

from typing import Final

from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.llama_factory.preferences import TASKS
from vlmplan.other_trainers.meaning import Meaning
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings

HOST_UNDER_FSDP: Final = (
    "use_unsloth_gc under FSDP2 is not planned: it runs layers again from a function of its own; false is planned"
)


def checkpoint_options(settings: Settings, stage: str, *, trains_vision: bool) -> dict[str, Value]:
    """Whether layers are checkpointed, which they are by default, and where their inputs wait: with ``use_unsloth_gc``
    in host memory (``UnslothGradientCheckpointing``, which does not need Unsloth itself)."""
    settings.ignore(("use_unsloth_gc",))
    if settings.flag("disable_gradient_checkpointing", False):
        return {}
    options: dict[str, Value] = {"activation_checkpointing": True}
    if not trains_vision:  # layers without anything to train are not run again
        options["vision_activation_checkpointing"] = False
    if settings.flag("use_unsloth_gc", False):
        options["offload_activations"] = True
        if stage in TASKS:
            settings.refuse("use_unsloth_gc", f"of preferences {NOT_PLANNED}; false is planned")
    return options


def take_checkpoint_kind(settings: Settings, options: dict[str, Value], meaning: Meaning) -> None:
    """Those with inputs on the host are reentrant whatever ``use_reentrant_gc`` says. It goes with transformers up to
    5.6."""
    meaning.checkpoints_calls = True
    on_host = "offload_activations" in options
    meaning.is_reentrant = settings.flag("use_reentrant_gc", True) or on_host
    if on_host and meaning.without_fsdp is None:
        meaning.without_fsdp = HOST_UNDER_FSDP
