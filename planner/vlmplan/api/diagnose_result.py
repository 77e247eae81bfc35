"""What ``vlmplan.diagnose`` returns. Bytes are whole numbers."""

from collections.abc import Mapping
from typing import Any

from vlmplan.api.record import Value
from vlmplan.api.way_out import WithWayOut


class DiagnoseResult(WithWayOut):
    """Why a run ran out of memory: what ``vlmplan diagnose`` answers (schema ``vlmplan.diagnosis/1``)."""

    cause = Value[str](
        "``true_need``, ``fragmentation``, ``full_card``, ``other_processes`` and the like, as the document names them."
    )
    phase = Value[str | None]("The phase of the run in which memory ran out; None where nothing says it.")
    part = Value[str | None]("What was being made: ``logits``, ``weights`` and the like; None where nothing says it.")
    message = Value[Mapping[str, Any]]("The message with its sizes in bytes, None for one that it does not say.")
    requested_bytes = Value[int | None]("What was asked for and not granted.", at="message.requested_bytes")
    rank = Value[int | None]("The rank that ran out; None where nothing says it.", at="message.rank")
    steps_done = Value[int | None]("Optimizer steps that went well; None where nothing says it.")
    planned = Value[Mapping[str, Any] | None](
        "What was planned for the setup, beside what was needed; None without a setup."
    )
    sentences = Value[tuple[str, ...]]("What was found, a finding each.")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.sentences[0]}>"
