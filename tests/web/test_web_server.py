"""The server of the page: what it hands out, what it refuses, and what a browser is told."""

import http.client
import json
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from vlmplan.errors import UnavailableError
from vlmplan.web import open_server
from vlmplan.web.export import CHECKSUMS
from vlmplan.web.files import page_files
from vlmplan.web.server import MAX_BYTES, OWN_MISTAKE, PageServer

QUESTION = b'{"ask": "echo"}'


def echo(question: Any) -> dict[str, Any]:
    if question.get("ask") == "mistake":
        raise KeyError("/home/somebody")
    return {"asked": dict(question)}


@pytest.fixture
def server() -> Iterator[PageServer]:
    found = open_server(echo)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def ask(
    server: PageServer, method: str, path: str, body: bytes | None = None, **headers: str | None
) -> tuple[http.client.HTTPResponse, bytes]:
    """A request as this page's own would be, but for ``headers``; None takes one away."""
    own = {"Host": server.hosts[0]}
    if method == "POST":
        own |= {"Origin": f"http://{server.hosts[0]}", "Content-Type": "application/json"}
        own["Content-Length"] = str(len(body or b""))
    said = {**own, **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in said.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def test_it_listens_on_this_machine_alone(server: PageServer):
    assert server.server_address[0] == "127.0.0.1"


def test_every_file_of_the_page_is_handed_out_as_what_it_is(server: PageServer):
    kinds = {
        "html": "text/html; charset=utf-8",
        "css": "text/css; charset=utf-8",
        "js": "text/javascript; charset=utf-8",
    }
    for name, content in page_files().items():
        response, body = ask(server, "GET", f"/{name}")
        assert (response.status, body) == (200, content)
        assert response.headers["Content-Type"] == kinds.get(name.rpartition(".")[2], "image/svg+xml")
    assert ask(server, "GET", "/?model=gpt2")[1] == page_files()["index.html"]


@pytest.mark.parametrize(
    "path", ["/../server.py", "/%2e%2e/server.py", "/etc/passwd", "//etc/passwd", "/static", "/\x7f"]
)
def test_no_other_file_is_handed_out(server: PageServer, path: str):
    response, body = ask(server, "GET", path.replace("\x7f", "%7f"))
    assert (response.status, json.loads(body)) == (404, {"error": "there is no such file"})


@pytest.mark.parametrize("path", ["/", "/page.css", "/nothing"])
def test_every_response_forbids_what_the_page_does_not_need(server: PageServer, path: str):
    headers = ask(server, "GET", path)[0].headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers


def test_a_question_is_answered(server: PageServer):
    response, body = ask(server, "POST", "/answer", QUESTION)
    assert (response.status, json.loads(body)) == (200, {"asked": {"ask": "echo"}})


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:80", "", None])
def test_another_name_of_this_server_is_refused(server: PageServer, method: str, host: str | None):
    response, body = ask(server, method, "/answer", QUESTION if method == "POST" else None, Host=host)
    assert response.status == 421
    assert "nothing else" in json.loads(body)["error"]


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://{host}", "http://{host}.evil"]
)
def test_another_page_is_refused(server: PageServer, origin: str):
    response, _ = ask(server, "POST", "/answer", QUESTION, Origin=origin.format(host=server.hosts[0]))
    assert response.status == 403
    assert ask(server, "POST", "/answer", QUESTION, Origin=None, Sec_Fetch_Site="cross-site")[0].status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data"}, 415),
        ({"Content-Length": None}, 411),
        ({"Content-Length": "-1"}, 411),
        ({"Content-Length": "1e3"}, 411),
        ({"Content-Length": str(MAX_BYTES + 1)}, 413),
        ({"Content-Length": "9" * 5000}, 413),
    ],
)
def test_what_is_no_question_is_refused_unread(server: PageServer, headers: dict[str, str | None], status: int):
    response, body = ask(server, "POST", "/answer", b"", **headers)
    assert response.status == status
    assert json.loads(body).keys() == {"error"}
    assert response.headers["Connection"] == "close"


def test_questions_go_to_one_address(server: PageServer):
    assert ask(server, "POST", "/", QUESTION)[0].status == 404
    assert ask(server, "DELETE", "/answer")[0].status == 501


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff", b"{", b'{"a": NaN}', b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]
)
def test_what_is_no_json_object_gets_one_sentence(server: PageServer, body: bytes):
    response, content = ask(server, "POST", "/answer", body)
    assert response.status == 200
    assert json.loads(content)["error"].startswith("the question ")


def test_a_mistake_of_our_own_is_one_sentence_without_a_traceback(
    server: PageServer, capfd: pytest.CaptureFixture[str]
):
    _, content = ask(server, "POST", "/answer", b'{"ask": "mistake"}')
    assert json.loads(content) == {"error": OWN_MISTAKE}
    assert "KeyError" in capfd.readouterr().err


def test_a_port_that_is_taken_is_said(server: PageServer):
    with pytest.raises(UnavailableError, match=r"another program has it; leave --port out"):
        open_server(echo, port=server.server_port)


# -- the files -------------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text inside noscript."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_has_nothing_inline_and_nothing_of_another_server():
    elements = Elements()
    elements.feed(page_files()["index.html"].decode())
    for tag, attributes in elements.found:
        assert tag != "style"
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        assert tag != "script" or attributes["src"] in page_files()
    for name, content in page_files().items():
        addresses = set(re.findall(r"\w+://[^\s\"'`)]+", content.decode()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name


def test_scripts_make_no_markup_of_text():
    for name, content in page_files().items():
        if name.endswith(".js"):
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", content.decode()
            )


def test_scripts_import_files_that_there_are():
    for name, content in page_files().items():
        for imported in re.findall(r'from "\./([^"]+)"', content.decode()):
            assert imported in {*page_files(), *(f"pyodide/{file}" for file in CHECKSUMS)}, name


def test_without_scripts_the_page_names_the_command():
    text = page_files()["index.html"].decode()
    inside = text[text.index("<noscript>") : text.index("</noscript>")]
    assert "vlmplan estimate --model" in inside
