"""Prices from providers' own endpoints that need no key: a file for each, from its answer to listings"""

# pyright: reportUnusedImport=false
from vlmplan.catalog.collectors.asking import collected
