"""A diagnosis: what a log proves, and what a plan of the same setup adds."""

from dataclasses import dataclass

from vlmplan.diagnosis.causes import Balance, Cause, balance_of, cause_of
from vlmplan.diagnosis.evidence import Evidence, evidence_in
from vlmplan.diagnosis.log import Log
from vlmplan.diagnosis.tensors import TensorSize, WeightSize
from vlmplan.estimation import Estimate
from vlmplan.memory.phases import Phase
from vlmplan.proposals.way_out import WayOut
from vlmplan.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Longer:
    """Samples that explain what was needed where those of the plan do not.

    ``tokens`` of one sample; ``image_side`` of a square image, in pixels, where it is the images that are larger.
    ``is_named``: a traceback and the size of its tensor say so, and not only the sum of everything.
    """

    tokens: int
    planned_tokens: int
    is_named: bool
    image_side: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrower:
    """The setup with less that is trained beside the adapters of the language model."""

    name: str
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The setup as it is planned, beside the message.

    ``phase`` is that of the plan in which memory ran out, None where the plan has none such. ``longer``: what the
    samples must have been. ``actual`` is the estimate with those, else ``estimate`` itself, ``request`` what it is of;
    ``way_out`` is of it, with what was measured: None where nothing has to change of the setup.
    """

    estimate: Estimate
    notes: tuple[str, ...]
    phase: Phase | None
    needed_bytes: int | None
    """What tensors would have taken, had the request been granted."""
    tensors: tuple[TensorSize, ...]
    weight: WeightSize | None
    longer: Longer | None
    request: Request
    actual: Estimate
    way_out: WayOut | None
    unplanned_bytes: int = 0
    """Of attention scores that the plan does not have, because it counts on a kernel that makes none."""
    narrower: tuple[Narrower, ...] = ()

    @property
    def planned_bytes(self) -> int | None:
        return None if self.phase is None else self.phase.peak.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    evidence: Evidence
    balance: Balance
    cause: Cause
    planned: Planned | None = None


def diagnosis_of(log: Log) -> Diagnosis:
    """What the log alone proves. Raises InputError where it has no message of memory that ran out."""
    evidence = evidence_in(log)
    balance = balance_of(evidence.message)
    return Diagnosis(evidence=evidence, balance=balance, cause=cause_of(evidence.message, balance))
