"""HTTP on 127.0.0.1: the files of the page, and answers to what it asks.

Another page in the same browser can send requests here too, and a name of its own server can lead here (DNS rebinding).
So a request is answered only where ``Host`` is this server's own address and ``Origin``, which a browser says of every
POST, is this page's. No file is opened for a request: the page's are read before, and what is asked is JSON in memory.
"""

import errno
import json
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vlmplan.errors import InputError, UnavailableError
from vlmplan.files.json_reader import JsonDict, parse_json_object
from vlmplan.web.files import page_files, type_of

LOOPBACK = "127.0.0.1"
ANSWER = "/answer"
MAX_BYTES = 4 * 2**20
"""Of a question: a config.json with label lists has some hundred KiB."""
IDLE_SECONDS = 30
"""After which a connection that says nothing is closed."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Scripts and styles are files of the page; nothing inline, nothing of another server, no frame around it.
Source: https://www.w3.org/TR/CSP3/."""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OWN_MISTAKE = "vlmplan made a mistake of its own with this setup; the terminal that serves the page says which"

Answer = Callable[[Mapping[str, Any]], JsonDict]


class PageServer(ThreadingHTTPServer):
    """Serves the page until it is told to end. Questions are answered one after the other."""

    daemon_threads = True

    def __init__(self, answer: Answer, port: int) -> None:
        super().__init__((LOOPBACK, port), PageHandler)
        self._answer = answer
        self._one_at_a_time = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """What ``Host`` may be."""
        return (f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that is closed while it is answered is no mistake."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def answer(self, body: bytes) -> JsonDict:
        """The answer to the question in ``body``."""
        try:
            question = parse_json_object(body.decode("utf-8"), source="the question")
        except UnicodeDecodeError:
            return {"error": "the question is not text in UTF-8"}
        except InputError as error:
            return {"error": str(error)}
        try:
            with self._one_at_a_time:
                return self._answer(question)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return {"error": OWN_MISTAKE}


class PageHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    server_version = "vlmplan"
    sys_version = ""
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        if self._is_foreign():
            return
        name = self.path.partition("?")[0].removeprefix("/") or "index.html"
        content = page_files().get(name)
        if content is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such file")
        else:
            self._send(HTTPStatus.OK, content, type_of(name))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if self._is_foreign() or self._is_no_question():
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        content = json.dumps(self.server.answer(body), allow_nan=False).encode()
        self._send(HTTPStatus.OK, content, "application/json")

    def _is_foreign(self) -> bool:
        """Refuse what is sent to another name than this server's, or by another page."""
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        if host not in self.server.hosts:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, f"this server is {self.server.address} and nothing else")
        elif (origin is not None and origin != f"http://{host}") or (
            self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and self.command != "GET"
        ):
            self._refuse(HTTPStatus.FORBIDDEN, "only the page of this server may ask")
        else:
            return False
        return True

    def _is_no_question(self) -> bool:
        length, kind = self.headers.get("Content-Length", ""), self.headers.get_content_type()
        if self.path != ANSWER:
            self._refuse(HTTPStatus.NOT_FOUND, f"questions go to {ANSWER}")
        elif kind != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a question is application/json")
        elif not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a question has a Content-Length")
        elif len(length) > len(str(MAX_BYTES)) or int(length) > MAX_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a question has at most {MAX_BYTES // 2**20} MiB")
        else:
            return False
        return True

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        """What the request says besides is not read, so the connection ends."""
        self.close_connection = True
        self._send(status, json.dumps({"error": sentence}).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: an address holds somebody's setup."""


def open_server(answer: Answer, *, port: int = 0) -> PageServer:
    """A server that listens on ``port``, or on one that is free. Raises UnavailableError where it is taken."""
    try:
        return PageServer(answer, port)
    except OSError as error:
        reason = "another program has it" if error.errno == errno.EADDRINUSE else error.strerror
        raise UnavailableError(f"port {port} cannot be had: {reason}; leave --port out to take a free one") from None
