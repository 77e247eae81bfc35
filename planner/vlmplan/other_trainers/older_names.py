"""Names of keys in earlier releases of trainers."""

from collections.abc import Callable, Collection, Mapping


def older_names(older: Mapping[str, str]) -> Callable[[Collection[str]], Callable[[str], str]]:
    """The ``names`` of files that may be for releases that called keys as ``older`` says, by their names today.

    >>> older_names({"max_length": "max_seq_length"})(["max_seq_length"])("max_length")
    'max_seq_length'
    """

    def names(keys: Collection[str]) -> Callable[[str], str]:
        own = {key: former for key, former in older.items() if former in keys and key not in keys}
        return lambda key: own.get(key, key)

    return names
