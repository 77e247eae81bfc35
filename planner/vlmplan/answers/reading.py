"""How the configuration of another trainer was read: every key, its defaults, and what is not planned as it does it."""

from collections.abc import Iterable

from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers import TrainerConfig
from vlmplan.render.lines import say


def document(config: TrainerConfig) -> JsonDict:
    """The configuration as it was read: ``said`` and ``defaults`` by key, ``options`` of vlmplan that mean the same."""
    return {
        "source": config.source,
        "trainer": config.trainer,
        "options": dict(config.options),
        "ds_config": None if config.ds_config is None else dict(config.ds_config.content),
        "said": {setting.key: setting.value for setting in config.said},
        "defaults": {setting.key: setting.value for setting in config.defaults},
        "without_effect": list(config.idle),
        "notes": list(config.notes),
    }


def print_reading(config: TrainerConfig, notes: Iterable[str]) -> None:
    """What was read and how; ``notes`` are sentences, those of the configuration among them."""
    say(reading_line(config))
    print_keys(config, notes)


def reading_line(config: TrainerConfig) -> str:
    """Which file it is, and whose."""
    return f"{config.source}: read as {config.trainer} reads it"


def print_keys(config: TrainerConfig, notes: Iterable[str]) -> None:
    """Every key of the file, the trainer's defaults, and what has no effect; ``notes`` as of ``print_reading``."""
    for lead, settings in (("from the file", config.said), ("defaults of the trainer", config.defaults)):
        if settings:
            say(f"  {lead}: {'; '.join(map(str, settings))}")
    if config.ds_config is not None:
        say(f"  DeepSpeed: {config.ds_config.source}")
    if config.idle:
        say(f"  no effect on memory or time: {', '.join(config.idle)}")
    say(*(f"  note: {note.removeprefix(f'{config.source}: ')}" for note in notes))
