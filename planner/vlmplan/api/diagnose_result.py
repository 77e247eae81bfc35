"""What ``vlmplan.diagnose`` returns. Bytes are whole numbers."""

from collections.abc import Mapping
from typing import Any

from vlmplan.api.way_out import WithWayOut


class DiagnoseResult(WithWayOut):
    """Why a run ran out of memory: what ``vlmplan diagnose`` answers (schema ``vlmplan.diagnosis/1``)."""

    @property
    def cause(self) -> str:
        """``true_need``, ``fragmentation``, ``other_processes`` and the like, as the document names them."""
        return self._values["cause"]

    @property
    def phase(self) -> str | None:
        """The phase of the run in which memory ran out; None where nothing says it."""
        return self._values["phase"]

    @property
    def part(self) -> str | None:
        """What was being made: ``logits``, ``weights`` and the like; None where nothing says it."""
        return self._values["part"]

    @property
    def message(self) -> Mapping[str, Any]:
        """The message with its sizes in bytes, None for one that it does not say."""
        return self.as_dict()["message"]

    @property
    def requested_bytes(self) -> int | None:
        """What was asked for and not granted."""
        return self._values["message"]["requested_bytes"]

    @property
    def rank(self) -> int | None:
        """The rank that ran out; None where nothing says it."""
        return self._values["message"]["rank"]

    @property
    def steps_done(self) -> int | None:
        """Optimizer steps that went well; None where nothing says it."""
        return self._values["steps_done"]

    @property
    def planned(self) -> Mapping[str, Any] | None:
        """What was planned for the setup, beside what was needed; None without a setup."""
        return self.as_dict()["planned"]

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, a finding each."""
        return tuple(self._values["sentences"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.sentences[0]}>"
