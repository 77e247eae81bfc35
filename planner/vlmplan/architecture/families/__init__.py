"""Families: one file per kind of model, from ``config.json`` to the module tree."""

from vlmplan.architecture.families.build import FAMILIES, build_model

__all__ = ["FAMILIES", "build_model"]
