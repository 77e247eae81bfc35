"""What to do where a setup does not fit: the least changes, and the cheapest other machine."""

from collections.abc import Mapping
from typing import Any

from vlmplan.api.machine import OnMachine, Priced
from vlmplan.api.record import Record, Result, Value, Verdict


class ToFit(Record):
    """The least changes with which a setup that does not fit does, on the same cards."""

    keeps_results = Value[bool]("Whether the same model comes out, but for rounding.")
    command = Value[str]("The command line that asks for the changed setup.")
    verdict = Value[Verdict]("Whether it fits with the change, and whether with a reserve.")
    peak_device_bytes = Value[int]("What nvidia-smi shows then at most.", at="device_bytes")
    step_seconds = Value[float | None]("Seconds of an optimizer step then; None where a speed is not known.")

    @property
    def changes(self) -> tuple[str, ...]:
        """Each change in words."""
        return tuple(change["change"] for change in self._values["changes"])

    @property
    def options(self) -> Mapping[str, Any]:
        """The arguments that change; None for one that is to be left out."""
        return dict(self._more["options"])

    def __repr__(self) -> str:
        return f"ToFit({', '.join(self.changes)})"


class OtherMachine(OnMachine, Priced):
    """The cheapest other machine that has room for a setup as it is."""

    command = Value[str]("The command line that asks for it there.")

    def __repr__(self) -> str:
        return f"OtherMachine({self.num_gpus} x {self.gpu})"


class WithWayOut(Result):
    """A result that says what to do where nothing fits."""

    @property
    def to_fit(self) -> ToFit | None:
        """The least changes that fit on the same cards; None where it fits, or where none that was tried is enough."""
        return None if self._more.get("to_fit") is None else ToFit(*self._more["to_fit"])

    @property
    def with_more_host(self) -> ToFit | None:
        """The least changes that keep the results on a host with more memory than it is taken to have; None where its
        memory is known, and where what fits without it keeps them too."""
        values = self._more.get("with_more_host")
        return None if values is None else ToFit(*values)

    @property
    def other_machine(self) -> OtherMachine | None:
        """The cheapest other machine; None where it fits, or where there is none."""
        text = self._more.get("other_machine")
        return None if text is None else OtherMachine(text)


class Answer(WithWayOut):
    """A result with sentences on its numbers."""

    caveats = Value[tuple[str, ...]]("Sentences without which the answer would be read wrongly.")
    notes = Value[tuple[str, ...]]("All sentences that should be known of the numbers, the caveats among them.")
