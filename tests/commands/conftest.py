"""Every command is called in an empty folder, without the user's catalogs, caches and colours."""

import pytest


@pytest.fixture(autouse=True)
def _isolated(isolated: None) -> None: ...
