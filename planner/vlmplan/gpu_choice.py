"""What ``--gpu`` means: ``NAME[:COUNT]`` in the catalog, ``local[:COUNT]`` this machine, ``cpu[:RANKS]``.

A name without a count is one card, whatever command asks; ``local`` is all the GPUs of this machine.
"""

import os
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from vlmplan.catalog import Catalog
from vlmplan.errors import InputError
from vlmplan.hardware import MAX_GPUS_PER_NODE, Node

LOCAL = "local"
CPU = "cpu"
HOST_RAM_OPTION = "--host-ram"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChoice:
    """A name as the user wrote it, and how many per node; ``None``: not said."""

    name: str
    num_gpus: int | None = None

    def __post_init__(self) -> None:
        if not self.name or ":" in self.name or self.name != self.name.strip():
            raise InputError(f"GPU {self.name!r} is not a name; write NAME or NAME:COUNT")
        if self.num_gpus is not None and self.num_gpus < 1:
            raise InputError(f"{self.name}:{self.num_gpus} asks for {self.num_gpus} GPUs; at least 1 is needed")
        if self.num_gpus is not None and self.num_gpus > MAX_GPUS_PER_NODE:
            raise InputError(
                f"{self.name}:{self.num_gpus} asks for {self.num_gpus} GPUs; at most {MAX_GPUS_PER_NODE:,} are in "
                f"a machine, and several machines are --num-nodes N"
            )

    @property
    def is_this_machine(self) -> bool:
        """Whether it means the machine that vlmplan runs on."""
        return self.name.casefold() in (LOCAL, CPU)

    def __str__(self) -> str:
        return self.name if self.num_gpus is None else f"{self.name}:{self.num_gpus}"


class ChosenNode(NamedTuple):
    """The node that a choice means, and sentences that the user should see with it."""

    node: Node
    notes: tuple[str, ...] = ()


def parse_gpu_choice(text: str) -> GpuChoice:
    """``"a100-sxm4-80gb:4"`` → its name and 4. Raises InputError for an empty name, a device or a bad count."""
    name, colon, count = text.partition(":")
    if re.fullmatch(r"cuda|[0-9]+(,[0-9]+)+", name.strip().casefold()):
        raise InputError(
            f"GPU {text!r} is a device and no card: name the card and how many, as rtx-4090:2, or local, this machine's"
        )
    if not colon:
        return GpuChoice(name=name.strip())
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", count):
        needed = f"write NAME:COUNT with a whole number of at most {MAX_GPUS_PER_NODE:,}"
        raise InputError(f"GPU {text!r} has the count {count!r}; {needed}")
    return GpuChoice(name=name.strip(), num_gpus=int(count))


def chosen_node(choice: GpuChoice, catalog: Catalog, *, host_bytes: int | None = None) -> ChosenNode:
    """The node that ``choice`` means; without a count that is one card, or all of this machine's.

    ``host_bytes`` is the memory of its host where the user states that.

    Raises UnknownNameError or InputError for a name that is not, or not alone, in the catalog, and UnavailableError
    where ``local`` finds no GPU.
    """
    kind = choice.name.casefold()
    if kind == LOCAL:
        from vlmplan.machine.gpus import local_node
        from vlmplan.machine.nvml import read_machine

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        local = local_node(read_machine(), catalog, num_gpus=choice.num_gpus, cuda_visible_devices=visible)
        node = replace(local.node, gpu=catalog.calibrated(local.node.gpu))
        return ChosenNode(node=with_host_bytes(node, host_bytes), notes=local.notes)
    num_gpus = choice.num_gpus or 1
    if kind == CPU:
        from vlmplan.machine.cpu import cpu_gpu
        from vlmplan.machine.host import THIS_MACHINE, host_ram_bytes, num_host_cpus

        ram = host_ram_bytes() if host_bytes is None else host_bytes
        source = THIS_MACHINE if host_bytes is None else HOST_RAM_OPTION
        node = Node(
            gpu=catalog.calibrated(cpu_gpu(num_gpus, ram)),
            num_gpus=num_gpus,
            host_ram_bytes=ram,
            num_vcpus=num_host_cpus(),
            host_ram_source=source,
        )
        is_measured = node.gpu.calibration is not None
        speed = "was measured" if is_measured else "is not known (vlmplan calibrate --gpu cpu:2 measures it)"
        return ChosenNode(node=node, notes=(f"cpu is this machine's processor, whose speed {speed}",))
    return ChosenNode(node=with_host_bytes(Node(gpu=catalog.gpu(choice.name), num_gpus=num_gpus), host_bytes))


def with_host_bytes(node: Node, host_bytes: int | None) -> Node:
    """``node`` with the host memory that the user states; as it is where he states none."""
    if host_bytes is None:
        return node
    return replace(node, host_ram_bytes=host_bytes, host_ram_source=HOST_RAM_OPTION)
