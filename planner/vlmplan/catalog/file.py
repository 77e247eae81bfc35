"""One catalog file: YAML text → checked fields, still under the file's own keys and units.

Every complaint is one sentence that names the file, the key, the value and what is allowed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from vlmplan.catalog import rules as catalog_rules
from vlmplan.catalog.rules import MAX_SELECTORS, SECTIONS, Fields, checked, checked_mapping, checked_selector
from vlmplan.errors import InputError, nearest
from vlmplan.files import text_of
from vlmplan.files.json_reader import not_allowed, read_json_object, unknown_key

SELECTING = ("hide", "discounts")
REFRESHED_FILE_NAME = "refreshed_prices.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFile:
    """A checked file. Offers carry what their price list says; ``hide`` entries are texts or selectors.

    ``replaces_offers``: of each provider that it has offers of, it has the whole list as of their day.
    """

    name: str
    sources: Mapping[str, str]
    gpus: Mapping[str, Fields]
    offers: Sequence[Fields]
    hide: Sequence[str | Fields]
    discounts: Sequence[Fields]
    replaces_offers: bool = False


class Sections:
    """The top-level sections of a file's YAML documents; each document is parsed only when it is needed."""

    def __init__(self, name: str, documents: Iterator[object]) -> None:
        self.name = name
        self._documents = documents
        self._sections: dict[str, object] = {}

    def __getitem__(self, key: str) -> object:
        while key not in self._sections and self._reads_another_document():
            pass
        return self._sections.get(key)

    def any_after_reading_all(self) -> bool:
        """Parse the rest; whether the file says anything at all."""
        while self._reads_another_document():
            pass
        return bool(self._sections)

    def mapping(self, key: str) -> Mapping[str, object]:
        """A section of named entries; absent or null is none. Raises InputError for anything else."""
        section = self[key]
        return {} if section is None else checked_mapping(self.name, key, section)

    def sequence(self, key: str) -> Sequence[object]:
        """A section that is a list; for ``hide`` and ``discounts`` one entry may stand without a list."""
        section = self[key]
        if section is None:
            return []
        if isinstance(section, list):
            entries = cast(list[object], section)
            if key in SELECTING and len(entries) > MAX_SELECTORS:
                raise InputError(f"{self.name}: {key} has {len(entries):,} entries; at most {MAX_SELECTORS:,} can be")
            return entries
        if isinstance(section, str | dict) and key in SELECTING:
            return [cast(object, section)]
        raise not_allowed(self.name, key, self[key], "a list")

    def _reads_another_document(self) -> bool:
        try:
            document = next(self._documents)
        except StopIteration:
            return False
        if document is None:
            return True
        sections = checked_mapping(self.name, "", document)
        for key in sections:
            if key not in SECTIONS:
                raise unknown_key(self.name, "", key, SECTIONS)
            if key in self._sections:
                raise InputError(f"{self.name} has two sections named {key!r}; put them together")
        if (schema := sections.get("schema", catalog_rules.SCHEMA)) != catalog_rules.SCHEMA:
            raise not_allowed(self.name, "schema", schema, catalog_rules.SCHEMA)
        self._sections.update(sections)
        return True


def read_catalog_file(path: Path, *, may_be_empty: bool) -> CatalogFile:
    """``path``, read and checked. Raises InputError, also for an empty file unless it may be empty.

    Fetched prices are in JSON, which reads thirty times faster: there are many.
    """
    if path.name == REFRESHED_FILE_NAME:
        return _refreshed_file(path)
    from vlmplan.files.yaml_reader import parse_yaml

    text = text_of(path, name=str(path))
    sections = Sections(str(path), iter(parse_yaml(text, source=str(path))))
    if not sections.any_after_reading_all() and not may_be_empty:
        raise InputError(f"catalog {path} is empty; it may have the sections {', '.join(SECTIONS)}")
    return checked_file(sections)


def _refreshed_file(path: Path) -> CatalogFile:
    try:
        document = read_json_object(path)
    except InputError as error:
        raise InputError(f"{error}; fetch prices again with `vlmplan prices --refresh`, or delete the file") from None
    sections = Sections(str(path), iter([document]))
    sections.any_after_reading_all()
    return replace(checked_file(sections), replaces_offers=True)


def checked_file(sections: Sections) -> CatalogFile:
    """All sections of a file, checked; raises InputError at the first thing that is not allowed."""
    name = sections.name
    price_lists = {
        key: checked(name, f"price_lists.{key}", fields, catalog_rules.PRICE_LIST_RULES)
        for key, fields in sections.mapping("price_lists").items()
    }
    offers = [
        checked(name, f"offers[{i}]", row, catalog_rules.OFFER_RULES)
        for i, row in enumerate(sections.sequence("offers"))
    ]
    return CatalogFile(
        name=name,
        sources={
            key: catalog_rules.checked_value(name, f"sources.{key}", text, catalog_rules.TEXT)
            for key, text in sections.mapping("sources").items()
        },
        gpus={
            catalog_rules.checked_gpu_id(name, key): checked(name, f"gpus.{key}", fields, catalog_rules.GPU_RULES)
            for key, fields in sections.mapping("gpus").items()
        },
        offers=offers_with_price_lists(name, offers, price_lists),
        hide=[
            entry
            if isinstance(entry, str)
            else checked_selector(name, f"hide[{i}]", entry, catalog_rules.SELECTOR_RULES)
            for i, entry in enumerate(sections.sequence("hide"))
        ],
        discounts=[
            checked_selector(name, f"discounts[{i}]", entry, catalog_rules.DISCOUNT_RULES)
            for i, entry in enumerate(sections.sequence("discounts"))
        ],
    )


def offers_with_price_lists(name: str, offers: Sequence[Fields], price_lists: Mapping[str, Fields]) -> list[Fields]:
    """Each offer over the price list it names. Raises InputError for a list that the file does not have."""
    complete: list[Fields] = []
    for i, offer in enumerate(offers):
        key = offer.get("price_list")
        if key is not None and key not in price_lists:
            known = ", ".join(nearest(key, price_lists) or price_lists) or "it has none"
            raise not_allowed(name, f"offers[{i}].price_list", key, f"one of the file's own price_lists ({known})")
        fields = offer if key is None else {**price_lists[key], **offer}
        complete.append({field: value for field, value in fields.items() if field != "price_list"})
    return complete
