"""Why a run ran out of memory, by its log and the plan of the same setup."""

# pyright: reportUnusedImport=false
from vlmplan.diagnosis.causes import Cause
from vlmplan.diagnosis.evidence import Evidence
from vlmplan.diagnosis.log import Log, read_log
from vlmplan.diagnosis.places import Part, Phase
from vlmplan.diagnosis.planned import BESIDE_TRAINING, beside_plan
from vlmplan.diagnosis.record import (
    Diagnosis,
    Planned,
    diagnosis_of,
)
from vlmplan.diagnosis.tensors import TensorSize
