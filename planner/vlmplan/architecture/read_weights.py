"""Weights that a model reads outside of their own modules, without calling these.

DeepSpeed takes such a weight for one of the model's own: ``ZeROOrderedDict.__getitem__`` (deepspeed 0.19.8
``zero/parameter_offload.py``) registers it with the module whose forward runs (``register_external_parameter``). From
the second micro batch on stage 3 gathers it before that forward begins and releases it when it is over.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from vlmplan.architecture.containers import call_container, passing
from vlmplan.architecture.modules import Embedding, Module
from vlmplan.architecture.parameter import Parameter, WeightUser
from vlmplan.architecture.recorder import Recorder
from vlmplan.architecture.tensor import Tensor

ORIGINAL = "original."
"""What names of a head's own weights begin with, beside those of the copy of it that is trained."""


class ReadWeight(Module):
    """One weight, that of an embedding of which the model reads a row or all."""

    def __init__(self, owner: Embedding) -> None:
        self.weight = owner.weight


class WeightsOfReader(WeightUser):
    """The weights of a module and those that its forward reads of modules inside it, as ZeRO-3 sees them."""

    def __init__(self, reader: "ReadingModule") -> None:
        self.parameters_by_name = reader.used_parameters()
        own = {id(weight) for weight in reader.parameters_by_name.values()}
        self.reads = frozenset(id(weight) for weight in self.parameters_by_name.values()).difference(own)


class ReadingModule(Module):
    """A module that reads weights of modules inside it, whether or not it calls them too."""

    _gathered: WeightsOfReader | None = None

    def read_modules(self) -> Sequence[Any]:
        """The modules whose weights this one reads."""
        raise NotImplementedError(type(self).__name__)

    def used_parameters(self) -> dict[str, Parameter]:
        """The module's own parameters and those that it reads, of modules that may be wrapped by adapters."""
        used = dict(self.parameters_by_name)
        for number, module in enumerate(self.read_modules()):
            own = unwrapped(module).parameters_by_name
            used |= {f"{number}.{name}": parameter for name, parameter in own.items()}
        return used

    def __call__(self, x: Tensor, *args: Any) -> Any:
        if not x.tape.fetches_weights:
            return self.forward(x, *args)
        if self._gathered is None:  # adapters are in place by the first use
            self._gathered = WeightsOfReader(self)
        has_input_grad = x.requires_grad and not self.takes_keywords
        return call_container(x.tape, self._gathered, partial(self.forward, x, *args), has_input_grad=has_input_grad)


def unwrapped(module: Any) -> Any:
    """The module itself, or what an adapter has wrapped."""
    return getattr(module, "base_layer", module)


class ReadHead(WeightUser):
    """The model as stage 3 sees it whose loss reads the weight of its ``head``: a module with that weight.

    TRL's fused head does (trl 1.16 ``trainer/utils.py`` ``add_fused_lm_head``), and Liger's forward of a model.
    Backward gathers the weight first of all and keeps it to the end: the model's input, token ids, has no gradient that
    would tell that its backward is done.

    ``calls_head``: the model's own forward reads the weight of the head that it then calls, as Mamba-2 does for its
    type. Backward comes to the model only where its logits have a gradient.

    ``runs_without_adapters``: with its adapters off it has read the original of a head that is trained as a copy
    (``AuxiliaryTrainingWrapper.__getattr__`` in peft 0.21 ``utils/other.py``), so that every forward gathers both.
    """

    reads_head = True

    def __init__(self, head: Any, *, calls_head: bool = False, runs_without_adapters: bool = False) -> None:
        """``head`` may be wrapped by adapters or trained as a copy, in which the reader does not take part."""
        self.calls_head = calls_head
        self.head = getattr(head, "base_layer", getattr(head, "modules_to_save", head))
        self.parameters_by_name = dict(self.head.parameters_by_name)
        if runs_without_adapters and hasattr(head, "original_module"):
            original = head.original_module.parameters_by_name
            self.parameters_by_name |= {f"{ORIGINAL}{name}": parameter for name, parameter in original.items()}


def begin_forward(tape: Recorder, model: ReadHead | None) -> ReadHead | None:
    """The forward of the whole model begins; None where nothing reads the head."""
    if model is not None and tape.follows_weights:
        with tape.section("model"):
            tape.fetch(model)
    return model


def end_forward(model: ReadHead | None, result: Tensor, *, returns_it: bool = True) -> Tensor:
    """``result`` at the end of the forward of a model that calls the head whose weight it reads. Backward begins there
    if the model ``returns_it``; a loss that is made in place of the head is not seen to come from it."""
    tape = result.tape
    if model is None or not model.calls_head or not tape.follows_weights:
        return result
    tape.release(model)
    return passing(model, result) if returns_it else result
