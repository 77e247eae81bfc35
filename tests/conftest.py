"""Settings of all tests: hypothesis draws the same examples everywhere, and takes the time it needs."""

from hypothesis import settings

settings.register_profile("vlmplan", derandomize=True, deadline=None, database=None)
settings.load_profile("vlmplan")
