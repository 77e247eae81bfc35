"""Prices from providers' own endpoints that need no key: a file for each, from its answer to listings"""

from vlmplan.catalog.collectors.asking import COLLECTORS, collected

__all__ = ["COLLECTORS", "collected"]
