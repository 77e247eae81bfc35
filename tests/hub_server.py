"""A stand-in for the Hugging Face Hub on 127.0.0.1 that remembers what it was asked."""

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

VARIABLES = (
    *("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"),
    *("TRANSFORMERS_OFFLINE", "http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
)


def isolated_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Keep the user's caches, tokens and proxies out of a test; the folder of the Hugging Face cache instead."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@dataclass
class Answer:
    """What a path is answered with; ``seconds_of_silence`` before anything is sent."""

    body: bytes = b"{}"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds_of_silence: float = 0.0


@dataclass
class FakeHub:
    """``answers`` by path; everything else is 404. ``requests`` are (path, headers) in order."""

    url: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    is_closing: threading.Event = field(default_factory=threading.Event)

    def put(self, repo: str, name: str, answer: Answer, revision: str = "main") -> None:
        self.answers[f"/{repo}/resolve/{revision}/{name}"] = answer

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.requests.append((self.path, dict(self.headers.items())))
            missing = Answer(status=404, headers={"X-Error-Code": "EntryNotFound"})
            answer = hub.answers.get(self.path, missing)
            hub.is_closing.wait(answer.seconds_of_silence)
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
            except OSError:
                pass  # the client went away

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.is_closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def endless_server(start: bytes, again: bytes) -> Iterator[str]:
    """The address of a server that answers with ``start`` and then with ``again`` and again, ten times a second."""
    is_closing = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(start)
                while not is_closing.wait(0.1):
                    connection.sendall(again)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        is_closing.set()
        listener.close()
