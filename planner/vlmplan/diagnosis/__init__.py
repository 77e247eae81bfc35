"""Why a run ran out of memory, by its log and the plan of the same setup."""

from vlmplan.diagnosis.causes import Balance, Cause
from vlmplan.diagnosis.evidence import Evidence
from vlmplan.diagnosis.log import Log, read_log
from vlmplan.diagnosis.places import Part, Phase, Place
from vlmplan.diagnosis.planned import BESIDE_TRAINING, beside_plan
from vlmplan.diagnosis.record import Diagnosis, Longer, Planned, diagnosis_of
from vlmplan.diagnosis.tensors import TensorSize, WeightSize

__all__ = [
    "BESIDE_TRAINING",
    "Balance",
    "Cause",
    "Diagnosis",
    "Evidence",
    "Log",
    "Longer",
    "Part",
    "Phase",
    "Place",
    "Planned",
    "TensorSize",
    "WeightSize",
    "beside_plan",
    "diagnosis_of",
    "read_log",
]
