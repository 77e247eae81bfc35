"""What ``vlmplan.check`` and ``vlmplan.read_config`` return."""

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from vlmplan.api.estimate_result import EstimateResult
from vlmplan.api.record import Record, Result, Value, Verdict, parsed
from vlmplan.api.way_out import OtherMachine

if TYPE_CHECKING:
    from pathlib import Path


class Configuration(Result):
    """What another trainer is started with, as that trainer takes it."""

    source = Value[str]("The file.")
    trainer = Value[str]("The trainer whose configuration it is, and the version as of which it is read.")
    ds_config = Value[Mapping[str, Any] | None]("What DeepSpeed is configured with; None without it.")
    said = Value[Mapping[str, str]]("Keys of the file that decide memory or time, with their values as text.")
    defaults = Value[Mapping[str, str]]("What the trainer takes where the file is silent.")
    without_effect = Value[tuple[str, ...]]("Keys of the file that change neither memory nor time.")
    notes = Value[tuple[str, ...]]("What is not planned as the trainer does it, in sentences.")

    @property
    def options(self) -> Mapping[str, Any]:
        """Arguments of ``vlmplan.estimate`` that mean the same, ``model`` among them."""
        return dict(self._more["options"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.source} as {self.trainer} reads it>"


class Fix(Record):
    """A change of the trainer's own file, and what it costs."""

    changes = Value[tuple[Mapping[str, Any], ...]](
        "Each key that changes: ``file``, ``key``, and its value ``before`` and ``after``, None where it has none."
    )
    diff = Value[str]("The change as ``diff -u`` shows it, for ``patch``.")
    costs = Value[Mapping[str, Mapping[str, Any]]](
        "``device_bytes``, ``host_bytes_per_node``, ``step_seconds``, ``run_seconds`` and ``usd`` of the run, "
        "``before`` and ``after``."
    )
    keeps_results = Value[bool]("Whether the same model comes out, but for rounding.")
    verdict = Value[Verdict]("Whether it fits with the change, and whether with a reserve.")
    notes = Value[tuple[str, ...]]("What should be known of the change, in sentences.")

    def write(self, path: str | PathLike[str], *, force: bool = False) -> "tuple[Path, ...]":
        """Write the changed file, which may be the file itself, and the DeepSpeed file that it names; their paths.

        Raises InputError if one exists and ``force`` is off, or where the file was changed since it was checked.
        """
        from vlmplan.api.writing import write_changed_file

        more = self._more
        return write_changed_file(more["source"], more["seen"], parsed(more["keys"]), path, force=force)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._more['title']}>"


class CheckResult(Result):
    """A configuration as it was read, and its estimate: what ``vlmplan check`` answers (schema ``vlmplan.check/1``)."""

    @property
    def config(self) -> Configuration:
        """How the file was read."""
        return Configuration(*self._more["config"])

    @property
    def estimate(self) -> EstimateResult | None:
        """What it takes; None where neither GPUs are named nor this machine has some."""
        parts = self._more["estimate"]
        return None if parts is None else EstimateResult(*parts)

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """The changes of the file, with ``fix=True``, with which it fits, or is faster where it does, the least first;
        none where nothing that was tried helps, and without ``fix=True``."""
        return tuple(Fix(*parts) for parts in self._more["fixes"])

    @property
    def other_machine(self) -> OtherMachine | None:
        """The cheapest other machine, where with ``fix=True`` no change helps."""
        text = self._more["other_machine"]
        return None if text is None else OtherMachine(text)

    @property
    def fits(self) -> bool | None:
        """Whether it runs; None without an estimate."""
        return None if self.estimate is None else self.estimate.fits

    def __repr__(self) -> str:
        found = "no GPU is known" if self.estimate is None else self.estimate.verdict
        return f"<{type(self).__name__}: {self.config.source}: {found}>"
