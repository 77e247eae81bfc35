"""An output head whose weight the loss reads inside the model's own forward, without calling the head as a module.

TRL's fused head does (trl 1.16 ``trainer/utils.py`` ``add_fused_lm_head``), and Liger's forward of a model. DeepSpeed
then takes the weight for one of the model's own: ``ZeROOrderedDict.__getitem__`` (deepspeed 0.19.8
``zero/parameter_offload.py``) registers it with the module whose forward runs (``register_external_parameter``). From
the second micro batch on stage 3 gathers it before that forward begins and releases it when it is over. Backward
gathers it first of all and keeps it to the end: the model's input, token ids, has no gradient that would tell that its
backward is done.
"""

from collections.abc import Mapping
from typing import Any

from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.recorder import Recorder


class ReadHead:
    """The model as stage 3 sees it: a module whose own weights are those of ``head``."""

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
