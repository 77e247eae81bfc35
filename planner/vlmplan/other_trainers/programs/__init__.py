"""Programs in Python that train: read through their syntax tree, never run

source            a .py file or the cells of a notebook, as one text
literals          what an expression is worth without running it
calls             every call of a program, with its keywords
runs              the one training run that a program holds, by key
"""

from vlmplan.other_trainers.programs.runs import UNSLOTH_DPO_RUN, UNSLOTH_RUN, ProgramRun, run_of_program
from vlmplan.other_trainers.programs.source import ProgramSource, program_source

__all__ = ["UNSLOTH_DPO_RUN", "UNSLOTH_RUN", "ProgramRun", "ProgramSource", "program_source", "run_of_program"]
