"""The Python interface: what each command of the command line answers, as a function

options            keyword arguments of the functions, by the names of the command line's options
kinds, arguments   what a caller gives, checked, as the values that the command line would have
commands           the functions
asking             what they do: the calls of the command line
record, *_result   what they return
writing            files of a plan
"""

from vlmplan.api.check_result import CheckResult, Configuration
from vlmplan.api.commands import advise, check, estimate, read_config, recommend
from vlmplan.api.estimate_result import EstimateResult, OtherMachine, Phase, ToFit
from vlmplan.api.options import AdviseOptions, CheckOptions, EstimateOptions, RecommendOptions
from vlmplan.api.recommend_result import AdviseResult, Change, RankedPlan, RecommendResult, Rejection

__all__ = [
    "AdviseOptions",
    "AdviseResult",
    "Change",
    "CheckOptions",
    "CheckResult",
    "Configuration",
    "EstimateOptions",
    "EstimateResult",
    "OtherMachine",
    "Phase",
    "RankedPlan",
    "RecommendOptions",
    "RecommendResult",
    "Rejection",
    "ToFit",
    "advise",
    "check",
    "estimate",
    "read_config",
    "recommend",
]
