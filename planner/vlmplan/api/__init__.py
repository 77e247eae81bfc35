"""The Python interface: what each command of the command line answers, as a function

options     keyword arguments of the functions, by the names of the command line's options
arguments   what a caller gives, checked, as the values that the command line would have
commands    the functions
results     what they return
"""

from vlmplan.api.commands import estimate
from vlmplan.api.results import EstimateResult, Phase

__all__ = ["EstimateResult", "Phase", "estimate"]
