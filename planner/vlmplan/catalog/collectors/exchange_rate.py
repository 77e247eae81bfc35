"""US dollars for a euro: the European Central Bank's reference rate of the last working day.

Source: https://data.ecb.europa.eu/help/api/data, series EXR/D.USD.EUR.SP00.A, as CSV, which needs no key.
"""

import csv

from vlmplan.catalog.collectors.response import Fetch
from vlmplan.errors import InputError

URL = "https://data-api.ecb.europa.eu/service/data/EXR/D.USD.EUR.SP00.A?lastNObservations=1&format=csvdata"
BAND = (0.5, 2.5)
"""The euro has cost 0.82 to 1.60 dollars since 1999; what is outside of this is another series. Assumed."""


def usd_per_eur(fetch: Fetch) -> float:
    """The rate. Raises InputError where the answer holds none that can be."""
    try:
        rows = list(csv.DictReader(fetch(URL, None).decode().splitlines()))
        rate = float(rows[-1]["OBS_VALUE"])
    except (UnicodeDecodeError, csv.Error, LookupError, TypeError, ValueError):
        raise InputError("the answer of data-api.ecb.europa.eu holds no exchange rate") from None
    if not BAND[0] < rate < BAND[1]:
        raise InputError(f"the answer of data-api.ecb.europa.eu says {rate:g} dollars a euro, which cannot be")
    return rate
