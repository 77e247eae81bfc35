"""Weights are not read: of a safetensors file the header alone, which names each tensor with element type and shape.

transformers' own ``from_pretrained`` runs, quantisation and ZeRO-3 included (``modeling_utils.py``, transformers 5.23):
it gets tensors without data where it asks ``safe_open`` for them. Where there is no safetensors file, names and shapes
are those of the model itself, in the element type that ``config.json`` or the script names.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from vlmplan.errors import InputError
from vlmplan.files import open_regular
from vlmplan.files.json_reader import parse_json_object
from vlmplan_trainer.rehearse.replaced import replaced

NO_FILE = "weights-that-are-not-read.safetensors"
ONE_THREAD = "HF_DEACTIVATE_ASYNC_LOAD"
"""What is seen of tensors is seen in the thread that the script runs in."""
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""``MAX_HEADER_SIZE`` of safetensors (``safetensors/src/tensor.rs``)."""
SETTINGS, MAX_SETTINGS_BYTES = "quant_state.", 1 << 14
"""What bitsandbytes saves of four bits beside the weights: a few hundred bytes of JSON as a tensor of bytes, with block
sizes and types (``QuantState.as_dict``). It decides what else there is, and is read."""
METADATA = "__metadata__"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadTensor:
    """A tensor of a file: what ``safe_open(...).get_slice`` returns. ``content``: its bytes, where they were read."""

    dtype_name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    content: bytes | None = None

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def get_dtype(self) -> str:
        return self.dtype_name

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.made()[index]

    def made(self) -> torch.Tensor:
        """A tensor in host memory, as a file that is mapped there."""
        if self.content is None:
            return torch.empty(self.shape, dtype=self.dtype, device="cpu")
        with unset_fake_temporarily():
            values = list(self.content)
        return torch.tensor(values, dtype=self.dtype)


class HeaderOnly:
    """``safetensors.safe_open``, whose tensors have no data. Raises InputError where a file is no safetensors file."""

    of_no_file: ClassVar[Mapping[str, UnreadTensor]] = {}
    """The weights of the model that is loaded now and has no file."""

    def __init__(self, filename: Any, *args: Any, **kwargs: Any) -> None:
        path = os.fspath(filename)
        self._metadata: dict[str, str] | None = None
        if path == NO_FILE:
            self._tensors = dict(self.of_no_file)
        else:
            self._tensors, self._metadata = header_of(Path(path))

    def __enter__(self) -> "HeaderOnly":
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def keys(self) -> list[str]:
        return list(self._tensors)

    offset_keys = keys

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def get_slice(self, name: str) -> UnreadTensor:
        return self._tensors[name]

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name].made()

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self._tensors}


def header_of(path: Path) -> tuple[dict[str, UnreadTensor], dict[str, str] | None]:
    """The tensors of a safetensors file by name, and its own words; nothing behind its header is read but
    bitsandbytes' settings."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise InputError(f"{path} is no safetensors file: its first 8 bytes must be the length of its header")
        values = parse_json_object(file.read(length).decode(errors="replace"), source=f"the header of {path}")
        words = values.pop(METADATA, None)
        found: dict[str, UnreadTensor] = {}
        for name, value in values.items():
            found[name], (begin, end) = _tensor(path, name, value)
            if SETTINGS in name and end - begin <= MAX_SETTINGS_BYTES and found[name].dtype == torch.uint8:
                file.seek(LENGTH_BYTES + length + begin)
                found[name] = UnreadTensor(
                    dtype_name="U8", dtype=torch.uint8, shape=found[name].shape, content=file.read(end - begin)
                )
    return found, words


def _tensor(path: Path, name: str, value: Any) -> tuple[UnreadTensor, tuple[int, int]]:
    """One entry of a header, and where its bytes lie behind it."""
    from transformers.modeling_utils import str_to_torch_dtype

    try:
        kind, shape = str(value["dtype"]), tuple(int(size) for size in value["shape"])
        begin, end = (int(place) for place in value["data_offsets"])
        return UnreadTensor(dtype_name=kind, dtype=str_to_torch_dtype[kind], shape=shape), (begin, end)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the header of {path} says of {name} what no tensor has ({error!r})") from None


@contextmanager
def reading_no_weights(say: Callable[[str], None]) -> Iterator[None]:
    """``say`` gets a sentence for each model whose shapes no file gives."""
    import safetensors
    import safetensors.torch
    import transformers.integrations.accelerate as placing
    import transformers.modeling_utils as modeling

    os.environ[ONE_THREAD] = "1"
    resolve, load = modeling._get_resolved_checkpoint_files, modeling.PreTrainedModel._load_pretrained_model

    def files_here(*args: Any, **kwargs: Any) -> Any:
        """The files that are there already: none is fetched."""
        kwargs["download_kwargs"] = {**(kwargs.get("download_kwargs") or {}), "local_files_only": True}
        try:
            files, metadata = resolve(*args, **kwargs)
        except OSError:
            files, metadata = None, None
        if files and all(str(file).endswith(".safetensors") for file in files):
            return files, metadata
        return [NO_FILE], {"dtype": "float32"}

    def load_unread(model: Any, state_dict: Any, files: Any, load_config: Any, *args: Any, **kwargs: Any) -> Any:
        if files == [NO_FILE]:
            HeaderOnly.of_no_file = _of_model(model, load_config.dtype)
            say(
                f"{type(model).__name__}: no safetensors file of its weights is here; names and shapes are those of "
                f"its config.json"
            )
        return load(model, state_dict, files, load_config, *args, **kwargs)

    with ExitStack() as stack:
        for module in (safetensors, safetensors.torch, modeling, placing):
            stack.enter_context(replaced(module, "safe_open", HeaderOnly))
        stack.enter_context(replaced(modeling, "_is_on_hf_mount", lambda path: False))
        stack.enter_context(replaced(modeling, "_get_resolved_checkpoint_files", files_here))
        stack.enter_context(replaced(modeling.PreTrainedModel, "_load_pretrained_model", staticmethod(load_unread)))
        yield


def _of_model(model: Any, dtype: Any) -> dict[str, UnreadTensor]:
    """What a file of the model would have. Tied weights are in no file."""
    from transformers.modeling_utils import str_to_torch_dtype

    names = {kind: name for name, kind in str_to_torch_dtype.items()}
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    saved = set(model.state_dict())
    found: dict[str, UnreadTensor] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in saved and name not in tied:
            shape = tuple(getattr(tensor, "ds_shape", tensor.shape))
            kind = dtype if tensor.is_floating_point() and isinstance(dtype, torch.dtype) else tensor.dtype
            found[name] = UnreadTensor(dtype_name=names.get(kind, "F32"), dtype=kind, shape=shape)
    return found
