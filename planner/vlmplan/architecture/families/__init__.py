"""Families: one file per kind of model, from ``config.json`` to the module tree."""

# pyright: reportUnusedImport=false
from vlmplan.architecture.families.build import FAMILIES, NO_MODEL_TYPE, build_model, has_family
