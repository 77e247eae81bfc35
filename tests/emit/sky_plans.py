"""Plans for rented machines, as sky.yaml is written for them."""

from collections.abc import Iterator
from dataclasses import replace

from recipe_cases import plan
from vlmplan.emit.sky import SKYPILOT_ACCELERATORS, SKYPILOT_CLOUDS
from vlmplan.plan import Plan, PlannedOffer
from vlmplan.workload import ModelFiles, Workload


def named(model_id: str, **changes: object) -> Plan:
    return plan(workload=Workload(model=ModelFiles(id=model_id, config={"model_type": "llama"})), **changes)


def rented(**changes: object) -> PlannedOffer:
    return replace(PlannedOffer(provider="aws", usd_per_hour=4.2, pricing="on_demand"), **changes)


def spot(provider: str = "gcp", **changes: object) -> PlannedOffer:
    return rented(provider=provider, pricing="interruptible", save_every_steps=37, **changes)


def on_card(gpu_id: str, **changes: object) -> Plan:
    item = plan(**changes)
    return replace(item, hardware=replace(item.hardware, gpu_id=gpu_id))


def every_plan() -> Iterator[Plan]:
    """On every cloud that SkyPilot rents from and on none of them, for each card, number of machines and pricing."""
    for provider in (*SKYPILOT_CLOUDS, "somebody"):
        for pricing in ("on_demand", "interruptible"):
            for num_nodes in (1, 2):
                for num_gpus in (1, 8):
                    offer = rented(provider=provider, pricing=pricing)
                    for gpu_id in SKYPILOT_ACCELERATORS:
                        yield on_card(gpu_id, num_gpus=num_gpus, num_nodes=num_nodes, offer=offer)
