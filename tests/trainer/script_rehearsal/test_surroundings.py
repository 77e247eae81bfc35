"""What a script finds around it: sockets of this machine, no network, and data that is read in one process."""

import os
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vlmplan_trainer.script_rehearsal.loaders import datasets_in_this_process
from vlmplan_trainer.script_rehearsal.side_effects import Notes, refusing_networks, set_environment


def test_networks_are_refused_and_sockets_between_processes_are_not(tmp_path: Path):
    notes = Notes()
    path = str(tmp_path / "s")
    with (
        socket.socket(socket.AF_UNIX) as server,
        socket.socket(socket.AF_UNIX) as client,
        socket.socket() as other,
        refusing_networks(notes),
    ):
        server.bind(path)
        server.listen()
        client.connect(path)
        with pytest.raises(OSError, match="the network is off"):
            other.connect(("192.0.2.1", 443))
    assert notes.sentences == ["the network is off: it tried to reach 192.0.2.1"]


def test_datasets_are_mapped_in_this_process(monkeypatch: pytest.MonkeyPatch):
    class Dataset:
        def map(self, function: Any, **kwargs: Any) -> dict[str, Any]:
            return kwargs

        filter = map

    module: Any = ModuleType("datasets")
    module.Dataset = Dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    with datasets_in_this_process():
        assert Dataset().map(len, num_proc=16, batched=True) == {"num_proc": None, "batched": True}
        assert Dataset().filter(len, num_proc=16) == {"num_proc": None}
        assert Dataset().map(len) == {}
    assert Dataset().map(len, num_proc=16) == {"num_proc": 16}


def test_modules_that_libraries_have_copied_before_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    metric = "evaluate_modules/metrics/mine.py"
    kept, folder = tmp_path / "home" / "modules", tmp_path / "folder"
    (kept / metric).parent.mkdir(parents=True)
    (kept / metric).write_text("")
    folder.mkdir()
    monkeypatch.setattr(os, "environ", {"HF_HOME": str(kept.parent)})
    set_environment(folder, allows_network=False)
    assert os.environ["HF_MODULES_CACHE"] == str(folder / "modules")
    assert (folder / "modules" / metric).is_file()
