"""This machine's CPU in place of GPUs."""

from vlmplan.errors import InputError
from vlmplan.hardware import Gpu, MatmulPeaks, Vendor
from vlmplan.machine.host import host_ram_bytes


def cpu_gpu(num_ranks: int, ram_bytes: int | None = None) -> Gpu:
    """A stand-in for a GPU: one of ``num_ranks`` ranks on this machine's CPU, with its share of the RAM: of
    ``ram_bytes``, or of what the machine has.

    No speed is known of it. Raises InputError for less than one rank, UnavailableError where the amount of
    RAM cannot be found out.
    """
    if num_ranks < 1:
        raise InputError(f"cpu:{num_ranks} asks for {num_ranks} ranks; it must be at least 1")
    return Gpu(
        id="cpu",
        name="CPU (this machine's RAM, shared by its ranks)",
        vendor=Vendor.CPU,
        memory_bytes=(host_ram_bytes() if ram_bytes is None else ram_bytes) // num_ranks,
        supports_bf16=True,
        peak_flops_per_second=MatmulPeaks(),
        supports_flash_attention_2=False,
        supports_fp8=False,
        has_nvlink=False,
    )
