"""Contents of ds_config.json, for tests."""


def nested(path: str, value: object = "auto") -> dict:
    """``value`` in the sections of a path of keys: ``a.b`` → ``{"a": {"b": value}}``."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value
