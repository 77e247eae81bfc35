"""Every command is called in an empty folder, without the user's catalogs, caches and colours."""

from pathlib import Path

import pytest

from cli_calls import isolate


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)
