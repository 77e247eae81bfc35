"""Families: one file per kind of model, from ``config.json`` to the module tree."""

from vlmplan.architecture.families.build import FAMILIES, NO_MODEL_TYPE, build_model, has_family

__all__ = ["FAMILIES", "NO_MODEL_TYPE", "build_model", "has_family"]
