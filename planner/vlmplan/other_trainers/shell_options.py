"""The options of a command: words and values, as ``HfArgumentParser`` and argparse collect them."""

import re
from collections.abc import Sequence
from typing import Final

from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown
from vlmplan.other_trainers.record import Unwritten
from vlmplan.other_trainers.shell_variables import UNKNOWN, written

ARGUMENTS: Final = re.compile(r"\$[@*]|\$\{[@*](:\d+)?(:-)?\}")
"""Of the script itself, which is taken to be started without any."""
NAMES_OPTIONS: Final = re.compile(r"arg|opt|extra|flag|param|kwargs|cmd", re.IGNORECASE)
"""In the name of a variable that may hold options, rather than the value of one. A choice."""
ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
"""A word that says a key as ``llamafactory-cli`` takes it, behind its file."""
ANY_TEXT: Final = frozenset("output_dir logging_dir dataset val_dataset eval_dataset image_folder media_dir".split())
"""Options whose text alone is asked for: a place, or names of data."""
Texts = list[str]


def arguments_of(words: Sequence[str], *, source: str) -> tuple[Texts, dict[str, object]]:
    """Positional words, and the values of ``--key`` as ``HfArgumentParser`` collects them: true where none follows, a
    list where several do, what stands last of a key that is there twice; ``--no_key`` alone is its key's false; and of
    ``key=value``, which stands before options. A value that only running the script tells is ``Unwritten``. Raises
    InputError for other words that cannot be known: they may be options."""
    positional: Texts = []
    assigned: dict[str, object] = {}
    collected: dict[str, Texts] = {}
    current = positional
    for word in words:
        text = written(word)
        if ARGUMENTS.fullmatch(text):
            continue
        if current is positional and (said := ASSIGNED.fullmatch(text)) and ASSIGNED.fullmatch(word):
            assigned[said[1]] = said[2] if UNKNOWN not in word or said[1] in ANY_TEXT else Unwritten(said[2])
            continue
        key, equals, value = word[2:].partition("=") if word.startswith("--") and len(word) > 2 else ("", "", word)
        is_known = UNKNOWN not in word
        if UNKNOWN in key or (not is_known and not key and not _is_value(word, current, positional)):
            raise InputError(f"{source}: {shown(text)} is known only to the shell that runs it; write the value")
        if not is_known:
            value = Unwritten(text.partition("=")[2] if equals else text)
        if key:  # which goes before itself, as argparse has it
            current = collected[key.replace("-", "_")] = [value] if equals else []
        else:
            current.append(value)
    values: dict[str, object] = {}
    for key, found in collected.items():
        texts = [str(text) for text in found] if key in ANY_TEXT else found
        if key.startswith("no_") and not texts:
            values[key.removeprefix("no_")] = False
        else:
            values[key] = True if not texts else texts[0] if len(texts) == 1 else _listed(texts)
    return positional, values | assigned


def _is_value(word: str, current: Texts, positional: Texts) -> bool:
    """Whether a word that is not wholly known is the value of the option before it, or one of several. What stands for
    nothing but a variable may be options of its own, by its name, and where the option has its value already."""
    if current is positional:
        return False
    return word != UNKNOWN or not (current or NAMES_OPTIONS.search(written(word)))


def _listed(texts: Texts) -> object:
    """Several values; where one of them is not known, all are."""
    return Unwritten(" ".join(texts)) if any(isinstance(text, Unwritten) for text in texts) else texts
