"""What the functions return: frozen, with a typed attribute for what people read, and the whole JSON document.

Bytes are whole numbers and of the fullest GPU, seconds and US dollars are floats. Light: imports nothing of vlmplan.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, NoReturn

Verdict = Literal["fits", "tight", "does_not_fit"]


def _parsed(text: str) -> dict[str, Any]:
    import json  # not with vlmplan, which is to be imported in no time

    return json.loads(text)


class Phase(NamedTuple):
    """A phase of the run on the fullest GPU: ``load``, ``init``, ``forward``, ``backward``, ``step``, ``save``.

    ``resident_bytes`` are live when it ends, ``peak_bytes`` at its highest moment, which ``components_at_peak`` add up
    to.
    """

    name: str
    resident_bytes: int
    peak_bytes: int
    components_at_peak: Mapping[str, int]


class Result:
    """An answer. Equal to another with the same document; can be pickled; shows itself as a page in a notebook."""

    __slots__ = ("_document", "_json", "_more", "_text")
    _document: Mapping[str, Any]
    _json: str
    _more: Mapping[str, Any]
    _text: str

    def __init__(self, document: str, text: str, more: Mapping[str, Any]) -> None:
        """``document`` is the text of the JSON, ``text`` what the terminal shows, ``more`` what attributes need too."""
        parts = {"_json": document, "_text": text, "_more": more, "_document": _parsed(document)}
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """The document that the command prints with ``--json``; a copy of one's own."""
        return _parsed(self._json)

    def __str__(self) -> str:
        """What the command prints, without colours."""
        return self._text

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and type(other) is type(self) and self._json == other._json

    def __hash__(self) -> int:
        return hash(self._json)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._json, self._text, self._more)


class EstimateResult(Result):
    """One setup on one kind of GPU: what ``vlmplan estimate`` answers (schema ``vlmplan.estimate/1``)."""

    __slots__ = ()

    @property
    def verdict(self) -> Verdict:
        """``"fits"`` with a reserve that stays free, ``"tight"`` without it, or ``"does_not_fit"``."""
        return self._document["verdict"]

    @property
    def fits(self) -> bool:
        """Whether it runs: the verdict is ``"fits"`` or ``"tight"``."""
        return self.verdict != "does_not_fit"

    @property
    def model(self) -> str:
        """The model by the name that it was given by."""
        return self._document["model"]["id"]

    @property
    def num_params(self) -> int:
        """All parameters, without adapters."""
        return self._document["model"]["num_params"]

    @property
    def num_trainable_params(self) -> int:
        """Parameters that are trained, adapters included."""
        return self._document["model"]["num_trainable_params"]

    @property
    def gpu(self) -> str:
        """The GPU by its name in the catalog."""
        return self._document["gpu"]["id"]

    @property
    def num_gpus(self) -> int:
        """GPUs in all, over all machines."""
        return self._document["gpu"]["count"] * self._document["gpu"]["num_nodes"]

    @property
    def recipe(self) -> Mapping[str, Any]:
        """How it is trained: every setting as it was resolved, and the workload."""
        return self.as_dict()["recipe"]

    @property
    def usable_bytes(self) -> int:
        """What a process can get of one GPU."""
        return self._document["gpu"]["usable_bytes"]

    @property
    def peak_device_bytes(self) -> int:
        """The highest that nvidia-smi shows for the process: reserved bytes, CUDA context and NCCL."""
        return self._document["peak_device_bytes"]

    @property
    def peak_reserved_bytes(self) -> int:
        """The highest of ``torch.cuda.memory_reserved()``."""
        return self._document["peak_reserved_bytes"]

    @property
    def peak_allocated_bytes(self) -> int:
        """The highest of ``torch.cuda.memory_allocated()``: all tensors."""
        return self._document["peak_allocated_bytes"]

    @property
    def free_bytes(self) -> int:
        """Usable bytes that are left; below zero where it does not fit."""
        return self.usable_bytes - self.peak_device_bytes

    @property
    def peak_phase(self) -> str:
        """The name of the phase with the highest peak."""
        return self._document["peak_phase"]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a run, in order."""
        components: list[dict[str, int]] = self._more["components"]
        return tuple(
            Phase(**phase, components_at_peak=dict(parts))
            for phase, parts in zip(self._document["phases"], components, strict=True)
        )

    @property
    def components_at_peak(self) -> Mapping[str, int]:
        """Bytes of weights, gradients, optimizer states and the rest at the highest moment; they add up to
        ``peak_allocated_bytes``."""
        return dict(self._document["components_at_peak"])

    @property
    def host_bytes_per_node(self) -> int:
        """Host memory that each machine needs at its fullest."""
        return self._document["host_bytes_per_node"]

    @property
    def checkpoint_bytes(self) -> int:
        """What a checkpoint takes on disk, to go on from."""
        return self._document["checkpoint_bytes"]

    @property
    def export_bytes(self) -> int:
        """What the trained model, or its adapters, takes on disk."""
        return self._document["export_bytes"]

    @property
    def step_seconds(self) -> float | None:
        """Seconds of an optimizer step; None where a speed is not known."""
        return self._document["step_seconds"]

    @property
    def step_seconds_range(self) -> tuple[float, float] | None:
        """The same at best and at worst."""
        found = self._document["step_seconds_range"]
        return None if found is None else (found[0], found[1])

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self._more["num_steps"]

    @property
    def run_seconds(self) -> float | None:
        """Seconds of training in all, without start-up, evaluation and checkpoints; None where a speed is not known."""
        return None if self.step_seconds is None else self.num_steps * self.step_seconds

    @property
    def tokens_per_second(self) -> float | None:
        return self._document["tokens_per_second"]

    @property
    def samples_per_second(self) -> float | None:
        return self._document["samples_per_second"]

    @property
    def ds_config(self) -> Mapping[str, Any] | None:
        """The ds_config.json that it is of, in numbers; None where DeepSpeed is not used."""
        text = self._more["ds_config"]
        return None if text is None else _parsed(text)

    @property
    def command(self) -> str:
        """The command line that asks the same."""
        return self._more["command"]

    @property
    def caveats(self) -> tuple[str, ...]:
        """Sentences without which the verdict would be read wrongly."""
        return tuple(self._document["caveats"])

    @property
    def notes(self) -> tuple[str, ...]:
        """All sentences that should be known of the numbers, the caveats among them."""
        return tuple(self._document["notes"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.model} on {self.num_gpus} x {self.gpu}: {self.verdict}>"
