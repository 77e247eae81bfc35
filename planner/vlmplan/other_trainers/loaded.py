"""The keys and values of a file in YAML or JSON, as the trainer's own loader takes them.

Of a key that is given twice PyYAML and Python's ``json`` take the last value: axolotl, ms-swift, TRL, accelerate, NeMo
AutoModel and ``HfArgumentParser`` load with them. OmegaConf refuses such a file (``_utils.py`` ``OmegaConfLoader``):
LLaMA-Factory (``hparams/parser.py``), verl (Hydra) and EasyR1 (``trainer/main.py``) load with it.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict, parse_json_object, repeated, shown
from vlmplan.notes import listed
from vlmplan.other_trainers.started_modules import EASYR1_RUN, VERL_RUN

OF_OMEGACONF: Final = ("llamafactory", VERL_RUN, EASYR1_RUN)


class Loaded(NamedTuple):
    """The ``values`` of a file, and the keys of it that ``repeats`` in one mapping."""

    values: JsonDict
    repeats: tuple[str, ...] = ()

    def notes_for(self, trainer: str, source: str) -> tuple[str, ...]:
        """What is said of keys that are given twice. Raises InputError where the trainer takes no such file."""
        if not self.repeats:
            return ()
        if trainer in OF_OMEGACONF:
            raise InputError(f"{repeated(source, self.repeats[0])}: OmegaConf, which loads it, refuses such a file")
        keys = listed(list(dict.fromkeys(self.repeats)))
        return (f"{source} gives {keys} more than once: the last value is taken, as its loader does",)


def loaded(text: str, source: str) -> Loaded:
    """What a text holds. Raises InputError for what is no mapping of names to values."""
    repeats: list[str] = []
    if text.lstrip().startswith("{"):
        values = parse_json_object(text, source=source)
    else:
        from vlmplan.files.yaml_reader import parse_yaml

        documents = parse_yaml(text, source=source, repeats=repeats)
        if len(documents) > 1:
            raise InputError(f"{source} has {len(documents)} YAML documents, divided by ---; one is needed")
        values = documents[0] if documents else None
    if not isinstance(values, dict) or not values:
        held = "is empty" if values is None else f"holds {shown(values)}"
        raise InputError(f"{source} {held}; keys and values of a configuration are needed")
    if not all(isinstance(key, str) for key in cast(Mapping[object, object], values)):
        raise InputError(f"{source} has keys that are no text; a configuration's keys are names")
    return Loaded(cast(dict[str, Any], values), tuple(repeats))
