"""What a server sends is bounded, and whatever goes wrong with it is one sentence. No connection is opened."""

import io
import urllib.error
import urllib.request
from email.message import Message
from http.client import IncompleteRead
from typing import Any

import pytest

from vlmplan.catalog.collectors import network
from vlmplan.errors import UnavailableError

URL = "https://prices.example/list"


def answering(content: bytes, asked: list[Any] | None = None) -> Any:
    def opens(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        (asked if asked is not None else []).append((request, timeout))
        return io.BytesIO(content)

    return opens


def raising(error: Exception) -> Any:
    def opens(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        raise error

    return opens


def test_question_names_the_program_waits_a_while_and_posts_what_it_is_given():
    asked: list[Any] = []
    assert network.fetched(URL, {"query": "q"}, opens=answering(b"{}", asked)) == b"{}"
    request, timeout = asked[0]
    assert (request.get_method(), request.data, timeout) == ("POST", b'{"query": "q"}', network.TIMEOUT_SECONDS)
    assert request.get_header("User-agent").startswith("vlmplan/")
    network.fetched(URL, opens=answering(b"{}", asked))
    assert asked[1][0].get_method() == "GET"


def test_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network, "MAX_BYTES", 2**20)
    assert network.fetched(URL, opens=answering(b"x" * 2**20)) == b"x" * 2**20
    with pytest.raises(UnavailableError, match=r"^prices\.example answers with more than 1 MiB$"):
        network.fetched(URL, opens=answering(b"x" * (2**20 + 1)))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (urllib.error.HTTPError(URL, 429, "Too Many\x1b[2J", Message(), None), "answers 429 Too Many [2J"),
        (urllib.error.URLError("no\nroute"), "cannot be reached (no route)"),
        (TimeoutError("timed out"), "cannot be reached (timed out)"),
        (IncompleteRead(b""), "cannot be reached (IncompleteRead(0 bytes read))"),
    ],
)
def test_failure_is_one_sentence_with_the_host(error: Exception, sentence: str):
    with pytest.raises(UnavailableError) as raised:
        network.fetched(URL, opens=raising(error))
    assert str(raised.value) == f"prices.example {sentence}"


def test_redirect_out_of_https_is_not_followed():
    handler = network.HttpsRedirects()
    request = urllib.request.Request(URL)
    with pytest.raises(urllib.error.URLError):
        handler.redirect_request(request, None, 302, "", Message(), "http://prices.example/list")
    followed = handler.redirect_request(request, None, 302, "", Message(), "https://other.example/list")
    assert followed is not None
    assert followed.full_url == "https://other.example/list"
