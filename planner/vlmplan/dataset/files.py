"""Which files ``--data`` means: one, the data sets of a dataset_info.json, or every JSONL and JSON file of a folder.

Source for dataset_info.json: LLaMA-Factory 0.9.5, ``get_dataset_list`` in ``data/parser.py``.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmplan.chats.named_columns import NamedColumns, named_columns
from vlmplan.errors import InputError, UnavailableError, UnknownNameError
from vlmplan.files.json_reader import JsonObject, read_json_object

INFO = "dataset_info.json"
SUFFIXES = (".jsonl", ".json")
MOST_NAMED = 5
"""Files of a folder that a sentence names."""
SOURCES = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of samples; ``columns`` where a dataset_info.json says how it is read, whose folder images are in then."""

    path: Path
    columns: NamedColumns | None = None
    info_folder: Path | None = None

    @property
    def image_folders(self) -> tuple[Path, ...]:
        """The folders in which its images are looked for, in turn."""
        own = self.path.parent
        return (own,) if self.info_folder is None or self.info_folder == own else (self.info_folder, own)


def data_files(path: Path, names: Sequence[str] = (), *, takes: Collection[str] = ()) -> list[DataFile]:
    """The files of ``path``; of a folder with a dataset_info.json the data sets ``names``, or all that are files there.
    ``takes`` as of ``named_columns``.

    Raises UnavailableError where nothing is there, InputError or UnknownNameError for what cannot be used.
    """
    if not path.is_dir():
        if not path.exists():
            raise UnavailableError(f"{path} does not exist; a file of samples or a folder of them is needed")
        return _of_info(path, names, takes) if path.name == INFO else [DataFile(path=path)]
    if (path / INFO).is_file():
        return _of_info(path / INFO, names, takes)
    found = sorted(one for one in path.iterdir() if one.suffix in SUFFIXES and one.is_file())
    if not found:
        names = ", ".join(sorted(one.name for one in path.iterdir())[:MOST_NAMED]) or "nothing"
        raise InputError(
            f"{path} has no {INFO} and no file of samples, {' or '.join(SUFFIXES)}; it has {names} (a folder with "
            f'metadata.jsonl is read, pandas writes a table so: .to_json(..., orient="records", lines=True))'
        )
    return [DataFile(path=one) for one in found]


def _of_info(info_path: Path, names: Sequence[str], takes: Collection[str]) -> list[DataFile]:
    info = JsonObject(read_json_object(info_path), source=str(info_path))
    if not names:
        every = [info.object(name) for name in info.values]
        names = [name for name, one in zip(info.values, every, strict=True) if _file(info_path, one) is not None]
        if not names:
            raise InputError(f"{info_path} names no data set whose file is beside it")
    files: list[DataFile] = []
    for name in names:
        if name not in info:
            raise UnknownNameError("data set", name, info.values, f"in {info_path}")
        one = info.object(name)
        found = _file(info_path, one)
        if found is None:
            where = next((key for key in SOURCES if key in one), "file_name")
            raise InputError(f"{info_path}: {name} has its samples elsewhere ({where}); a file beside it is needed")
        columns = named_columns(name, one, takes=takes)
        inside = sorted(each for each in found.iterdir() if each.suffix in SUFFIXES) if found.is_dir() else [found]
        files += [DataFile(path=each, columns=columns, info_folder=info_path.parent) for each in inside]
    return files


def _file(info_path: Path, one: JsonObject) -> Path | None:
    """The file or folder of a data set; None where it is not there."""
    name = one.maybe("file_name", one.text)
    path = info_path.parent / name if name else None
    return path if path is not None and path.exists() else None
