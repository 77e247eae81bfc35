"""Variants of one setup, for ``vlmplan estimate --compare`` and Python."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from vlmplan.commands.waiting import Waiting, shown

if TYPE_CHECKING:
    from vlmplan.proposals.comparison import Variant
    from vlmplan.request import Request


def compared(
    name: str, request: "Request", catalog_files: tuple[Path, ...], waiting: Waiting = nullcontext
) -> "list[Variant]":
    """The variants of a request by one choice."""
    from vlmplan.catalog import load_catalog
    from vlmplan.proposals.comparison import comparison
    from vlmplan.requested import searched_model

    model = searched_model(request)
    with shown(model, waiting):
        return comparison(name, request, load_catalog(catalog_files), model)
