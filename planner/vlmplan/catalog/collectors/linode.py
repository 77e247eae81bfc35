"""Akamai's Linode: https://techdocs.akamai.com/linode-api/reference/get-linode-types, which needs no key.

``price.hourly`` is US dollars for the whole machine. The card stands in the label alone (``RTX4000 Ada x2 Small``,
``Dedicated 32GB + RTX6000 GPU x1``), and its memory nowhere: it is that of the cards of Akamai's page "GPU Linodes".
"""

import re
from collections.abc import Iterator

from vlmplan.catalog.collectors.response import Fetch, amount, object_at, plain_text, price, require_one_page
from vlmplan.catalog.price_listing import Listing
from vlmplan.files.json_reader import JsonObject

PROVIDER = "linode"
URL = "https://api.linode.com/v4/linode/types?page_size=500"
CARDS = (
    (re.compile(r"RTX\s?PRO\s?6000"), "RTX PRO 6000 Blackwell Server Edition", 96.0),
    (re.compile(r"RTX\s?4000\s?Ada"), "RTX 4000 Ada", 20.0),
    (re.compile(r"RTX\s?6000\b"), "Quadro RTX 6000", 24.0),
)
"""What a label says, the card that it means, and its GB. Cited: Akamai's page "GPU Linodes"."""


def listings(fetch: Fetch) -> list[Listing]:
    """Every plan that has GPUs."""
    answer = object_at(fetch, URL)
    pages = answer.maybe("pages", answer.count) or 1
    require_one_page(answer, pages == 1, f"pages: {pages}")
    return [one for plan in answer.objects("data") for one in _of_plan(plan)]


def _of_plan(plan: JsonObject) -> Iterator[Listing]:
    num_gpus = plan.maybe("gpus", plan.count)
    usd = price(plan.object("price"), "hourly") if num_gpus else None
    if usd is None or not num_gpus:
        return
    label = plain_text(plan, "label")
    card, memory = next(((name, gb) for words, name, gb in CARDS if words.search(label)), (label, None))
    yield Listing(
        provider=PROVIDER,
        product=plain_text(plan, "id"),
        usd_per_hour=usd,
        source=URL,
        card=card,
        card_memory_gib=memory,
        num_gpus=num_gpus,
        num_vcpus=amount(plan, "vcpus"),
        host_ram_gib=amount(plan, "memory") / 1024,
    )
