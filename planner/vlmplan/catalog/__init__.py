"""The GPUs and offers that are known: the shipped catalog under the user's own files.

Later wins, field by field: the shipped ``gpu_catalog.yaml``; prices that ``vlmplan prices --refresh`` fetched
(``refreshed_catalog_path``), of each provider of whom they are newer; the user's own (``user_catalog_path``); the
project's ``vlmplan_catalog.yaml`` in the working directory; each file named on the command line. Nothing is parsed or
built before it is asked for, and the shipped file is read once per process.
"""

# pyright: reportUnusedImport=false
from vlmplan.catalog.catalog import Catalog, load_catalog
from vlmplan.catalog.shipped import shipped_catalog
