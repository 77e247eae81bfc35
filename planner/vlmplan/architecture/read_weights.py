"""Weights that a model reads outside of their own modules, without calling these.

DeepSpeed takes such a weight for one of the model's own: ``ZeROOrderedDict.__getitem__`` (deepspeed 0.19.8
``zero/parameter_offload.py``) registers it with the module whose forward runs (``register_external_parameter``). From
the second micro batch on stage 3 gathers it before that forward begins and releases it when it is over.
"""

from collections.abc import Mapping
from typing import Any

from vlmplan.architecture.modules import Embedding, Module
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.recorder import Recorder


class ReadWeight(Module):
    """One weight, that of an embedding of which the model reads a row or all."""

    def __init__(self, owner: Embedding) -> None:
        super().__init__()
        self.weight = owner.weight


class ReadHead:
    """The model as stage 3 sees it whose loss reads the weight of its ``head``: a module with that weight.

    TRL's fused head does (trl 1.16 ``trainer/utils.py`` ``add_fused_lm_head``), and Liger's forward of a model.
    Backward gathers the weight first of all and keeps it to the end: the model's input, token ids, has no gradient that
    would tell that its backward is done.
    """

    reads_head = True

    def __init__(self, head: Any) -> None:
        """``head`` may be wrapped by adapters or trained as a copy, in which the reader does not take part."""
        self.head = getattr(head, "base_layer", getattr(head, "modules_to_save", head))

    @property
    def parameters_by_name(self) -> Mapping[str, Parameter]:
        return self.head.parameters_by_name


def begin_forward(tape: Recorder, model: ReadHead | None) -> None:
    """The forward of the whole model begins; None where the loss does not read the head."""
    if model is not None and tape.follows_weights:
        with tape.section("model"):
            tape.fetch(model)
