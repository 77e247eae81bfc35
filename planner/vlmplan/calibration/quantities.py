"""Every quantity that a calibration can hold: its unit, what is plausible, and the assumption that it replaces.

A value outside of ``least`` to ``most`` is refused: no card, bus or host of any year is near these ends, so it is a
mistake of the measurement or of the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vlmplan.units import GIB, Choice


class Unit(Choice):
    """What a value is counted in."""

    FLOPS_PER_SECOND = "FLOP/s"
    BYTES_PER_SECOND = "bytes/s"
    SECONDS = "s"
    BYTES = "bytes"

    @property
    def is_rate(self) -> bool:
        """Whether more of it makes a step shorter."""
        return self in (Unit.FLOPS_PER_SECOND, Unit.BYTES_PER_SECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """``what`` is measured, in words, and ``replaces``, the assumption that an estimate has without it."""

    unit: Unit
    least: float
    most: float
    what: str
    replaces: str


def _flops(what: str, replaces: str) -> Quantity:
    return Quantity(unit=Unit.FLOPS_PER_SECOND, least=1e8, most=1e17, what=what, replaces=replaces)


def _rate(what: str, replaces: str) -> Quantity:
    return Quantity(unit=Unit.BYTES_PER_SECOND, least=1e6, most=1e14, what=what, replaces=replaces)


def _seconds(what: str, replaces: str, *, most: float = 0.1) -> Quantity:
    return Quantity(unit=Unit.SECONDS, least=0.0, most=most, what=what, replaces=replaces)


def _bytes(what: str, replaces: str) -> Quantity:
    return Quantity(unit=Unit.BYTES, least=0, most=16 * GIB, what=what, replaces=replaces)


_PRODUCTS = "PRODUCTS_FRACTION x SHAPES_FRACTION of the data sheet's peak"
_ATTENTION = "ATTENTION_FRACTION of the data sheet's peak"
_HOOKS = "HOOK_SECONDS"
_CHECKPOINTS = "CHECKPOINT_OPERATIONS x KERNEL_SECONDS"
_LINKS = "the efficiencies of communication/links.py"

QUANTITIES: Mapping[str, Quantity] = {
    "matmul_bf16": _flops("matrix products in bfloat16, of a model's shapes", _PRODUCTS),
    "matmul_fp16": _flops("matrix products in float16, of a model's shapes", _PRODUCTS),
    "matmul_fp32": _flops("matrix products in float32, of a model's shapes", _PRODUCTS),
    "matmul_ramp": _seconds("what each matrix product takes beside its rate", "RAMP_SECONDS"),
    "attention_sdpa_bf16": _flops("torch's causal attention in bfloat16, forward and backward", _ATTENTION),
    "attention_sdpa_fp16": _flops("torch's causal attention in float16, forward and backward", _ATTENTION),
    "attention_sdpa_fp32": _flops("torch's causal attention in float32, forward and backward", _ATTENTION),
    "attention_flash_attention_2_bf16": _flops("flash-attn in bfloat16, forward and backward", _ATTENTION),
    "attention_flash_attention_2_fp16": _flops("flash-attn in float16, forward and backward", _ATTENTION),
    "memory_bandwidth": _rate("elementwise kernels, bytes read and written", "BANDWIDTH_FRACTION of the data sheet's"),
    "optimizer_bandwidth": _rate("fused AdamW on the device, bytes read and written", "BANDWIDTH_FRACTION as well"),
    "host_adam_bandwidth": _rate("DeepSpeed's CPU Adam, bytes of host memory", "HOST_ADAM_BYTES_PER_SECOND"),
    "copy_to_device": _rate("pinned copies from the host", "PCIE_COPY_FRACTION of the bus"),
    "copy_to_host": _rate("pinned copies to the host", "PCIE_COPY_FRACTION of the bus"),
    "operation_seconds": _seconds("the host's time for one operation of eager PyTorch", "KERNEL_SECONDS"),
    "checkpoint_forward": _seconds("more in forward for an operation that is run again", _CHECKPOINTS),
    "checkpoint_backward": _seconds("more in backward for an operation that is run again", _CHECKPOINTS),
    "hook_forward": _seconds("a ZeRO-3 hook in forward, module with weights", _HOOKS),
    "hook_forward_empty": _seconds("a ZeRO-3 hook in forward, module without weights", _HOOKS),
    "hook_backward": _seconds("a ZeRO-3 hook in backward, module with weights", _HOOKS),
    "hook_backward_empty": _seconds("a ZeRO-3 hook in backward, module without weights", _HOOKS),
    "hook_gather": _seconds("more for each weight that ZeRO-3 gathers", _HOOKS),
    "hook_gradient": _seconds("more for each gradient that ZeRO-3 takes", _HOOKS),
    "image_seconds_per_megapixel": _seconds(
        "opening a JPEG and making patches of it, on one core", "IMAGE_SECONDS_PER_MEGAPIXEL", most=60.0
    ),
    "ring_bandwidth": _rate("all-gather and reduce-scatter between the GPUs, sent by each", _LINKS),
    "sum_bandwidth": _rate("all-reduce between the GPUs, sent by each", _LINKS),
    "collective_seconds": _seconds("the smallest all-gather between the GPUs", "LAUNCH_SECONDS"),
    "context_bytes": _bytes("CUDA context and loaded kernels", "CUDA_CONTEXT_BYTES"),
    "nccl_bytes": _bytes("NCCL's buffers on each GPU", "channels x connections x NCCL_CONNECTION_BYTES"),
    "cublas_workspace_bytes": _bytes("workspace of one cuBLAS handle", "CUBLAS_WORKSPACE_BYTES"),
    "process_bytes": _bytes("Python and libraries of a rank on the CPU", "CPU_PROCESS_BYTES"),
    "allocator_small_segment_bytes": _bytes(
        "what torch's allocator reserves for a small tensor", "SMALL_SEGMENT_BYTES (looked at, not replaced)"
    ),
    "allocator_large_segment_bytes": _bytes(
        "what torch's allocator reserves for one of 2 MiB", "LARGE_SEGMENT_BYTES (looked at, not replaced)"
    ),
}
"""By the name that stands in the file. The order is that of reports."""
