"""Vultr: https://www.vultr.com/api/#operation/list-plans, ``GET /v2/plans?type=vcg``, which needs no key.

``hourly_cost`` is US dollars for the whole machine, ``gpu_vram_gb`` the memory that it has on its cards together,
``ram`` MiB. Vultr also sells parts of a card (``gpu_count`` is ``1/8``): those are no offers here, for nobody can have
the rest of that card.
"""

from collections.abc import Iterator

from vlmplan.catalog.collectors.response import Fetch, amount, object_at, plain_text, price, require_one_page
from vlmplan.catalog.price_listing import Listing
from vlmplan.files.json_reader import JsonObject

PROVIDER = "vultr"
URL = "https://api.vultr.com/v2/plans?type=vcg&per_page=500"


def listings(fetch: Fetch) -> list[Listing]:
    """Every plan that has whole GPUs."""
    answer = object_at(fetch, URL)
    meta = answer.maybe("meta", answer.object)
    links = None if meta is None else meta.maybe("links", meta.object)
    following = None if links is None else links.maybe("next", links.text)
    require_one_page(answer, not following, following or "")
    return [one for plan in answer.objects("plans") for one in _of_plan(plan)]


def _of_plan(plan: JsonObject) -> Iterator[Listing]:
    num_gpus = _whole_gpus(plan)
    usd = price(plan, "hourly_cost")
    if not num_gpus or usd is None:
        return
    yield Listing(
        provider=PROVIDER,
        product=plain_text(plan, "id"),
        usd_per_hour=usd,
        source=URL,
        card=plain_text(plan, "gpu_type").replace("_", " "),
        card_memory_gib=plan.number("gpu_vram_gb") / num_gpus,
        num_gpus=num_gpus,
        num_vcpus=amount(plan, "vcpu_count"),
        host_ram_gib=amount(plan, "ram") / 1024,
    )


def _whole_gpus(plan: JsonObject) -> int | None:
    """The number of cards; None for a part of one, and for a plan without."""
    value = plan.values.get("gpu_count")
    if value is None or (isinstance(value, str) and not value.isdecimal()):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if isinstance(value, str) and len(value) < 4 else plan.count("gpu_count")
