"""One small file from the Hugging Face Hub over https, with the Hub's own client.

Nothing but JSON is ever asked for, and nothing that comes back is run. ``HF_ENDPOINT`` chooses another server. The
user's token (``HF_TOKEN``, or what ``hf auth login`` kept) goes to that server alone: the client takes it off where it
is redirected to another, and over plain http it goes to this machine only.

Importing ``huggingface_hub`` takes longer than a whole estimate, so it is imported when a file is fetched.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from vlmplan.deadline import DeadlinePassed, within
from vlmplan.errors import InputError, UnavailableError, VlmplanError
from vlmplan.models.hub_names import MAX_BYTES
from vlmplan.plain_text import printable
from vlmplan.version import __version__

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

DEFAULT_ENDPOINT = "https://huggingface.co"
TIMEOUT_SECONDS = 10.0
"""Longest silence of the server. The Hub client's own default (``huggingface_hub.constants``)."""
DEADLINE_SECONDS = 15.0
"""Longest time for all that is asked about one model: the address, redirects, headers and files, however slowly
they come. A choice: what answers at all takes a second."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


WORDS = {
    "RemoteProtocolError": "its answer is no HTTP",
    "DecodingError": "its answer cannot be decompressed",
    "TooManyRedirects": "it redirects without end",
    "UnsupportedProtocol": "it redirects out of the web",
}
"""What errors of httpx mean, by their names, which httpx2 has too."""
T = TypeVar("T")


class UnreachableError(UnavailableError):
    """The server gave no answer, so an older copy of the file may serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The text of a file, and its commit as the server states it."""

    text: str
    commit: str | None


def endpoint() -> str:
    """The server, without a slash at its end. Raises InputError if ``HF_ENDPOINT`` is no web address."""
    text = os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # brackets that nothing closes, a port of letters
        is_address, parts = False, urlsplit("")
    if not is_address or "@" in parts.netloc or not text.isprintable() or " " in text:
        raise InputError(f"HF_ENDPOINT is {text!r}; an address such as {DEFAULT_ENDPOINT} is needed")
    return text.rstrip("/")


def within_deadline(ask: Callable[[], T]) -> T:
    """What ``ask`` gives or raises; UnreachableError if that takes more than ``DEADLINE_SECONDS``."""
    try:
        return within(DEADLINE_SECONDS, ask)
    except DeadlinePassed:
        raise UnreachableError(f"{_host()} takes more than {DEADLINE_SECONDS:g} s to answer") from None


def fetched_file(repo: str, revision: str, name: str) -> Fetched | None:
    """The file ``name`` of a model repository; None if the repository has no such file.

    Raises UnreachableError without an answer, UnavailableError if the server refuses.
    """
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
    from huggingface_hub.utils import hf_raise_for_status

    url = hf_hub_url(repo, name, revision=revision, endpoint=endpoint())
    try:
        with get_session().stream("GET", url, headers=_headers(), timeout=TIMEOUT_SECONDS) as response:
            hf_raise_for_status(response)
            if url.startswith("https:") and response.url.scheme != "https":
                raise UnreachableError(f"{_host()} cannot be reached (it redirects to {response.url.scheme})")
            text = _text(response.iter_bytes(), f"{name} of {repo}")
            return Fetched(text=text, commit=response.headers.get("X-Repo-Commit"))
    except EntryNotFoundError:
        return None
    except HfHubHTTPError as error:
        raise UnavailableError(_refusal(error, repo, revision)) from None
    except VlmplanError:
        raise
    except Exception as error:  # of the client's http library, which changes with its releases (httpx, httpx2)
        raise UnreachableError(f"{_host()} cannot be reached ({_reason(error)})") from None


def _host() -> str:
    return urlsplit(endpoint()).netloc


def _headers() -> dict[str, str]:
    """The client's own would tell what is installed here, and fetch the list of agents that they may name."""
    token = _token()
    return {"User-Agent": f"vlmplan/{__version__}"} | ({"Authorization": f"Bearer {token}"} if token else {})


def _token() -> str | None:
    """The user's token where it may be sent; None for one that a header cannot hold."""
    from huggingface_hub import get_token

    token = get_token() or ""
    parts = urlsplit(endpoint())
    is_private = parts.scheme == "https" or parts.hostname in LOOPBACK
    return token if token.isascii() and token.isprintable() and is_private else None


def _text(chunks: Iterable[bytes], what: str) -> str:
    """The body, as far as it stays within the limit of size."""
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) > MAX_BYTES:
            raise UnavailableError(f"{what} has more than {MAX_BYTES // 2**20} MiB, so it is no configuration")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{what} is not text in UTF-8, so it is no JSON file") from None


def _refusal(error: "HfHubHTTPError", repo: str, revision: str) -> str:
    """Why the server refuses, and what to do about it.

    The Hub answers 401 both for what is private and for what does not exist; gated models have an error of their own.
    """
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    status, is_gated = error.response.status_code, isinstance(error, GatedRepoError)
    if is_gated or (status == 403 and "X-Error-Code" not in error.response.headers):
        what = "is gated" if is_gated else "is refused, so it is probably gated"
        todo = "your HF_TOKEN has no access yet" if _token() else "then set HF_TOKEN to an access token of yours"
        return f"{repo} {what}: accept its licence on {endpoint()}/{repo}, {todo}"
    if isinstance(error, RevisionNotFoundError):
        return f"{repo} has no revision {revision!r} on {_host()}"
    if status in (401, 404):
        token = "which your HF_TOKEN may not see" if _token() else "for which HF_TOKEN must be set"
        return f"{_host()} has no model {repo}, or it is private, {token}"
    return f"{_host()} answers {status} {printable(error.response.reason_phrase)} for {repo}; try again later"


def _reason(error: BaseException) -> str:
    """What went wrong underneath, without the address; a timeout in its own words."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, TimeoutError):
        return f"no answer within {TIMEOUT_SECONDS:.0f} s"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    name = type(error).__name__
    return WORDS.get(name, name)
