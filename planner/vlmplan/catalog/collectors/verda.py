"""Verda, DataCrunch before: https://api.datacrunch.io/v1/docs, ``GET /v1/instance-types``, which needs no key.

``price_per_hour`` and ``spot_price`` are texts, in ``currency``, for the whole machine; ``gpu_memory`` is that of all
GPUs together. Storage is billed besides.
"""

from collections.abc import Iterator

from vlmplan.catalog.collectors.response import Fetch, amount, answered, plain_text, price
from vlmplan.catalog.price_listing import Listing
from vlmplan.files.json_reader import JsonObject
from vlmplan.hardware import Pricing

PROVIDER = "verda"
URL = "https://api.datacrunch.io/v1/instance-types"
TERMS = {"price_per_hour": Pricing.ON_DEMAND, "spot_price": Pricing.INTERRUPTIBLE}


def listings(fetch: Fetch) -> list[Listing]:
    """Every machine that has GPUs, on both terms."""
    types = JsonObject({"types": answered(fetch, URL)}, source="the answer of api.datacrunch.io").objects("types")
    return [one for each in types for one in _of_type(each)]


def _of_type(machine: JsonObject) -> Iterator[Listing]:
    num_gpus = machine.object("gpu").count("number_of_gpus")
    if not num_gpus:
        return
    if (machine.maybe("currency", machine.text) or "usd").casefold() != "usd":
        machine.refuse("currency", "usd")
    for key, pricing in TERMS.items():
        usd = price(machine, key)
        if usd is not None:
            yield Listing(
                provider=PROVIDER,
                product=plain_text(machine, "instance_type"),
                usd_per_hour=usd,
                source=URL,
                card=plain_text(machine, "name"),
                card_memory_gib=machine.object("gpu_memory").number("size_in_gigabytes") / num_gpus,
                num_gpus=num_gpus,
                pricing=pricing,
                num_vcpus=amount(machine.object("cpu"), "number_of_cores"),
                host_ram_gib=amount(machine.object("memory"), "size_in_gigabytes"),
            )
