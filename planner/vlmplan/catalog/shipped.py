"""The catalog that comes with vlmplan, as it is in the file."""

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path

from vlmplan.catalog.file import Sections, offers_with_price_lists
from vlmplan.catalog.rules import Fields
from vlmplan.compiled_catalog import compiled_documents
from vlmplan.files import shipped_catalog_path, text_of


class ShippedCatalog:
    """The catalog that comes with vlmplan, not checked again here: its offers are parsed only on request."""

    def __init__(self, path: Path) -> None:
        text = text_of(path, name=str(path))
        self._sections = Sections(path.name, compiled_documents(text))

    @cached_property
    def gpus(self) -> Mapping[str, Fields]:
        """Fields by GPU id."""
        gpus: Mapping[str, Fields] = self._sections["gpus"]  # pyright: ignore[reportAssignmentType]
        return gpus

    @cached_property
    def offers(self) -> Sequence[Fields]:
        """Fields of every offer, what its price list says included."""
        offers: list[Fields] = self._sections["offers"]  # pyright: ignore[reportAssignmentType]
        price_lists: Mapping[str, Fields] = self._sections["price_lists"]  # pyright: ignore[reportAssignmentType]
        return offers_with_price_lists(self._sections.name, offers, price_lists)

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """The sources behind the short names in ``Gpu.sources``."""
        sources: Mapping[str, str] = self._sections["sources"]  # pyright: ignore[reportAssignmentType]
        return sources


@cache
def shipped_catalog() -> ShippedCatalog:
    """The catalog of this installation. Raises UnavailableError where its file is gone."""
    return ShippedCatalog(shipped_catalog_path(Path(__file__).resolve().parents[1]))
