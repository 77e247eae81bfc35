"""Everything that has to be put in the way of torch, transformers, DeepSpeed and bitsandbytes, each with its reason.

A shim is one function that returns what takes it away again; ``installed`` puts all in place. tests/trainer/rehearse
has a test for each that fails once the library does without.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from vlmplan_trainer.engines.optimizers import CPU_ADAM
from vlmplan_trainer.losses import liger as liger_loss
from vlmplan_trainer.rehearse import ranks
from vlmplan_trainer.rehearse.components import inner_tensors, tensors_in
from vlmplan_trainer.rehearse.device_shims import DEVICE_SHIMS, paging_in_host_memory
from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.rehearse.sharded_shims import counting_bytes_as_addresses, deriving_shapes_unseen
from vlmplan_trainer.rehearse.values import give_value, value_of


@contextmanager
def installed(*, has_device: bool = True, has_paged_states: bool = True) -> Iterator[None]:
    """All shims; without those of a device of its own where ranks run on the CPU, and without that of bitsandbytes,
    which takes a second to import, where no optimizer state is paged."""
    with ExitStack() as stack:
        for shim in (*SHIMS, *(DEVICE_SHIMS if has_device else ())):
            if shim is not paging_in_host_memory or has_paged_states:
                stack.enter_context(shim())
        yield


@contextmanager
def patched_data_setter() -> Iterator[None]:
    """Fake tensors know for themselves where they are and what they hold; they have to be told of other data."""
    plain: Any = torch.Tensor.data

    def set_data(self: Any, other: Any) -> None:
        plain.__set__(self, other)
        if isinstance(other, FakeTensor):
            self.fake_device = other.fake_device
            give_value(self, value_of(other))

    FakeTensor.data = property(plain.__get__, set_data)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        del FakeTensor.data


@contextmanager
def making_parameters_of_fake_tensors() -> Iterator[None]:
    """``_make_subclass`` makes no tensor of a class such as bitsandbytes' ``Params4bit`` of a fake one."""
    make = torch.Tensor._make_subclass

    def make_fake(kind: Any, data: Any, requires_grad: bool = False, **kwargs: Any) -> Any:
        plain = next((plain for plain, fake in _fake_kinds.items() if fake is kind), kind)  # of a copy: DoRA's
        if isinstance(data, FakeTensor) and not issubclass(plain, FakeTensor):
            return _fake_of(plain, data, requires_grad)
        return make(kind, data, requires_grad, **kwargs)

    with replaced(torch.Tensor, "_make_subclass", staticmethod(make_fake)):
        yield


@contextmanager
def copying_nothing_but_data() -> Iterator[None]:
    """``copy.deepcopy`` of a parameter copies its data and no attributes (``Parameter.__deepcopy__``); this is how peft
    copies the embeddings and heads that it trains (``ModulesToSaveWrapper``). A fake parameter would be copied by
    ``Tensor.__deepcopy__`` with its attributes: DeepSpeed's, and a copy of the fake mode. Views of a tensor of another
    mode get storages of their own, which would be counted as memory that a real run does not take."""

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            data = self.detach().clone(memory_format=torch.preserve_format)
            kind = torch.nn.Parameter if isinstance(self, torch.nn.Parameter) else torch.Tensor.requires_grad_
            memo[id(self)] = kind(data, self.requires_grad)
        return memo[id(self)]

    FakeTensor.__deepcopy__ = copied  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        del FakeTensor.__deepcopy__  # pyright: ignore[reportAttributeAccessIssue]


_fake_kinds: dict[type, type] = {}


def _fake_of(kind: type, data: FakeTensor, requires_grad: bool) -> Any:
    """A fake tensor that is also of ``kind``, a class of parameters."""
    if kind not in _fake_kinds:
        _fake_kinds[kind] = type(kind)(kind.__name__, (kind, FakeTensor), {})
    fake = data.detach().requires_grad_(requires_grad)
    fake.__class__ = _fake_kinds[kind]
    return fake


@contextmanager
def moving_modules_in_place() -> Iterator[None]:
    """``Module._apply`` swaps fake tensors as a whole, which fails while anything holds a weak reference to them;
    setting ``.data`` is what it does with plain tensors."""

    def apply(self: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
        for child in self.children() if recurse else ():
            child._apply(fn)
        for name, parameter in self._parameters.items():
            if parameter is None:
                continue
            with torch.no_grad():
                moved = fn(parameter)
            if isinstance(moved, torch.nn.Parameter):  # bitsandbytes returns one of its own
                if moved.device != parameter.device:  # it has no scales where the layer has them from its first use on
                    self._parameters[name] = moved
            else:
                parameter.data = moved
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    with replaced(torch.nn.Module, "_apply", apply):
        yield


@contextmanager
def taking_fake_tensors_for_real() -> Iterator[None]:
    """transformers takes fake tensors for a graph capture and then builds masks that a real run does not have."""
    import transformers.utils.import_utils as utils

    with replaced(utils, "is_fake_tensor", lambda tensor: False):
        yield


@contextmanager
def trusting_other_ranks() -> Iterator[None]:
    """DeepSpeed compares numbers with those of other ranks, which a process group of one real rank never gets."""
    import deepspeed.runtime.zero.partition_parameters as parameters
    import deepspeed.runtime.zero.partitioned_param_coordinator as coordinator
    import deepspeed.runtime.zero.stage3 as stage3
    import deepspeed.runtime.zero.utils as utils

    with ExitStack() as stack:
        for module in (utils, stage3, parameters, coordinator):
            for name in dir(module):
                if name.startswith("assert_") and name.endswith("_same_as_other_ranks"):
                    stack.enter_context(replaced(module, name, lambda *args, **kwargs: None))
        yield


@contextmanager
def looping_over_no_ranks() -> Iterator[None]:
    """ZeRO-3 makes views for every rank of a message, so that 512 ranks take 20 times as long as 4; see ``ranks``."""
    import deepspeed.runtime.zero.stage3 as stage3
    from deepspeed.runtime.zero.partition_parameters import Init

    convert = Init._convert_to_deepspeed_param

    def convert_once(self: Any, param: Any) -> None:
        convert(self, param)
        ranks.gather_at_once(param)

    with (
        replaced(Init, "_convert_to_deepspeed_param", convert_once),
        replaced(stage3, "reduce_scatter_coalesced", ranks.reduce_scatter),
    ):
        yield


@contextmanager
def listing_known_values() -> Iterator[None]:
    """``tolist`` of a fake tensor asks for its elements one by one; where all are known they are there at once."""
    slow = FakeTensor.tolist

    def tolist(self: Any) -> Any:
        value = value_of(self)
        if value is None:
            return slow(self)
        with unset_fake_temporarily():
            return value.tolist()

    with replaced(FakeTensor, "tolist", tolist):
        yield


@contextmanager
def making_tensors_of_tensors() -> Iterator[None]:
    """``torch.tensor([tensor, ...])`` reads its elements where no fake tensor can answer. ``zero.Init`` puts back the
    function that DeepSpeed has kept."""
    import deepspeed.runtime.zero.partition_parameters as parameters

    make = torch.tensor

    def numbers(item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return [numbers(one) for one in item]
        return item.item() if isinstance(item, FakeTensor) else item

    def make_of_numbers(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return make(numbers(data), *args, **kwargs)

    with replaced(torch, "tensor", make_of_numbers), replaced(parameters, "_orig_torch_tensor", make_of_numbers):
        yield


class NoAdam:
    """DeepSpeed's compiled AdamW for the host, without arithmetic. It updates in place and allocates nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


@contextmanager
def updating_nothing_on_the_host() -> Iterator[None]:
    """DeepSpeed's ``cpu_adam`` would be compiled, and then write through pointers that fake tensors have not."""
    import deepspeed.git_version_info as built
    import deepspeed.ops.op_builder

    builders: Any = deepspeed.ops.op_builder  # which names its builders when it is imported
    with (
        replaced(builders.CPUAdamBuilder, "load", lambda self, verbose=True: NoAdam()),
        replaced(
            built, "installed_ops", {**built.installed_ops, CPU_ADAM: True}
        ),  # so that none is said to be compiled
    ):
        yield


@contextmanager
def computing_no_softmax_of_liger() -> Iterator[None]:
    """What Liger's Triton kernel does in registers and in place is done by torch in tensors of its own."""
    with replaced(liger_loss, "_write_gradients", lambda *args, **kwargs: None):
        yield


@dataclass
class SavedBytes:
    num_bytes: int = 0


@contextmanager
def counting_saved_bytes() -> Iterator[SavedBytes]:
    """``torch.save`` has no numbers to write: the bytes of the storages are counted instead, each once a file."""
    saved = SavedBytes()

    def save(obj: Any, *args: Any, **kwargs: Any) -> None:
        sizes: dict[int, int] = {}
        for tensor in tensors_in(obj, depth=8):
            for own in inner_tensors(tensor):
                storage = own.untyped_storage()
                sizes[storage._cdata] = storage.nbytes()
        saved.num_bytes += sum(sizes.values())

    with replaced(torch, "save", save):
        yield saved


SHIMS = (
    patched_data_setter,
    making_parameters_of_fake_tensors,
    copying_nothing_but_data,
    moving_modules_in_place,
    taking_fake_tensors_for_real,
    trusting_other_ranks,
    looping_over_no_ranks,
    listing_known_values,
    making_tensors_of_tensors,
    updating_nothing_on_the_host,
    deriving_shapes_unseen,
    counting_bytes_as_addresses,
    computing_no_softmax_of_liger,
)
