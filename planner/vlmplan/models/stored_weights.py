"""The weights in a model's folder beside its config.json. Of a safetensors file only its header is read, which names
every tensor with its shape (format of safetensors: 8 bytes with the length of a JSON object, then that object).

An adapter in the folder becomes a part of the model when transformers loads it (transformers 5.23
``integrations/peft.py``, ``maybe_load_adapters``), which is larger than planned.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, cast

from vlmplan.errors import VlmplanError
from vlmplan.files import open_regular
from vlmplan.files.json_reader import read_json_object
from vlmplan.models.hub_names import CONFIG
from vlmplan.models.tree import ProbedModelFiles, model_tree
from vlmplan.notes import Caveat, listed
from vlmplan.run.training import ADAPTER_CONFIG
from vlmplan.units import counted
from vlmplan.workload import ModelFiles

INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
"""What transformers takes weights from."""
ADAPTERS = "adapter_model"
"""How the weights of peft's adapters begin, which are none of the model's."""
MAX_HEADER_BYTES = 100_000_000
"""``MAX_HEADER_SIZE`` of safetensors (``safetensors/src/tensor.rs``)."""
LENGTH_BYTES = 8
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How a file begins that Git LFS has not fetched (docs/spec.md of git-lfs)."""


def notes_on_folder(model: ModelFiles, folder: Path) -> tuple[str, ...]:
    """What a user should know of a model that is described by the config.json in ``folder``, which has weights too."""
    if not has_weights(folder):
        return ()
    try:
        problems = [*adapter_problems(folder), *weight_problems(model, folder)]
        return (*map(Caveat, problems), *left_out_weights(model, folder))
    except VlmplanError:  # what cannot be made of the configuration is said where it is planned
        return ()


def has_weights(folder: Path) -> bool:
    """Whether there are files that transformers takes weights from."""
    return any(any(folder.glob(pattern)) for pattern in WEIGHT_FILES)


def adapter_problems(folder: Path) -> Iterator[str]:
    """A sentence on an adapter that lies beside the model's weights."""
    if (folder / ADAPTER_CONFIG).is_file():
        yield (
            f"the model's folder {folder} has an adapter in it, {ADAPTER_CONFIG}, which transformers loads with the "
            f"model; move it to a folder of its own, from which --adapter takes it"
        )


def weight_problems(model: ModelFiles, folder: Path) -> Iterator[str]:
    """Stored weights that config.json has another size for, weights of its that no file has, and files that are not
    there. Files that name them otherwise than transformers' modules are not compared, nor packed ones."""
    files = [name for name in _shards(folder) if not (folder / name).is_file()]
    if files:
        yield f"the model's folder {folder} lacks {listed(files[:3])}, which its index names; download them again"
        return
    damaged = next(_damaged_files(folder), None)
    if damaged is not None:
        yield damaged
        return
    planned = sizes(model)
    if planned is None or model.config.get("quantization_config") is not None:
        return
    stored = stored_sizes(folder)
    for name, size in planned.items():
        if name in stored and stored[name] != size:
            yield (
                f"the model's folder {folder} has {name} with {stored[name]:,} elements, and {CONFIG} makes {size:,} "
                f"of it; one of the two is of another model"
            )
            return
    kinds = {_kind(name) for name in stored}
    lacking = [name for name in planned if name not in stored and _kind(name) in kinds]
    if lacking:
        yield (
            f"the model's folder {folder} lacks {counted(len(lacking), 'weight')} that {CONFIG} asks for, such as "
            f"{lacking[0]}: what is lacking would be drawn at random"
        )


def left_out_weights(model: ModelFiles, folder: Path) -> Iterator[str]:
    """A sentence on layers that are stored and that config.json has no place for, which transformers passes over."""
    planned = sizes(model) or {}
    kinds = {_kind(name) for name in planned}
    spare = [name for name in stored_sizes(folder) if name not in planned and _kind(name) in kinds]
    if spare:
        yield (
            f"{folder} has {counted(len(spare), 'weight')} that its {CONFIG} has no place for, such as {spare[0]}: "
            f"what it has no place for is left out"
        )


def sizes(model: ModelFiles) -> dict[str, int] | None:
    """Elements of every weight that the configuration makes, by its name; None where transformers has to be asked."""
    if isinstance(model, ProbedModelFiles):
        return None
    return {one.name: one.parameter.numel for one in model_tree(model).parameters()}


def stored_sizes(folder: Path) -> dict[str, int]:
    """Elements of every tensor in the safetensors files of ``folder`` by its name; nothing of files that are none."""
    found: dict[str, int] = {}
    for path in sorted(folder.glob(WEIGHT_FILES[0])):
        if not path.name.startswith(ADAPTERS):
            found.update(_header_sizes(path))
    return found


def _shards(folder: Path) -> Iterator[str]:
    """The files that an index of weights names; of safetensors first, as transformers looks for them."""
    index = next((folder / name for name in INDEX_FILES if (folder / name).is_file()), None)
    if index is None:
        return
    try:
        places = read_json_object(index).get("weight_map")
    except VlmplanError:
        return  # the trainer says what is wrong with it
    if isinstance(places, dict):
        yield from sorted({str(file) for file in cast(Mapping[str, object], places).values()})


def _damaged_files(folder: Path) -> Iterator[str]:
    """A sentence on each file of weights that a download left unfinished, or that Git has not fetched."""
    for path in sorted(path for pattern in WEIGHT_FILES for path in folder.glob(pattern)):
        try:
            with open_regular(path) as file:
                is_pointer, num_bytes = file.read(len(LFS_POINTER)) == LFS_POINTER, os.fstat(file.fileno()).st_size
        except OSError:
            continue
        start, header = _header(path)
        places = [place for tensor in header.values() if (place := _integers(tensor, "data_offsets"))]
        needed = start + max((place[-1] for place in places), default=0)
        if is_pointer:
            yield f"{path} is Git LFS's pointer to the weights, which are not there; git lfs pull fetches them"
        elif places and num_bytes != needed:
            present = counted(num_bytes, "byte")
            yield f"{path} has {present} in place of {counted(needed, 'byte')} by its header; download it again"


def _header_sizes(path: Path) -> Iterator[tuple[str, int]]:
    for name, tensor in _header(path)[1].items():
        if (shape := _integers(tensor, "shape")) is not None:
            yield name, prod(shape)


def _header(path: Path) -> tuple[int, Mapping[str, Any]]:
    """Where the tensors of a safetensors file begin, and what its header says; nothing of a file that is none."""
    try:
        with open_regular(path) as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            header: object = json.loads(file.read(length)) if length <= MAX_HEADER_BYTES else None
    except (OSError, ValueError, RecursionError):
        return 0, {}
    return LENGTH_BYTES + length, cast(Mapping[str, Any], header) if isinstance(header, dict) else {}


def _integers(tensor: object, key: str) -> list[int] | None:
    """What a header says of a tensor under ``key``, where that is a list of whole numbers."""
    found = cast(Mapping[str, object], tensor).get(key) if isinstance(tensor, dict) else None
    is_list = isinstance(found, list) and all(isinstance(number, int) for number in cast(list[object], found))
    return cast(list[int], found) if is_list else None


def _kind(name: str) -> str:
    """A weight's name without its layer.

    >>> _kind("model.layers.12.mlp.up_proj.weight")
    'model.layers.*.mlp.up_proj.weight'
    """
    return re.sub(r"\d+", "*", name)
