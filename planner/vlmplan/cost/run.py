"""What a run costs on an offer, part by part: usd of whole machines by the hour, and of the disk that outlives them."""

from dataclasses import dataclass
from typing import NamedTuple

from vlmplan.cost.interruptions import (
    INTERRUPTIONS_PER_DAY,
    MOST_INTERRUPTIONS_PER_DAY,
    billed_hours,
    num_checkpoints,
    save_hours,
)
from vlmplan.errors import InputError
from vlmplan.hardware import Offer, Pricing
from vlmplan.units import GIB, SECONDS_PER_HOUR

START_UP_SECONDS = 300.0
"""From the order to a Python that imports torch. Assumed: machines boot in 1 to 3 minutes, images of some 10 GiB or
as many wheels take 2 to 7; a machine of your own is there already."""
DOWNLOAD_GBIT_PER_SECOND = 2.0
"""At which weights come from the Hub. Assumed: half of the 500 MB/s that the README of github.com/huggingface/
hf_transfer names as the most that the plain client reaches."""
USD_PER_GB_MONTH = 0.10
"""Of disk that is kept. Cited: volume disk of docs.runpod.io/pods/storage; block storage of the large clouds costs
0.08 to 0.17, object storage 0.02."""
USD_PER_GIB_MONTH = USD_PER_GB_MONTH * GIB / 1e9
STORED_DAYS = 7.0
"""That the exported model stays where it was written after the run, until somebody fetches it. Assumed."""
DAYS_PER_MONTH = 365.25 / 12
LEAST_GBIT_PER_SECOND = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAssumptions:
    """What a price list does not say. ``interruptions_per_day`` are of one interruptible machine."""

    interruptions_per_day: float = INTERRUPTIONS_PER_DAY
    download_gbit_per_second: float = DOWNLOAD_GBIT_PER_SECOND

    def __post_init__(self) -> None:
        rate = self.interruptions_per_day
        if not 0 <= rate <= MOST_INTERRUPTIONS_PER_DAY:
            allowed = f"0 to {MOST_INTERRUPTIONS_PER_DAY:g} are allowed"
            raise InputError(f"--spot-interruptions-per-day is {rate:g}; {allowed}")
        gbit = self.download_gbit_per_second
        if not LEAST_GBIT_PER_SECOND <= gbit < float("inf"):
            raise InputError(f"--download-gbit is {gbit:g}; {LEAST_GBIT_PER_SECOND:g} or more is needed")


class RunBytes(NamedTuple):
    """Bytes of a run on disk: weights that each node downloads, one checkpoint over all ranks, the exported model."""

    download_bytes: int
    checkpoint_bytes: int
    export_bytes: int

    @property
    def total(self) -> int:
        return self.download_bytes + self.checkpoint_bytes + self.export_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """usd of one run by what they are spent on; ``usd`` is their sum.

    ``billed_hours`` is what the machines are there for: start-up, download, training, checkpoints and what
    interruptions take, on average. ``num_checkpoints`` are written at equal distances, the last at the end.
    """

    training_usd: float
    start_up_usd: float
    download_usd: float
    checkpoints_usd: float
    interruptions_usd: float
    storage_usd: float
    billed_hours: float
    num_interruptions: float
    num_checkpoints: int

    @property
    def usd(self) -> float:
        return (
            self.training_usd
            + self.start_up_usd
            + self.download_usd
            + self.checkpoints_usd
            + self.interruptions_usd
            + self.storage_usd
        )


def run_cost(
    *,
    training_hours: float,
    offer: Offer,
    num_nodes: int = 1,
    size: RunBytes,
    assumed: CostAssumptions,
) -> RunCost:
    """What ``training_hours`` on ``num_nodes`` machines of ``offer`` cost in total.

    The price per hour has its discount taken off already, and is that of the whole instance, host included. The loss
    of one node stops all of them, so a cluster is interrupted as often as all its nodes together; each writes its part
    of a checkpoint. Weights, checkpoint and export are on disk while the run lasts, the export ``STORED_DAYS`` longer.
    On a machine of your own nothing boots by the hour and the disk is there anyway.
    """
    is_own = offer.pricing is Pricing.OWN
    usd_per_hour = offer.usd_per_hour * num_nodes
    start_up_hours = 0.0 if is_own else START_UP_SECONDS / SECONDS_PER_HOUR
    download_hours = size.download_bytes * 8 / (assumed.download_gbit_per_second * 1e9) / SECONDS_PER_HOUR
    rate = assumed.interruptions_per_day / 24 * num_nodes if offer.pricing is Pricing.INTERRUPTIBLE else 0.0
    saving = save_hours(size.checkpoint_bytes / num_nodes)
    checkpoints = num_checkpoints(training_hours, saving, rate)
    smooth = start_up_hours + download_hours + training_hours + checkpoints * saving
    hours = smooth
    if rate:
        hours = billed_hours(
            training_hours=training_hours,
            starting_hours=start_up_hours + download_hours,
            saving_hours=saving,
            checkpoints=checkpoints,
            interruptions_per_hour=rate,
        )
    byte_days = 0.0 if is_own else size.total * hours / 24 + size.export_bytes * STORED_DAYS
    return RunCost(
        training_usd=training_hours * usd_per_hour,
        start_up_usd=start_up_hours * usd_per_hour,
        download_usd=download_hours * usd_per_hour,
        checkpoints_usd=checkpoints * saving * usd_per_hour,
        interruptions_usd=(hours - smooth) * usd_per_hour,
        storage_usd=byte_days / GIB / DAYS_PER_MONTH * USD_PER_GIB_MONTH,
        billed_hours=hours,
        num_interruptions=rate * hours,
        num_checkpoints=checkpoints,
    )
