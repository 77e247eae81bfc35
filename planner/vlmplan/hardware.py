"""Cards, nodes, clusters and priced offers: facts with units in their names, ``None`` for what is not known.

Link rates are payload bytes per second in *one* direction; data sheets sum both directions for NVLink and the
catalog file keeps that figure (``nvlink_gb_s``), so it is halved once, where the file is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from vlmplan.errors import InputError
from vlmplan.units import MIB, Choice

if TYPE_CHECKING:
    from vlmplan.calibration import Calibration

CPU_KERNELS = (0, 0)
"""In place of a compute capability: the kernels of a CPU."""

DRIVER_RESERVE_BYTES = 450 * MIB
"""What the driver keeps of a card, plus 1/200 of its memory. Fitted to 21 cards whose driver total and torch
total are both known: at most 22 MiB too little, mostly 100 MiB and once 554 MiB too much."""

DRIVER_RESERVE_DIVISOR = 200

PCIE_BYTES_PER_SECOND_PER_LANE = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
}
"""One direction, by PCI Express generation: transfers per second x coding / 8 bits (PCI-SIG base
specifications 1.0 to 6.0: 8b/10b, then 128b/130b, then 242 of a flit's 256 bytes). Packet headers still
come off it."""

MAX_GPUS_PER_NODE = 1024
"""NVIDIA's NVL576 is the largest that is announced as one machine."""
MAX_NUM_NODES = 100_000
"""What no cluster comes near: the largest have some ten thousand machines."""

PRICE_CURRENT_DAYS = 60
"""Assumed: an older price still informs, but it may not pass for today's."""


class Vendor(Choice):
    """Who makes the card. ``CPU`` is this machine's processor, for trying things out."""

    NVIDIA = "nvidia"
    AMD = "amd"
    CPU = "cpu"


class Pricing(Choice):
    """What an hourly price promises."""

    ON_DEMAND = "on_demand"  # the provider's own machines, yours until you stop them
    RESERVED = "reserved"  # as on_demand, for a committed term
    COMMUNITY = "community"  # a smaller host's machine under the provider's roof
    MARKETPLACE = "marketplace"  # the host sets the price and may change it
    INTERRUPTIBLE = "interruptible"  # may be taken away at any moment
    OWN = "own"  # your own machine: the price is what you say it is


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InputError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulPeaks:
    """Dense matrix multiplication in FLOP/s at boost clock, fp32 accumulation: a ceiling, not an expectation.

    ``fp32`` is the rate without tensor cores. ``None``: not known, or the card has no such unit.
    """

    bf16: float | None = None
    fp16: float | None = None
    tf32: float | None = None
    fp32: float | None = None
    fp8: float | None = None

    def __post_init__(self) -> None:
        for name in ("bf16", "fp16", "tf32", "fp32", "fp8"):
            rate = getattr(self, name)
            _require(rate is None or rate > 0, f"the {name} rate is {rate}; it must be above 0 or unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card (one device as torch sees it).

    ``memory_bytes`` is the total that the driver reports, ``cuda_visible_bytes`` the total that torch reports
    on Linux, ``nvlink_bytes_per_second`` the sum of the card's links in one direction, ``sm_count`` its streaming
    multiprocessors.
    ``sources`` are pairs of a catalog key and where its value was read. ``calibration`` is what was measured on such a
    card, which then stands in place of what the models assume; ``leaves_out_calibration``: whatever was measured, the
    user wants nothing of it.
    """

    id: str
    name: str
    vendor: Vendor
    memory_bytes: int | None
    supports_bf16: bool
    architecture: str | None = None
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    aliases: tuple[str, ...] = ()
    provider_names: tuple[str, ...] = ()
    pci_device_ids: tuple[str, ...] = ()
    memory_basis: str | None = None
    cuda_visible_bytes: int | None = None
    memory_bandwidth_bytes_per_second: float | None = None
    peak_flops_per_second: MatmulPeaks = field(default_factory=MatmulPeaks)
    supports_flash_attention_2: bool | None = None
    supports_fp8: bool | None = None
    has_nvlink: bool | None = None
    nvlink_bytes_per_second: float | None = None
    pcie_gen: int | None = None
    pcie_lanes: int | None = None
    form_factor: str | None = None
    tdp_watts: float | None = None
    max_gpus_per_node: int | None = None
    launch_year: int | None = None
    launch_price_usd: float | None = None
    notes: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    calibration: "Calibration | None" = None
    leaves_out_calibration: bool = False

    def __post_init__(self) -> None:
        for name in (
            "memory_bytes",
            "cuda_visible_bytes",
            "memory_bandwidth_bytes_per_second",
            "nvlink_bytes_per_second",
            "pcie_lanes",
            "tdp_watts",
            "max_gpus_per_node",
        ):
            value = getattr(self, name)
            _require(value is None or value > 0, f"GPU {self.id}: {name} is {value}; it must be above 0 or unknown")
        if self.memory_bytes is not None and self.cuda_visible_bytes is not None:
            _require(
                self.cuda_visible_bytes <= self.memory_bytes,
                f"GPU {self.id}: torch cannot see {self.cuda_visible_bytes} bytes of {self.memory_bytes}",
            )
        _require(
            self.pcie_gen is None or self.pcie_gen in PCIE_BYTES_PER_SECOND_PER_LANE,
            f"GPU {self.id}: PCIe generation {self.pcie_gen} is not known; "
            f"known: {', '.join(map(str, PCIE_BYTES_PER_SECOND_PER_LANE))}",
        )

    @property
    def usable_bytes(self) -> int:
        """What a torch process can get of an idle card: ``cuda_visible_bytes``, else memory minus a reserve.

        Raises InputError when the card's memory is not known.
        """
        if self.cuda_visible_bytes is not None:
            return self.cuda_visible_bytes
        if self.memory_bytes is None:
            raise InputError(
                f"the memory of GPU {self.id} is not known; "
                f"state it as gpus.{self.id}.memory_mib in a catalog of your own"
            )
        if self.is_cpu:
            return self.memory_bytes
        return max(0, self.memory_bytes - DRIVER_RESERVE_BYTES - self.memory_bytes // DRIVER_RESERVE_DIVISOR)

    @property
    def is_cpu(self) -> bool:
        """Whether this is the host's processor: a rank's device memory is the host's own."""
        return self.vendor is Vendor.CPU

    @property
    def kernel_capability(self) -> tuple[int, int] | None:
        """What decides which kernels run: the compute capability, and ``CPU_KERNELS`` of a CPU; None where unknown."""
        return CPU_KERNELS if self.is_cpu else self.compute_capability

    @property
    def has_known_memory(self) -> bool:
        """Whether ``usable_bytes`` can be said."""
        return self.memory_bytes is not None or self.cuda_visible_bytes is not None

    @property
    def pcie_bytes_per_second(self) -> float | None:
        """Bytes per second to or from the host, one direction; ``None`` when generation or lanes are not known."""
        if self.pcie_gen is None or self.pcie_lanes is None:
            return None
        return PCIE_BYTES_PER_SECOND_PER_LANE[self.pcie_gen] * self.pcie_lanes

    @property
    def has_built_in_nvlink(self) -> bool:
        """Whether NVLink (or Infinity Fabric) comes with the board. Not so for plug-in cards: there a bridge
        between two of them is extra, and most rented servers have none."""
        return bool(self.has_nvlink) and self.form_factor not in ("PCIe", "laptop", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine with equal GPUs. ``host_ram_bytes`` and ``num_vcpus`` are ``None`` where they are not known.

    ``has_nvlink_between_all``: each pair of GPUs is linked; ``None`` leaves it to the kind of board.
    ``host_ram_source`` says in messages whose host memory is too small: ``this machine``, ``lambda's gpu_1x_a10``.
    """

    gpu: Gpu
    num_gpus: int
    host_ram_bytes: int | None = None
    num_vcpus: int | None = None
    has_nvlink_between_all: bool | None = None
    host_ram_source: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _require(self.num_gpus >= 1, f"a node of {self.num_gpus} GPUs; it must be at least 1")
        _require(
            self.num_gpus <= MAX_GPUS_PER_NODE,
            f"a node of {self.num_gpus:,} x {self.gpu.id}; it must be at most {MAX_GPUS_PER_NODE:,}",
        )
        for name in ("host_ram_bytes", "num_vcpus"):
            value = getattr(self, name)
            _require(value is None or value > 0, f"{name} is {value}; it must be above 0 or unknown")

    @property
    def uses_nvlink(self) -> bool:
        """Whether the GPUs of this node talk over NVLink (false where that would be a guess)."""
        if self.has_nvlink_between_all is None:
            return self.gpu.has_built_in_nvlink
        return self.has_nvlink_between_all

    @property
    def gpu_link_bytes_per_second(self) -> float | None:
        """Between the GPUs of this node, per GPU, one direction: NVLink where there is one of known rate,
        else PCIe (a lower bound where the link's rate is not known); ``None`` when that is not known."""
        if self.uses_nvlink and self.gpu.nvlink_bytes_per_second is not None:
            return self.gpu.nvlink_bytes_per_second
        return self.gpu.pcie_bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes. ``inter_node_bytes_per_second`` is per node, one direction; ``None``: not known."""

    node: Node
    num_nodes: int = 1
    inter_node_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        _require(self.num_nodes >= 1, f"a cluster of {self.num_nodes} nodes; it must be at least 1")
        _require(
            self.num_nodes <= MAX_NUM_NODES,
            f"a cluster of {self.num_nodes:,} nodes; it must be at most {MAX_NUM_NODES:,}",
        )
        rate = self.inter_node_bytes_per_second
        _require(rate is None or rate > 0, f"inter_node_bytes_per_second is {rate}; it must be above 0 or unknown")

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes together."""
        return self.node.num_gpus * self.num_nodes


def cluster_text(cluster: Cluster) -> str:
    """``2 nodes of 8 x H100 SXM``."""
    nodes = f"{cluster.num_nodes} nodes of " if cluster.num_nodes > 1 else ""
    return f"{nodes}{cluster.node.num_gpus} x {cluster.node.gpu.name}"


ON_DEMAND_SUFFIX = " [on-demand]"
"""By which price lists tell a product's terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A node for rent, or your own. ``usd_per_hour`` is for the whole instance, after ``discount_fraction``.

    ``as_of`` is the day the price was seen (the first of the month where ``as_of_is_month``),
    ``as_of_basis`` how that is known. ``stated_in`` names the user's own catalog file that stated the
    offer; ``None``: as shipped. ``seen_at`` is the moment in UTC at which a fetched price was read,
    ``currency`` that of the provider's list, and ``exchange_rate`` the US dollars for one unit of it.
    """

    gpu_id: str
    num_gpus: int
    provider: str
    usd_per_hour: float
    pricing: Pricing
    sku: str | None = None
    region: str | None = None
    spot_usd_per_hour: float | None = None
    discount_fraction: float = 0.0
    num_vcpus: int | None = None
    host_ram_bytes: int | None = None
    as_of: date | None = None
    as_of_is_month: bool = False
    as_of_basis: str | None = None
    source: str | None = None
    note: str | None = None
    license: str | None = None
    stated_in: str | None = None
    seen_at: str | None = None
    currency: str = "USD"
    exchange_rate: float = 1.0

    def __post_init__(self) -> None:
        where = f"offer of {self.provider} for {self.gpu_id}"
        _require(self.num_gpus >= 1, f"{where}: {self.num_gpus} GPUs; it must be at least 1")
        _require(self.usd_per_hour >= 0, f"{where}: usd_per_hour is {self.usd_per_hour}; it must be 0 or more")
        spot = self.spot_usd_per_hour
        _require(spot is None or spot >= 0, f"{where}: spot_usd_per_hour is {spot}; it must be 0 or more")
        fraction = self.discount_fraction
        _require(0 <= fraction <= 1, f"{where}: discount fraction is {fraction}; it must be within 0 and 1")

    @property
    def product(self) -> str | None:
        """What the provider calls the machine, without the terms that some price lists put behind the name."""
        return None if self.sku is None else self.sku.removesuffix(ON_DEMAND_SUFFIX)

    @property
    def label(self) -> str:
        """``lambda's gpu_1x_a10``: provider, and what it calls the machine, or its GPUs where it has no name for it."""
        return f"{self.provider}'s {self.product or f'{self.num_gpus} x {self.gpu_id}'}"

    @property
    def usd_per_gpu_hour(self) -> float:
        """The share of one GPU in ``usd_per_hour``."""
        return self.usd_per_hour / self.num_gpus

    def age_days(self, on: date) -> int | None:
        """Days from the price's date to ``on`` (the most it can be where only the month is known);
        ``None``: undated."""
        return None if self.as_of is None else max(0, (on - self.as_of).days)

    def is_current(self, on: date) -> bool:
        """Whether the price may stand for that day's: dated within ``PRICE_CURRENT_DAYS``, or the user's own word."""
        age = self.age_days(on)
        if self.pricing is Pricing.OWN or (age is None and self.stated_in is not None):
            return True
        return age is not None and age <= PRICE_CURRENT_DAYS

    def node(self, gpu: Gpu) -> Node:
        """The machine that is offered; ``gpu`` is the card that ``gpu_id`` names."""
        assert gpu.id == self.gpu_id
        return Node(
            gpu=gpu,
            num_gpus=self.num_gpus,
            host_ram_bytes=self.host_ram_bytes,
            num_vcpus=self.num_vcpus,
            host_ram_source=self.label,
        )


def cheapest(offers: Sequence[Offer], on: date) -> Offer | None:
    """The offer with the lowest price per GPU, among those that are current on that day while there are any.

    An old or undated price so never wins over a current one; where it wins for want of another,
    ``is_current`` tells. Ties go to the fewest GPUs, then by name.
    """
    if not offers:
        return None
    return min(
        offers,
        key=lambda offer: (
            not offer.is_current(on),
            offer.usd_per_gpu_hour,
            offer.num_gpus,
            offer.provider,
            offer.sku or "",
        ),
    )
