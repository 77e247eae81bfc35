"""Which files ``--data`` and ``--train-data`` mean: one, those that a pattern matches, the data sets of a
dataset_info.json, what Hugging Face's datasets saved, or every file of samples in a folder.

Sources: LLaMA-Factory 0.9.5, ``get_dataset_list`` in ``data/parser.py``, for dataset_info.json; datasets 5.2.0,
``save_to_disk`` in ``arrow_dataset.py`` and ``dataset_dict.py``, and ``SPLIT_KEYWORDS`` in ``data_files.py``.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmplan.chats.named_columns import EVERYTHING, NamedColumns, named_columns
from vlmplan.chats.references import IMAGE_NAMES
from vlmplan.errors import InputError, UnavailableError, UnknownNameError
from vlmplan.files.data_file import SUFFIXES, Record, num_records_in, records_in
from vlmplan.files.json_reader import JsonObject, read_json_object

INFO = "dataset_info.json"
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""What ``save_to_disk`` leaves beside the files of one split, and of several."""
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""The words by which the name of a file says what it is for."""
PATTERN = re.compile(r"[*?\[]")
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

    def folders(self, image_root: Path | None) -> tuple[Path, ...]:
        """The same, where the user says which comes first."""
        return self.image_folders if image_root is None else (image_root, *self.image_folders)


def records_of_files(path: Path, *, takes: Collection[str] = ()) -> Iterator[tuple[Record, DataFile]]:
    """The samples of all files of ``path``, in order. Raises what ``data_files`` and ``records_in`` raise."""
    for file in data_files(path, takes=takes):
        for record in records_in(file.path):
            yield record, file


def num_samples_in(path: Path) -> int:
    """How many there are. Raises what ``records_of_files`` raises."""
    return sum(num_records_in(file.path) for file in data_files(path, takes=EVERYTHING))


def data_files(path: Path, names: Sequence[str] = (), *, takes: Collection[str] = ()) -> list[DataFile]:
    """The files of ``path``; of a folder with a dataset_info.json the data sets ``names``, or all that are files there.
    ``takes`` as of ``named_columns``.

    Raises UnavailableError where nothing is there, InputError or UnknownNameError for what cannot be used.
    """
    if not path.is_dir():
        return _of_info(path, names, takes) if path.name == INFO and path.exists() else _named(path)
    if (path / SAVED_SPLITS).is_file():
        splits = sorted(one.parent.name for one in path.glob(f"*/{SAVED}"))
        raise InputError(
            f"{path} has splits, {', '.join(splits)}; give one of them, as {path / (splits or ['train'])[0]}"
        )
    if (path / SAVED).is_file():
        return [DataFile(path=path / name) for name in _saved_names(path / SAVED)]
    if (path / INFO).is_file():
        return _of_info(path / INFO, names, takes)
    return _of_folder(path)


def _named(path: Path) -> list[DataFile]:
    """A file, or those whose names a pattern matches."""
    if path.exists():
        if path.name.casefold().endswith(IMAGE_NAMES):
            raise InputError(
                f'{path} is an image; a file of samples that name it is needed, such as lines of {{"messages": [...], '
                f'"images": ["{path.name}"]}}, or a folder with a metadata.jsonl'
            )
        return [DataFile(path=path)]
    if PATTERN.search(path.name):
        found = sorted(one for one in path.parent.glob(path.name) if one.is_file())
        if found:
            return [DataFile(path=one) for one in found]
        raise UnavailableError(f"no file is as {path}; a file of samples or a folder of them is needed")
    raise UnavailableError(f"{path} does not exist; a file of samples or a folder of them is needed")


def _of_folder(path: Path) -> list[DataFile]:
    """All files of samples in a folder, or in its ``data``, as a data set of the Hub has them: of one split."""
    inside = path / "data"
    places = (path, inside) if inside.is_dir() else (path,)
    found = next((files for place in places if (files := _samples_in(place))), list[Path]())
    if not found:
        names = ", ".join(sorted(one.name for one in path.iterdir())[:MOST_NAMED]) or "nothing"
        raise InputError(
            f"{path} has no {INFO} and no file of samples, {', '.join(SUFFIXES)}; it has {names} (images with captions "
            f'are read by a metadata.jsonl beside them, of lines {{"file_name": "1.png", "text": "..."}})'
        )
    splits = {_split(one) for one in found} - {None}
    if len(splits) > 1:
        examples = {_split(one): one for one in reversed(found)}
        named = ", ".join(examples[split].name for split in sorted(splits, key=str))
        pattern = examples.get("train", found[0]).parent / f"*train*{found[0].suffix}"
        raise InputError(f"{path} has files of several splits, {named}; name those of one, as a pattern: '{pattern}'")
    return [DataFile(path=one) for one in found]


def _samples_in(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.name.endswith(SUFFIXES) and one.is_file())


def _split(file: Path) -> str | None:
    """The split that the name of a file says: one of its words is a keyword."""
    words = re.split(r"[-._ 0-9]+", file.stem.casefold())
    return next((split for split, keywords in SPLITS.items() if any(word in keywords for word in words)), None)


def _saved_names(path: Path) -> list[str]:
    """The names of the files that ``save_to_disk`` wrote, in order."""
    state = JsonObject(read_json_object(path), source=str(path))
    names = [one.text("filename") for one in state.objects("_data_files")]
    apart = next((name for name in names if Path(name).name != name), None)
    if apart is not None:
        raise InputError(f"{path}: filename is {apart!r}; the name of a file beside it is needed")
    return names


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
        inside = sorted(each for each in found.iterdir() if each.name.endswith(SUFFIXES)) if found.is_dir() else [found]
        files += [DataFile(path=each, columns=columns, info_folder=info_path.parent) for each in inside]
    return files


def _file(info_path: Path, one: JsonObject) -> Path | None:
    """The file or folder of a data set; None where it is not there."""
    name = one.maybe("file_name", one.text)
    path = info_path.parent / name if name else None
    return path if path is not None and path.exists() else None
