"""DeepSpeed's accelerator for the GPU that is not there: the branches of CUDA, memory figures from the ledger."""

from functools import partial
from typing import Any

import torch
from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

from vlmplan_trainer.rehearse.device import NAME, DeviceModule
from vlmplan_trainer.rehearse.streams import Event, Stream


class RehearsalAccelerator(CUDA_Accelerator):
    """CUDA in all that it answers but the name of its device."""

    def __init__(
        self,
        module: DeviceModule,
        *,
        compute_capability: tuple[int, int],
        total_bytes: int,
        overhead_bytes: int = 0,
    ) -> None:
        """``overhead_bytes``: what of the card is taken by other than tensors."""
        super().__init__()
        self._name = NAME
        self._module, self._capability, self._total_bytes = module, compute_capability, total_bytes
        self._overhead_bytes = overhead_bytes

    def device_name(self, device_index: int | None = None) -> str:
        return NAME if device_index is None else f"{NAME}:{device_index}"

    def device(self, device_index: int | None = None) -> torch.device:
        return torch.device(NAME, device_index or 0)

    def set_device(self, device_index: int) -> None:
        pass

    def current_device(self) -> int:
        return 0

    def current_device_name(self) -> str:
        return f"{NAME}:0"

    def device_count(self) -> int:
        return 1

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def is_available(self) -> bool:
        return True

    def communication_backend_version(self) -> tuple[int, int, int]:
        return (2, 27, 3)

    # -- random numbers ------------------------------------------------------------------------------------------

    def set_rng_state(self, new_state: Any, device_index: int | None = None) -> None:
        pass

    def get_rng_state(self, device_index: int | None = None) -> Any:
        return self._module.get_rng_state()

    def manual_seed(self, seed: int) -> None:
        pass

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        return 0

    def default_generator(self, device_index: int) -> Any:
        return torch.default_generator

    # -- streams -------------------------------------------------------------------------------------------------

    @property
    def Stream(self) -> type[Stream]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Stream

    @property
    def Event(self) -> type[Event]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Event

    def stream(self, stream: Any) -> Any:
        return self._module.stream(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        return self._module.current_stream()

    def default_stream(self, device_index: int | None = None) -> Any:
        return self._module.default_stream()

    # -- memory --------------------------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        self._module.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        return self._module.memory_allocated()

    memory_reserved = memory_cached = memory_allocated

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return self._module.max_memory_allocated()

    max_memory_reserved = max_memory_cached = max_memory_allocated

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        pass  # the phases of the rehearsal are its own

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        return {}

    def total_memory(self, device_index: int | None = None) -> int:
        return self._total_bytes

    def available_memory(self, device_index: int | None = None) -> int:
        return self._total_bytes - self._overhead_bytes - self._module.memory_allocated()

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == NAME

    # -- what it can ---------------------------------------------------------------------------------------------

    def is_bf16_supported(self) -> bool:
        return self._capability >= (8, 0)

    def is_fp16_supported(self) -> bool:
        return self._capability >= (7, 0)

    def is_triton_supported(self) -> bool:
        return False

    def lazy_call(self, callback: Any) -> None:
        callback()

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> None:
        pass

    def range_pop(self, domain: Any = None) -> None:
        pass

    def create_op_builder(self, class_name: str) -> Any:
        return HostKernels() if class_name == "CPUAdamBuilder" else super().create_op_builder(class_name)


TENSOR_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}
"""DeepSpeed's names of what makes a tensor on the accelerator, and its element type."""


def give_tensor_types(accelerator: type[RehearsalAccelerator], device: str) -> None:
    """Let DeepSpeed make tensors on ``device`` by these names."""
    for name, dtype in TENSOR_TYPES.items():
        made = partial(torch.tensor, dtype=dtype, device=device)
        setattr(accelerator, name, property(lambda self, made=made: made))


give_tensor_types(RehearsalAccelerator, NAME)


class HostKernels:
    """What stands in place of DeepSpeed's compiled optimizers on the host, which allocate nothing."""

    def load(self, verbose: bool = True) -> "HostKernels":
        return self

    def create_adam(self, *args: Any) -> None:
        pass

    destroy_adam = adam_update = adam_update_copy = create_adam
