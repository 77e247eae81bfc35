"""RunPod: https://docs.runpod.io/sdks/graphql/manage-pods, query ``gpuTypes``, which needs no key.

Prices are US dollars an hour for one GPU, in RunPod's own data centres (secure) and with its partners (community), each
also for machines that may be taken away (spot). Machines with several GPUs cost as many times that. ``id`` is the
driver's name of the card. Host memory and vCPUs depend on the machine, and are not stated.
"""

from collections.abc import Iterator

from vlmplan.catalog.collectors.response import Fetch, object_at, plain_text, price
from vlmplan.catalog.price_listing import Listing
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject, shown
from vlmplan.hardware import Pricing

PROVIDER = "runpod"
URL = "https://api.runpod.io/graphql"
QUERY = "query { gpuTypes { id memoryInGb maxGpuCount securePrice communityPrice secureSpotPrice communitySpotPrice } }"
TERMS = {
    "securePrice": Pricing.ON_DEMAND,
    "communityPrice": Pricing.COMMUNITY,
    "secureSpotPrice": Pricing.INTERRUPTIBLE,
    "communitySpotPrice": Pricing.INTERRUPTIBLE,
}
COUNTS = (1, 2, 4, 8)
"""Numbers of GPUs that are listed, as far as a card comes in such machines."""


def listings(fetch: Fetch) -> list[Listing]:
    """Every card on every term and in every number."""
    answer = object_at(fetch, URL, {"query": QUERY})
    if "errors" in answer:
        raise InputError(f"{answer.source} refuses the question: {shown(answer.raw('errors'))}")
    return [one for card in answer.object("data").objects("gpuTypes") for one in _of_card(card)]


def _of_card(card: JsonObject) -> Iterator[Listing]:
    most = card.maybe("maxGpuCount", card.count) or 1
    for key, pricing in TERMS.items():
        usd = price(card, key)
        for num_gpus in COUNTS:
            if usd is not None and num_gpus <= most:
                yield Listing(
                    provider=PROVIDER,
                    product=plain_text(card, "id"),
                    usd_per_hour=usd * num_gpus,
                    source=URL,
                    card=plain_text(card, "id"),
                    card_memory_gib=card.number("memoryInGb"),
                    num_gpus=num_gpus,
                    pricing=pricing,
                )
