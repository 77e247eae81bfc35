"""Programs that are forked from one process that has imported all libraries: importing takes longer than a tiny run."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Timer

SERVER = Path(__file__).parent / "prepared_server.py"
LIMIT_SECONDS = 900


def run_prepared(
    file: Path,
    arguments: Sequence[str] = (),
    *,
    num_ranks: int = 1,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
) -> subprocess.CompletedProcess[str]:
    """``python FILE ARGUMENT...``; with ``num_ranks`` above 1 on every rank, each told its own as by a launcher."""
    set_for_all = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if num_ranks > 1:
        set_for_all |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "stdin").write_text(stdin, encoding="utf-8")
        request = {"file": str(file), "arguments": list(arguments), "num_ranks": num_ranks, "folder": folder}
        status = _answer(json.dumps(request | {"environment": {**os.environ, **set_for_all, **(environment or {})}}))
        out, err = (Path(folder, name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess([str(file), *arguments], status, out, err)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@cache
def _server() -> subprocess.Popen[str]:
    """Ends with the tests."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, str(SERVER)]
    server = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)
    atexit.register(server.communicate)  # closes its standard input, so that it ends
    return server


def _answer(request: str) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    limit = Timer(LIMIT_SECONDS, os.killpg, (server.pid, signal.SIGKILL))
    limit.start()
    try:
        server.stdin.write(request + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
    finally:
        limit.cancel()
    if not answer:
        _server.cache_clear()
        raise AssertionError(f"the process that others are forked from has ended, or was after {LIMIT_SECONDS} s")
    return int(answer)
