"""What the endpoints answer: bytes from whoever fetches them, read as JSON that may say anything."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict, JsonObject, parse_json, shown
from vlmplan.units import GIB

Fetch = Callable[[str, JsonDict | None], bytes]
"""From an address, and what is posted to it as JSON (None: it is a GET), to the body of the answer."""


def answered(fetch: Fetch, url: str, body: JsonDict | None = None) -> Any:
    """The JSON at ``url``. Raises InputError, in one sentence, for what is none."""
    source = urlsplit(url).netloc
    try:
        text = fetch(url, body).decode()
    except UnicodeDecodeError:
        raise InputError(f"the answer of {source} is not text in UTF-8, so it is no JSON") from None
    return parse_json(text, source=f"the answer of {source}", may_repeat=True)


def object_at(fetch: Fetch, url: str, body: JsonDict | None = None) -> JsonObject:
    """The JSON object at ``url``."""
    return JsonObject(answered(fetch, url, body), source=f"the answer of {urlsplit(url).netloc}")


MOST_CHARACTERS = 200
"""Of a name. A choice: Azure's longest product has 40."""


def plain_text(values: JsonObject, key: str) -> str:
    """A name that may be shown. Raises InputError for one with characters that steer a terminal, or without end."""
    text = values.text(key)
    if len(text) > MOST_CHARACTERS:
        values.complain(key, f"a name of at most {MOST_CHARACTERS} characters is needed")
    if not text.isprintable():
        values.complain(key, "it holds control characters")
    return text


def price(values: JsonObject, key: str) -> float | None:
    """A price, as number or as text of one (Verda writes ``"3.95"``); None for one that is missing, null or zero.

    Raises InputError for what is negative, infinite or no number.
    """
    if isinstance(values.values.get(key), str):
        try:
            values = JsonObject({key: float(values.text(key))}, source=values.source, path=values.path)
        except ValueError:
            values.complain(key, "a number is needed")
    return values.maybe(key, values.number) or None


def amount(values: JsonObject, key: str) -> float:
    """A number of something; 0 where it is missing."""
    return values.maybe(key, values.number) or 0.0


def gib(num_bytes: float) -> float:
    """Bytes in GiB, as the catalog counts memory."""
    return num_bytes / GIB


def require_one_page(values: JsonObject, holds_all: bool, what: str) -> None:
    """Raise InputError where a list goes on: what is cheapest may stand on a page that nobody read."""
    if not holds_all:
        raise InputError(f"{values.source} holds the first of several pages ({shown(what)}), and one is read")
