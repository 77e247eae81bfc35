"""Scaleway: https://www.scaleway.com/en/developers/api/instances/, ``GET /instance/v1/zones/ZONE/products/servers``.

It needs no key. ``hourly_price`` is for the whole machine, in euros: the answer does not say so, the price page does
("Price (EUR/hour)", where L4-1-24G costs 0.79 and the answer has 0.7875). ``gpu_memory`` and ``ram`` are bytes, the
former of one card. Storage is billed besides.
"""

from collections.abc import Iterator

from vlmplan.catalog.collectors.exchange_rate import usd_per_eur
from vlmplan.catalog.collectors.response import Fetch, amount, gib, object_at, plain_text, price
from vlmplan.catalog.price_listing import Listing
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject

PROVIDER = "scaleway"
URL = "https://api.scaleway.com/instance/v1/zones/{zone}/products/servers?per_page=100"
ZONES = ("fr-par-1", "fr-par-2", "nl-ams-1", "pl-waw-2", "pl-waw-3")
"""The zones with GPUs. Cited: Scaleway's page "GPU Instances: availability by zone"."""
CURRENCY = "EUR"


def listings(fetch: Fetch) -> list[Listing]:
    """Every machine with GPUs, in every zone."""
    rate = usd_per_eur(fetch)
    return [one for zone in ZONES for one in _of_zone(fetch, zone, rate)]


def _of_zone(fetch: Fetch, zone: str, rate: float) -> Iterator[Listing]:
    url = URL.format(zone=zone)
    servers = object_at(fetch, url).object("servers")
    for name in servers.values:
        if not name.isprintable():
            raise InputError(f"{servers.source} names a machine with control characters")
        machine = servers.object(name)
        num_gpus = machine.maybe("gpu", machine.count)
        eur = price(machine, "hourly_price")
        if num_gpus and eur is not None:
            yield _listing(machine, name, zone, num_gpus, eur, rate)


def _listing(machine: JsonObject, name: str, zone: str, num_gpus: int, eur: float, rate: float) -> Listing:
    card = machine.object("gpu_info")
    return Listing(
        provider=PROVIDER,
        product=name,
        usd_per_hour=eur * rate,
        source=URL.format(zone=zone),
        card=plain_text(card, "gpu_name"),
        card_memory_gib=gib(card.number("gpu_memory")),
        num_gpus=num_gpus,
        region=zone,
        num_vcpus=amount(machine, "ncpus"),
        host_ram_gib=gib(amount(machine, "ram")),
        currency=CURRENCY,
        exchange_rate=rate,
    )
