"""The GPUs and offers that are known: the shipped catalog under the user's own files.

Later wins, field by field: the shipped ``gpu_catalog.yaml``; prices that ``vlmplan prices --refresh`` fetched
(``refreshed_catalog_path``), of each provider of whom they are newer; the user's own (``user_catalog_path``); the
project's ``vlmplan_catalog.yaml`` in the working directory; each file named on the command line. Nothing is parsed or
built before it is asked for, and the shipped file is read once per process.
"""

from vlmplan.catalog.catalog import Catalog, load_catalog
from vlmplan.catalog.places import refreshed_catalog_path, user_catalog_path
from vlmplan.catalog.shipped import ShippedCatalog, shipped_catalog

__all__ = [
    "Catalog",
    "ShippedCatalog",
    "load_catalog",
    "refreshed_catalog_path",
    "shipped_catalog",
    "user_catalog_path",
]
