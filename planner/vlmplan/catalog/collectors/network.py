"""Bytes of an https address: bounded in size and time, and with one sentence for whatever goes wrong.

The one place of the collectors that opens a connection. Proxies are those of the environment, as urllib takes them.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from vlmplan.errors import UnavailableError
from vlmplan.files.json_reader import JsonDict
from vlmplan.plain_text import one_line
from vlmplan.version import __version__

MAX_BYTES = 32 * 2**20
"""Of one answer. A choice: the largest that is expected has 2 MiB."""
TIMEOUT_SECONDS = 20.0
"""Longest silence of a server. A choice."""


class HttpsRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects within https alone."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme != "https":
            raise urllib.error.URLError("it redirects out of https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetched(url: str, body: JsonDict | None = None, *, opens: Callable[..., Any] | None = None) -> bytes:
    """What ``url`` answers; ``opens`` is ``OpenerDirector.open``.

    Raises UnavailableError without an answer, and for one that is too large.
    """
    host = urlsplit(url).netloc
    headers = {"User-Agent": f"vlmplan/{__version__}", "Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if urlsplit(url).scheme != "https":
        raise AssertionError(f"{url} is no https address")
    request = urllib.request.Request(  # noqa: S310 (https, looked at above)
        url, data=None if body is None else json.dumps(body).encode(), headers=headers
    )
    opens = opens or urllib.request.build_opener(HttpsRedirects).open
    try:
        with opens(request, timeout=TIMEOUT_SECONDS) as response:
            content: bytes = response.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise UnavailableError(f"{host} answers {error.code} {one_line(str(error.reason))}".rstrip()) from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UnavailableError(f"{host} cannot be reached ({one_line(str(reason)) or type(error).__name__})") from None
    if len(content) > MAX_BYTES:
        raise UnavailableError(f"{host} answers with more than {MAX_BYTES // 2**20} MiB")
    return content
