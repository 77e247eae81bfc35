import pytest


@pytest.fixture(autouse=True)
def _isolated(isolated: None) -> None: ...
