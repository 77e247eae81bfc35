"""Azure: https://learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices, which needs no key.

``retailPrice`` is for an hour of the whole machine, in US dollars unless another currency is asked for. A page has up
to 1,000 prices and ``NextPageLink``. What a machine has is not said: products that the catalog knows are taken, by
``armSkuName`` (``Standard_NC24ads_A100_v4``), and the others counted. Windows, dedicated hosts and low-priority
machines are left out; Spot machines are interruptible.
"""

from collections.abc import Iterator
from urllib.parse import quote, urlsplit

from vlmplan.catalog.collectors.response import Fetch, object_at, plain_text, price
from vlmplan.catalog.price_listing import Listing
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject
from vlmplan.hardware import Pricing

PROVIDER = "azure"
HOST = "prices.azure.com"
URL = f"https://{HOST}/api/retail/prices"
REGIONS = ("eastus", "westeurope")
SERIES = ("Standard_NC", "Standard_ND", "Standard_NV")
"""What names of machines with GPUs begin with. Cited: learn.microsoft.com/azure/virtual-machines/sizes/overview."""
LEFT_OUT = ("Windows", "Dedicated", "Cloud Services")
MAX_PAGES = 10
"""Of a region. A choice: these series have about 300 prices in one."""


def listings(fetch: Fetch) -> list[Listing]:
    """Every machine with GPUs, in every region of ``REGIONS``."""
    return [one for region in REGIONS for item in _items(fetch, region) for one in _of_item(item)]


def region_url(region: str) -> str:
    """The address of the first page of a region."""
    series = " or ".join(f"startswith(armSkuName, '{name}')" for name in SERIES)
    wanted = (
        f"serviceName eq 'Virtual Machines' and priceType eq 'Consumption' "
        f"and armRegionName eq '{region}' and ({series})"
    )
    return f"{URL}?$filter={quote(wanted)}"


def _items(fetch: Fetch, region: str) -> Iterator[JsonObject]:
    url: str | None = region_url(region)
    for _ in range(MAX_PAGES):
        page = object_at(fetch, url)
        yield from page.objects("Items")
        url = page.maybe("NextPageLink", page.text)
        if not url:
            return
        parts = urlsplit(url)
        if parts.scheme != "https" or parts.hostname != HOST:
            page.complain("NextPageLink", f"a page of https://{HOST} is needed")
    raise InputError(f"{HOST} has more than {MAX_PAGES} pages for {region}")


def _of_item(item: JsonObject) -> Iterator[Listing]:
    usd = price(item, "retailPrice")
    product, meter = plain_text(item, "productName"), plain_text(item, "meterName")
    if usd is None or any(word in product for word in LEFT_OUT) or "Low Priority" in meter:
        return
    if item.text("currencyCode") != "USD":
        item.refuse("currencyCode", "USD")
    if item.text("unitOfMeasure") != "1 Hour":
        item.refuse("unitOfMeasure", "1 Hour")
    yield Listing(
        provider=PROVIDER,
        product=plain_text(item, "armSkuName"),
        usd_per_hour=usd,
        source=URL,
        region=plain_text(item, "armRegionName"),
        pricing=Pricing.INTERRUPTIBLE if "Spot" in meter else Pricing.ON_DEMAND,
    )
