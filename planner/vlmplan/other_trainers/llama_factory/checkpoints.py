"""LLaMA-Factory's activation checkpoints (``model/model_utils/checkpointing.py``)."""

from typing import Final

from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.llama_factory.preferences import TASKS
from vlmplan.other_trainers.meaning import Meaning
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings

WITH_OLDER: Final = (
    "use_reentrant_gc is false: with adapters under ZeRO-3 DeepSpeed before 0.19.3, which requirements/deepspeed.txt "
    "asks for, ends such a run with torch's CheckpointError; leave it out there"
)
"""It shards the frozen weights that the second forward has saved (DeepSpeed pull request 8148, transformers issue
47254). Seen with 0.18.9 on two CPU ranks."""
WITH_NEWER: Final = (
    "planned with DeepSpeed up to 0.16.9, which requirements/deepspeed.txt asks for: from 0.19.3 on its reentrant "
    "checkpoints leave all frozen weights whole on each GPU at the end of backward, which --checkpoint-kind "
    "reentrant-calls plans and use_reentrant_gc: false avoids"
)
"""With transformers up to 5.6, which it asks for, hooks of a layer are inside of its checkpoint
(``architecture/unreleased.py``). Measured on two CPU ranks: ``tests/other_trainers/llama_factory_run.py``."""
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
    """Those with inputs on the host are reentrant whatever ``use_reentrant_gc`` says."""
    meaning.if_reentrant, meaning.unless_reentrant = WITH_NEWER, WITH_OLDER
    on_host = "offload_activations" in options
    meaning.is_reentrant = settings.flag("use_reentrant_gc", True) or on_host
    if on_host and meaning.without_fsdp is None:
        meaning.without_fsdp = HOST_UNDER_FSDP
