"""What operations cast under autocast on a device that is not there: of which type the result is, the most bytes that
live meanwhile, and those that live behind the operation and behind autocast. No numbers are computed.

``python tests/autocast_on_devices.py gpu`` asks the device of rehearsals, ``... cuda LIBRARY`` torch's own CUDA lists.
Builds of torch for CPUs end a backward on CUDA tensors for want of a device guard and of hooks; ``built_guard(folder)``
compiles both, in some seconds of a C++ compiler. Written to standard output as JSON.
"""

import ctypes
import json
import subprocess
import sys
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any

SOURCE = """
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
const c10::Device card(c10::DeviceType::CUDA, 0);
struct OneCard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device getDevice() const override { return card; }
  c10::Device exchangeDevice(c10::Device) const override { return card; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, card); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, card); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, new OneCard());
}
namespace at {
struct CUDAHooks : public CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
};
REGISTER_CUDA_HOOKS(CUDAHooks);
}
"""
"""A device guard and hooks for CUDA that do nothing: ``device_guard_impl_registry`` in ``c10/core/impl``, and
``getAccelerator`` in ``aten/src/ATen/DeviceAccelerator.cpp``, which asks ``isBuilt``."""
SAMPLES, TOKENS, WIDTH = 2, 24, 16


def built_guard(folder: Path) -> Path:
    """The compiled ``SOURCE``."""
    import torch

    root, built = Path(torch.__file__).parent, folder / "one_card.so"
    source = folder / "one_card.cpp"
    source.write_text(SOURCE)
    places = [f"-I{root / 'include'}", f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}"]
    flags = ("-std=c++20", "-O0", "-shared", "-fPIC", str(source), "-o", str(built), "-lc10", "-ltorch_cpu")
    subprocess.run(["g++", *places, *flags], check=True)
    return built


def operations() -> dict[str, Any]:
    """Each gets x (samples, tokens, width) and a trained square weight of float32."""
    import torch
    from torch.nn import functional

    def products(x: Any, weight: Any) -> Any:
        return functional.linear(functional.linear(x, weight), weight)

    def normed(x: Any, weight: Any) -> Any:
        return functional.layer_norm(x, (WIDTH,), weight[0])

    def placed(x: Any, weight: Any) -> Any:
        rows = torch.arange(SAMPLES, device=x.device)
        return torch.zeros_like(x).index_put((rows,), functional.linear(x, weight).to(x.dtype))

    targets = {"device": "meta", "dtype": torch.int64}
    return {
        "linear": functional.linear,
        "the same weight twice": products,
        "matmul": torch.matmul,
        "bmm": lambda x, weight: torch.bmm(x, x.transpose(1, 2)),
        "baddbmm": lambda x, weight: torch.baddbmm(x, x, weight.expand(SAMPLES, WIDTH, WIDTH)),
        "addmm": lambda x, weight: torch.addmm(weight[0], x[0], weight),
        "einsum": lambda x, weight: torch.einsum("btw,wv->bvt", x, weight),
        "conv1d": lambda x, weight: functional.conv1d(x.transpose(1, 2), weight.unsqueeze(-1)),
        "weight.t()": lambda x, weight: x @ weight.t(),
        "layer_norm": normed,
        "rms_norm": lambda x, weight: functional.rms_norm(x, (WIDTH,), weight[0]),
        "group_norm": lambda x, weight: functional.group_norm(x.transpose(1, 2), 4),
        "softmax": lambda x, weight: functional.softmax(x, -1),
        "softmax in its type": lambda x, weight: functional.softmax(x, -1, dtype=x.dtype),
        "log_softmax": lambda x, weight: functional.log_softmax(x, -1),
        "cross_entropy": lambda x, weight: functional.cross_entropy(
            x.flatten(0, 1), torch.zeros(SAMPLES * TOKENS, **targets | {"device": x.device})
        ),
        "mse_loss": lambda x, weight: functional.mse_loss(x, x),
        "softplus": lambda x, weight: functional.softplus(x),
        "exp": lambda x, weight: x.exp(),
        "pow": lambda x, weight: x.pow(2),
        "rsqrt": lambda x, weight: x.rsqrt(),
        "reciprocal": lambda x, weight: x.reciprocal(),
        "sum": lambda x, weight: x.sum(-1),
        "mean": lambda x, weight: x.mean(-1),
        "cumsum": lambda x, weight: x.cumsum(1),
        "prod": lambda x, weight: x.prod(-1),
        "length": lambda x, weight: torch.linalg.vector_norm(weight, dim=1),
        "logsumexp": lambda x, weight: x.logsumexp(-1),
        "interpolate": lambda x, weight: functional.interpolate(x, scale_factor=2.0),
        "cat": lambda x, weight: torch.cat([x, x.float()]),
        "stack": lambda x, weight: torch.stack([x, x.float()]),
        "addcmul": lambda x, weight: torch.addcmul(x, x, x.float()),
        "index_put": placed,
        "silu": lambda x, weight: functional.silu(x),
        "gelu": lambda x, weight: functional.gelu(x),
        "tanh": lambda x, weight: x.tanh(),
        "mul": lambda x, weight: x * weight[0],
    }


def byte_counter() -> Any:
    """A mode that counts the bytes of live storages."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class ByteCounter(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.sizes: dict[int, int] = {}
            self.live_bytes = self.peak_bytes = 0

        def reset_peak(self) -> None:
            self.peak_bytes = self.live_bytes

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self.count(tensor.untyped_storage())
            return result

        def count(self, storage: torch.UntypedStorage) -> None:
            key = storage._cdata
            if key in self.sizes:
                return
            self.sizes[key] = storage.nbytes()
            self.live_bytes += self.sizes[key]
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
            weakref.finalize(storage, self.forget, key)

        def forget(self, key: int) -> None:
            self.live_bytes -= self.sizes.pop(key)

    return ByteCounter()


def found_on(name: str) -> dict[str, list[Any]]:
    """By operation and the type of x: (type of the result, most bytes, bytes behind it, bytes behind autocast)."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    found: dict[str, list[Any]] = {}
    torch.autograd.set_multithreading_enabled(False)
    with FakeTensorMode(), byte_counter() as counter:
        weight = torch.empty(WIDTH, WIDTH, device=name, requires_grad=True)
        for dtype in (torch.float32, torch.bfloat16):
            for label, operation in operations().items():
                for has_grad in (False, True):
                    x = torch.empty(SAMPLES, TOKENS, WIDTH, device=name, dtype=dtype, requires_grad=has_grad)
                    before = counter.live_bytes
                    with torch.set_grad_enabled(has_grad), torch.autocast(name, torch.bfloat16):
                        counter.reset_peak()
                        out = operation(x * 2, weight)
                        inside = counter.peak_bytes - before, counter.live_bytes - before
                    line = [str(out.dtype), *inside, counter.live_bytes - before]
                    if has_grad:
                        counter.reset_peak()
                        out.sum().backward()
                        line.append(counter.peak_bytes - before)
                        weight.grad = None
                    found[f"{label}, {dtype}, {'with' if has_grad else 'without'} a graph"] = line
                    del x, out
    return found


def main() -> None:
    shims = ExitStack()
    if sys.argv[1] == "cuda":
        ctypes.CDLL(sys.argv[2])  # before torch asks for hooks
        import torch

        torch.cuda.amp.common.amp_definitely_not_available = lambda: False
        torch.cuda.is_bf16_supported = lambda *arguments, **named: True
    else:
        from vlmplan_trainer.rehearse import autocast, device
        from vlmplan_trainer.rehearse.device_shims import forgetting_casts
        from vlmplan_trainer.rehearse.ledger import Ledger

        device.register(Ledger())
        autocast.register()
        shims.enter_context(forgetting_casts())
    with shims:
        print(json.dumps(found_on(sys.argv[1])))


if __name__ == "__main__":
    main()
