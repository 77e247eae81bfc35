"""What a script starts beside training: what only looks at something runs."""

import subprocess
import sys
from typing import Any

import cpuinfo
import pytest

from vlmplan_trainer.script_rehearsal.other_programs import only_looks


@pytest.mark.sweep
def test_the_processor_is_looked_at_as_deepspeeds_adam_on_the_host_does(monkeypatch: pytest.MonkeyPatch):
    started: list[list[str]] = []
    start = subprocess.Popen

    def noted(words: list[str], **kwargs: Any) -> Any:
        started.append(words)
        return start(words, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", noted)
    assert cpuinfo.get_cpu_info()
    assert started
    assert all(only_looks(words) for words in started)
    assert not only_looks([sys.executable, "train.py", "--json"])
