"""The Python interface: what each command of the command line answers, as a function

options            keyword arguments of the functions, by the names of the command line's options
kinds, arguments   what a caller gives, checked, as the values that the command line would have
commands           the functions
asking             what they do: the calls of the command line
parts              what results are made of, as texts
record, *_result   what they return; machine, planned and way_out are parts that they have in common
writing            files of a plan
"""

from vlmplan.api.check_result import CheckResult, Configuration, Fix
from vlmplan.api.commands import advise, check, compare, diagnose, estimate, read_config, recommend
from vlmplan.api.compare_result import CompareResult, Variant
from vlmplan.api.diagnose_result import DiagnoseResult
from vlmplan.api.estimate_result import EstimateResult, Phase
from vlmplan.api.options import (
    AdviseOptions,
    CheckOptions,
    CompareOptions,
    DiagnoseOptions,
    EstimateOptions,
    RecommendOptions,
)
from vlmplan.api.recommend_result import AdviseResult, Change, RankedPlan, RecommendResult, Rejection
from vlmplan.api.way_out import OtherMachine, ToFit

__all__ = [
    "AdviseOptions",
    "AdviseResult",
    "Change",
    "CheckOptions",
    "CheckResult",
    "CompareOptions",
    "CompareResult",
    "Configuration",
    "DiagnoseOptions",
    "DiagnoseResult",
    "EstimateOptions",
    "EstimateResult",
    "Fix",
    "OtherMachine",
    "Phase",
    "RankedPlan",
    "RecommendOptions",
    "RecommendResult",
    "Rejection",
    "ToFit",
    "Variant",
    "advise",
    "check",
    "compare",
    "diagnose",
    "estimate",
    "read_config",
    "recommend",
]
