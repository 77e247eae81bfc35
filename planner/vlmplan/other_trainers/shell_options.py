"""The options of a command: words and values, as ``HfArgumentParser`` and argparse collect them."""

from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown
from vlmplan.other_trainers.shell import UNKNOWN, Command


def arguments_of(command: Command, words: tuple[str, ...], *, source: str) -> tuple[list[str], dict[str, object]]:
    """Positional words, and the values of ``--key`` as ``HfArgumentParser`` collects them: true where none follows, a
    list where several do; ``--no_key`` alone is its key's false. Raises InputError for a value that cannot be known."""
    positional: list[str] = []
    collected: dict[str, list[str]] = {}
    current: list[str] = positional
    for word in words:
        if UNKNOWN in word:
            raise InputError(
                f"{source}: {shown(command.unknown.get(word, word))} is known only to the shell that runs it; "
                f"write the value"
            )
        if word.startswith("--") and len(word) > 2:
            key, equals, value = word[2:].partition("=")
            current = collected.setdefault(key.replace("-", "_"), [])
            current += [value] if equals else []
        else:
            current.append(word)
    values: dict[str, object] = {}
    for key, texts in collected.items():
        if key.startswith("no_") and not texts:
            values[key.removeprefix("no_")] = False
        else:
            values[key] = True if not texts else texts[0] if len(texts) == 1 else texts
    return positional, values
