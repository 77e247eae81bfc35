"""The shims for a simulated device; ranks on the CPU need none of them. See ``shims``."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from vlmplan_trainer.rehearse.autocast import forget_casts
from vlmplan_trainer.rehearse.device import NAME
from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.rehearse.streams import current


@contextmanager
def one_kind_of_keys() -> Iterator[None]:
    """``tensor.data = other`` is allowed between tensors of a CPU and a CUDA card, but not between those of a CPU and
    the device here (``has_compatible_shallow_copy_type``, ``c10/core/TensorImpl.h``) unless their dispatch keys are
    equal: so fake tensors of the host get the device's."""
    make = torch.Tensor._make_subclass
    keys = torch.device(NAME, 0)

    def make_with_keys(*args: Any, device_for_backend_keys: Any = None, **kwargs: Any) -> Any:
        return make(*args, device_for_backend_keys=device_for_backend_keys and keys, **kwargs)

    with replaced(torch.Tensor, "_make_subclass", staticmethod(make_with_keys)):
        yield


@contextmanager
def forgetting_casts() -> Iterator[None]:
    """``autocast`` empties torch's own cache of copies when it ends; those of the device here are ours."""
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        clear()
        forget_casts()

    with replaced(torch, "clear_autocast_cache", clear_both):
        yield


@contextmanager
def asking_for_the_device_by_default() -> Iterator[None]:
    """``torch.is_autocast_enabled()`` without a device asks for CUDA; peft's layers of four bits do."""
    asked = torch.is_autocast_enabled

    def is_enabled(*kinds: str) -> bool:
        return asked(*(kinds or (NAME,)))

    with replaced(torch, "is_autocast_enabled", is_enabled):
        yield


@contextmanager
def making_numbers_on_the_host() -> Iterator[None]:
    """``torch.tensor(numbers, device=...)`` copies to the device before fake tensors come in; with this it makes a fake
    tensor first, as fake CUDA tensors do on machines without a card (``avoid_device_init``)."""
    old = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(old)


@contextmanager
def raising_after_backward() -> Iterator[None]:
    """An exception in a hook of a tensor, where DeepSpeed reduces gradients and gathers weights, is lost where that
    tensor is on a device that is registered in Python: the process ends ("terminate called without an active
    exception"), or backward fails with a SystemError that names nothing; those of autograd functions pass. It is raised
    when the engine has returned; hooks after it do nothing."""
    failed: list[BaseException] = []
    run = torch.autograd._engine_run_backward  # pyright: ignore[reportPrivateImportUsage]

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        finally:
            if failed:
                raise failed.pop()

    def keeping(register: Callable[..., Any]) -> Callable[..., Any]:
        def register_keeping(self: Any, hook: Callable[..., Any]) -> Any:
            return register(self, lambda *args: kept(hook, *args))

        return register_keeping

    def kept(hook: Callable[..., Any], *args: Any) -> Any:
        if failed:
            return None
        try:
            return hook(*args)
        except BaseException as error:
            failed.append(error)
            return None

    with ExitStack() as stack:
        stack.enter_context(replaced(torch.autograd, "_engine_run_backward", run_backward))
        for name in ("register_hook", "register_post_accumulate_grad_hook"):
            stack.enter_context(replaced(torch.Tensor, name, keeping(getattr(torch.Tensor, name))))
        yield


HOST = torch.device("cpu")


class RealZeros(TorchDispatchMode):
    """Zeros on the host are real tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.zeros.default and kwargs.get("device", HOST) == HOST:
            with _disable_current_modes():
                return torch.zeros(args[0], dtype=kwargs.get("dtype"))
        return func(*args, **kwargs)


class RealIndices(TorchDispatchMode):
    """Whole numbers that are asked for on the host are real tensors, and stay as they are where another rank's would be
    copied into them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_whole = kwargs.get("dtype") == torch.int32
        if func is torch.ops.aten.empty.memory_format and is_whole and kwargs.get("device", HOST) == HOST:
            with _disable_current_modes():
                return torch.empty(args[0], dtype=torch.int32)
        if func is torch.ops.aten.copy_.default and args[0].dtype == torch.int32:
            return args[0]
        return func(*args, **kwargs)


@contextmanager
def rebuilding_buckets() -> Iterator[None]:
    """Where every weight is used the reducer of ``DistributedDataParallel`` builds its buckets anew behind the first
    step, in the order in which gradients came, and reads the first rank's order through a pointer
    (``sync_bucket_indices`` in ``reducer.cpp``)."""
    rebuild = torch.distributed.Reducer._rebuild_buckets

    def rebuild_with_real_numbers(reducer: Any) -> bool:
        with RealIndices():
            return rebuild(reducer)

    with replaced(torch.distributed.Reducer, "_rebuild_buckets", rebuild_with_real_numbers):
        yield


@contextmanager
def knowing_used_weights() -> Iterator[None]:
    """The reducer of ``DistributedDataParallel`` asserts that the host's list of used weights and its pinned copy are
    in different places (``all_reduce_local_used_map``). Fake tensors have none, so the list is a real one. With
    ``init_sync`` the wrapper first compares the sizes of all ranks' weights by values, of which there are none."""
    make = torch.distributed.Reducer

    def find_them_equal(*args: Any) -> None:
        pass

    def make_with_real_list(*args: Any, **kwargs: Any) -> Any:
        with RealZeros():
            return make(*args, **kwargs)

    with (
        replaced(torch.distributed, "Reducer", make_with_real_list),
        replaced(torch.distributed, "_verify_params_across_processes", find_them_equal),
    ):
        yield


@contextmanager
def recording_no_streams() -> Iterator[None]:
    """``record_stream`` wants a stream of torch's own kind. It keeps freed memory from other streams for a while, which
    changes nothing in what is allocated."""
    FakeTensor.record_stream = lambda self, stream: None  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        del FakeTensor.record_stream


@contextmanager
def waiting_on_own_streams() -> Iterator[None]:
    """FSDP2 asks ``torch.accelerator`` for the stream that waits for a gather of which nothing came
    (``finalize_backward`` in ``_fsdp_param_group.py``), and gets one that no event of a device in Python goes with."""
    with replaced(torch.accelerator, "current_stream", lambda device=None: current()):
        yield


@contextmanager
def taking_tensors_together() -> Iterator[None]:
    """Fake tensors count as plain ones where torch asks whether one kernel may take many: on CUDA, which takes memory
    for it, ``clip_grad_norm_`` (``_has_foreach_support``) and optimizers that were told neither of ``foreach`` nor of
    ``fused`` (``_default_to_fused_or_foreach``)."""
    with ExitStack() as stack:
        for module in (_foreach_utils, importlib.import_module("torch.optim.optimizer")):
            types = [*module._foreach_supported_types, FakeTensor]
            stack.enter_context(replaced(module, "_foreach_supported_types", types))
        yield


class _Flattened:
    """The work of an all-gather, with the buffer that it fills."""

    def __init__(self, work: Any, flat: torch.Tensor) -> None:
        self._work, self._flat = work, flat

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()


@contextmanager
def flattening_gathered_lists() -> Iterator[None]:
    """NCCL gathers into one buffer, from which torch copies into the tensors of a list, and which the work keeps
    (``ProcessGroupNCCL::allgather`` and ``collective``, torch 2.13). ZeRO-3 with Muon asks for lists."""
    comm: Any = sys.modules.get("deepspeed.comm")
    if comm is None:
        yield
        return
    gather = comm.all_gather

    def flattened(tensors: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        flat = tensor.new_empty(len(tensors) * tensor.numel())
        return _Flattened(gather(tensors, tensor, *args, **kwargs), flat)

    with replaced(comm, "all_gather", flattened):
        yield


@contextmanager
def paging_in_host_memory() -> Iterator[None]:
    """bitsandbytes' paged moments are CUDA's managed memory, which its library hands out; it lies on the host here."""
    import bitsandbytes.functional as functional

    def paged(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        made: Any = torch.empty(shape, dtype=dtype)
        made.is_paged, made.page_deviceid = True, device.index
        return made

    with (
        replaced(functional, "get_paged", paged),
        replaced(functional, "fill", lambda *args: None),
        replaced(functional, "prefetch_tensor", lambda *args: None),
    ):
        yield


@contextmanager
def dequantising_for_products() -> Iterator[None]:
    """Dequantise weights for products of many tokens, as bitsandbytes does on CUDA, which multiplies no packed weights
    then: it makes the weight whole, with its scales beside it (``_dequant_linear_fallback`` of
    ``backends/cuda/ops.py``). Its kernels for few are not rehearsed."""
    importlib.import_module("bitsandbytes")  # registers the operations
    packed: Any = torch.ops.bitsandbytes
    dequantised_scales, dequantised_weight = packed.dequantize_blockwise.default, packed.dequantize_4bit.default

    def product(
        x: torch.Tensor, weight: torch.Tensor, shape: Any, scales: torch.Tensor, block: int, kind: str, **rest: Any
    ) -> torch.Tensor:
        packed_scales = rest.get("absmax_8bit")
        if packed_scales is not None:
            less_mean = dequantised_scales(packed_scales, scales, rest["absmax_code"], 256, torch.float32)
            scales = less_mean + rest["absmax_offset"]
        whole = dequantised_weight(weight, scales, block, kind, shape, x.dtype)
        return torch.nn.functional.linear(x, whole, rest.get("bias"))

    with replaced(packed.gemm_4bit, "default", product):
        yield


DEVICE_SHIMS = (
    one_kind_of_keys,
    forgetting_casts,
    asking_for_the_device_by_default,
    making_numbers_on_the_host,
    raising_after_backward,
    knowing_used_weights,
    recording_no_streams,
    waiting_on_own_streams,
    taking_tensors_together,
    flattening_gathered_lists,
    paging_in_host_memory,
)
