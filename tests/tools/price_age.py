"""What a release runs: exit code 1, and a sentence for each, where price lists that would be shipped are too old.

A list that nobody can renew has to be taken out of gpu_catalog.yaml before it is shipped again; the others are fetched
with ``vlmplan prices --refresh`` or read again from the source that they name.

python tests/tools/price_age.py [YYYY-MM-DD]    (the day of the release; today)
"""

import argparse
import sys
from datetime import date

from vlmplan.catalog import Catalog, shipped_catalog
from vlmplan.catalog.price_lists import price_lists, too_old_to_ship


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("on", nargs="?", type=date.fromisoformat, default=date.today(), metavar="YYYY-MM-DD")
    on = parser.parse_args().on
    offers = Catalog(shipped_catalog()).offers
    sentences = too_old_to_ship(offers, on)
    for sentence in sentences:
        print(sentence)
    print(f"{len(sentences)} of {len(price_lists(offers))} price lists are too old to be shipped on {on}")
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main())
