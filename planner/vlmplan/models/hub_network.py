"""One small file from the Hugging Face Hub over https, with the standard library.

Nothing but JSON is ever asked for, and nothing that comes back is run. ``HF_ENDPOINT`` chooses another server;
``HF_TOKEN`` goes to that server alone: not to where it redirects, and not over plain http to another machine.
"""

import os
import time
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from vlmplan import __version__
from vlmplan.errors import InputError, UnavailableError
from vlmplan.models.hub_names import MAX_BYTES

DEFAULT_ENDPOINT = "https://huggingface.co"
TIMEOUT_SECONDS = 10.0
"""Longest silence of the server. The Hub client's own default."""
DEADLINE_SECONDS = 30.0
"""Longest time for one file, however slowly it comes."""
CHUNK_BYTES = 2**16
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class UnreachableError(UnavailableError):
    """The server gave no answer, so an older copy of the file may serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The text of a file, and the commit that the server says it is of."""

    text: str
    commit: str | None


def endpoint() -> str:
    """The server, without a slash at its end. Raises InputError if ``HF_ENDPOINT`` is no web address."""
    text = os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise InputError(f"HF_ENDPOINT is {text!r}; an address such as {DEFAULT_ENDPOINT} is needed")
    return text.rstrip("/")


def fetched_file(repo: str, revision: str, name: str) -> Fetched | None:
    """The file ``name`` of a model repository; None if the repository has no such file.

    Raises UnreachableError without an answer, UnavailableError if the server refuses.
    """
    url = f"{endpoint()}/{repo}/resolve/{quote(revision, safe='')}/{name}"
    request = Request(url, headers={"User-Agent": f"vlmplan/{__version__}"})  # noqa: S310 endpoint() allows http(s) only
    token = _token()
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        with _opener().open(request, timeout=TIMEOUT_SECONDS) as response:
            return Fetched(
                text=_text(response, deadline, f"{name} of {repo}"), commit=response.headers["X-Repo-Commit"]
            )
    except HTTPError as error:
        with error:
            if error.code == 404 and error.headers.get("X-Error-Code") == "EntryNotFound":
                return None
            raise UnavailableError(_refusal(error, repo, revision)) from None
    except URLError as error:
        raise UnreachableError(f"{_host()} cannot be reached ({_reason(error.reason)})") from None
    except (OSError, HTTPException) as error:
        raise UnreachableError(f"{_host()} cannot be reached ({_reason(error)})") from None


def _host() -> str:
    return urlsplit(endpoint()).netloc


def _token() -> str | None:
    """The user's token where it may be sent. A token with a line break would forge headers, so it is none."""
    token = os.environ.get("HF_TOKEN", "").strip()
    parts = urlsplit(endpoint())
    is_private = parts.scheme == "https" or parts.hostname in LOOPBACK
    return token if token.isascii() and token.isprintable() and is_private else None


class _Redirects(HTTPRedirectHandler):
    """Follows redirects; the token stays with the server that it is for, and https does not become http."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme != "https" and (old.scheme, new.scheme) != ("http", "http"):
            raise URLError(f"it redirects to {new.scheme}")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and (old.scheme, old.netloc) != (new.scheme, new.netloc):
            request.remove_header("Authorization")
        return request


def _opener() -> OpenerDirector:
    return build_opener(_Redirects())


def _text(response: HTTPResponse, deadline: float, what: str) -> str:
    """The body, as far as it stays within the limits of size and time."""
    chunks: list[bytes] = []
    size = 0
    while chunk := response.read1(CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_BYTES:
            raise UnavailableError(f"{what} has more than {MAX_BYTES // 2**20} MiB, so it is no configuration")
        if time.monotonic() > deadline:
            raise UnreachableError(f"{_host()} takes more than {DEADLINE_SECONDS:.0f} s for one file")
    try:
        return b"".join(chunks).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{what} is not text in UTF-8, so it is no JSON file") from None


def _refusal(error: HTTPError, repo: str, revision: str) -> str:
    """Why the server refuses, and what to do about it.

    The Hub answers 401 both for what is private and for what does not exist; ``X-Error-Code`` tells gated ones apart.
    """
    code = error.headers.get("X-Error-Code")
    if code == "GatedRepo" or (error.code == 403 and code is None):
        what = "is gated" if code else "is refused, so it is probably gated"
        todo = "your HF_TOKEN has no access yet" if _token() else "then set HF_TOKEN to an access token of yours"
        return f"{repo} {what}: accept its licence on {endpoint()}/{repo}, {todo}"
    if code == "RevisionNotFound":
        return f"{repo} has no revision {revision!r} on {_host()}"
    if error.code in (401, 404):
        token = "which your HF_TOKEN may not see" if _token() else "for which HF_TOKEN must be set"
        return f"{_host()} has no model {repo}, or it is private, {token}"
    return f"{_host()} answers {error.code} {error.reason} for {repo}; try again later"


def _reason(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer within {TIMEOUT_SECONDS:.0f} s"
    if isinstance(reason, OSError):
        return reason.strerror or str(reason) or type(reason).__name__
    return str(reason) or type(reason).__name__
