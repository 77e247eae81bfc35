"""Settings of all tests: hypothesis draws the same examples everywhere, takes the time it needs; no width is set."""

import os

from hypothesis import settings

settings.register_profile("vlmplan", derandomize=True, deadline=None, database=None)
settings.load_profile("vlmplan")
os.environ.pop("COLUMNS", None)
