"""Vast.ai, a marketplace: https://docs.vast.ai/api-reference/search/search-offers.

``GET /api/v0/search/asks/?q=JSON`` needs no key. ``dph_total`` is US dollars an hour for the whole machine with a small
disk; traffic is billed besides. Only hosts that Vast has verified are asked for: the cheapest of all are often not.
``gpu_ram`` is MiB a card and ``cpu_ram`` MB of the host, of which a renter gets his share of the cores.
"""

import json
from urllib.parse import quote

from vlmplan.catalog.collectors.response import Fetch, amount, object_at, plain_text, price
from vlmplan.catalog.price_listing import Listing
from vlmplan.files.json_reader import JsonDict, JsonObject
from vlmplan.hardware import Pricing

PROVIDER = "vast"
URL = "https://console.vast.ai/api/v0/search/asks/"
CARDS = (
    *("B300", "B200", "H200 NVL", "H200", "H100 NVL", "H100 SXM", "H100 PCIE", "A100 SXM4", "A100 PCIE", "L40S", "L40"),
    *("L4", "A40", "A10", "RTX PRO 6000 WS", "RTX PRO 6000 S", "RTX 6000Ada", "RTX A6000", "RTX A5000", "RTX A4000"),
    *("RTX 5090", "RTX 5080", "RTX 4090", "RTX 4080", "RTX 3090", "RTX 3080", "Tesla V100", "Tesla T4"),
)
"""Vast's own names of the cards that are asked for."""
LEAST_GPUS = (1, 2)
"""Each card is asked for twice: the cheapest machines have one, so those with several need a question of their own."""
MACHINES_PER_QUESTION = 64


def listings(fetch: Fetch) -> list[Listing]:
    """The cheapest verified machines of every card."""
    found: dict[str, Listing] = {}
    for card in CARDS:
        for least in LEAST_GPUS:
            for offer in object_at(fetch, question_url(card, least)).objects("offers"):
                one = _listing(offer)
                if one is not None:
                    found[one.product] = one
    return list(found.values())


def question_url(card: str, least_gpus: int) -> str:
    """The address that lists machines with at least so many of a card, the cheapest first."""
    wanted: JsonDict = {
        "gpu_name": {"eq": card},
        "num_gpus": {"gte": least_gpus},
        "rentable": {"eq": True},
        "verified": {"eq": True},
        "order": [["dph_total", "asc"]],
        "type": "on-demand",
        "limit": MACHINES_PER_QUESTION,
    }
    return f"{URL}?q={quote(json.dumps(wanted))}"


def _listing(offer: JsonObject) -> Listing | None:
    usd = price(offer, "dph_total")
    cores, share = amount(offer, "cpu_cores"), amount(offer, "cpu_cores_effective")
    if usd is None:
        return None
    return Listing(
        provider=PROVIDER,
        product=str(offer.count("id")),
        usd_per_hour=usd,
        source=URL,
        card=plain_text(offer, "gpu_name"),
        card_memory_gib=offer.number("gpu_ram") / 1024,
        num_gpus=offer.count("num_gpus", least=1),
        region=offer.maybe("geolocation", lambda key: plain_text(offer, key)) or "",
        pricing=Pricing.MARKETPLACE,
        num_vcpus=share,
        host_ram_gib=amount(offer, "cpu_ram") / 1000 * (share / cores if cores else 0),
    )
