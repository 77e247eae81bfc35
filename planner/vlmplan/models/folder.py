"""A folder without config.json: what it is, as far as its other files tell, and what to give in its place."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from vlmplan.errors import VlmplanError
from vlmplan.files.json_reader import read_json_object
from vlmplan.models.hub_names import CONFIG

MOST_FILES = 1000
"""So many names of a folder are looked at."""
MOST_SHOWN = 3
NEEDED = "a Hugging Face config.json or the folder with it is needed"
ADAPTER = "adapter_config.json"
PIPELINE = "model_index.json"
"""What diffusers keeps beside the folders of a pipeline's parts."""


def why_no_model(folder: Path) -> str:
    """One sentence."""
    names = _names(folder)
    if ADAPTER in names:
        base = _base_of(folder / ADAPTER)
        return f"{folder} is an adapter, with no config.json; give its base model{f', {base}' if base else ''}"
    if PIPELINE in names:
        return f"{folder} is a pipeline of diffusers, which is no language model; {NEEDED}"
    packed = sorted(name for name in names if name.casefold().endswith(".gguf"))
    if packed:
        return (
            f"{folder} has no config.json, but {packed[0]}: weights in GGUF are not trained; the folder or Hub "
            f"id of the model that it was made of is needed"
        )
    inner = sorted(str(folder / name) for name in names if _is_file(folder / name / CONFIG))
    if inner:
        more = " and others" if len(inner) > MOST_SHOWN else ""
        return f"{folder} has no config.json, but these folders in it have: {', '.join(inner[:MOST_SHOWN])}{more}"
    return f"{folder} has no config.json; {NEEDED}"


def _names(folder: Path) -> set[str]:
    """Names in the folder; in one of the Hub's cache those of its snapshots too."""
    return {*_listed(folder), *(f"snapshots/{name}" for name in _listed(folder / "snapshots"))}


def _listed(folder: Path) -> Iterator[str]:
    try:
        yield from (path.name for path in islice(folder.iterdir(), MOST_FILES))
    except OSError:
        return


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _base_of(path: Path) -> str | None:
    """The base model that peft notes beside an adapter, or mlx-lm (``model``)."""
    try:
        settings = read_json_object(path)
    except VlmplanError:
        return None
    base = settings.get("base_model_name_or_path") or settings.get("model")
    return base if isinstance(base, str) and base.isprintable() else None
