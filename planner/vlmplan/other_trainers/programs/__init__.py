"""Programs in Python that train: read through their syntax tree, never run

source            a .py file or the cells of a notebook, as one text
literals          what an expression is worth without running it
modules           what a program imports of files beside it
calls             every call of a program, with its keywords
gathered          the values of a run, gathered of its calls
trainer_calls     the call that makes the trainer: whose class, and its arguments by name
late_arguments    what the trainer's arguments are given after it is made
loads             which call loads the model that is trained
processors        how large its processor lets images be
casts             the type that the model is cast to after it is loaded
changed_parts     what it changes of the model and the trainer otherwise
surroundings      what it sets for its whole process, and puts around the model
environment       variables that it sets
references        the reference that a trainer of preferences is given
unsloth_runs, trl_runs    whose calls they are, and under which keys
runs              the one training run that a program holds
"""

# pyright: reportUnusedImport=false
from vlmplan.other_trainers.programs.gathered import ProgramRun
from vlmplan.other_trainers.programs.runs import OF_PROGRAMS, run_of_program
from vlmplan.other_trainers.programs.source import ProgramSource, program_source
from vlmplan.other_trainers.programs.trl_runs import (
    TRAINER_RUN,
    TRL_DPO_RUN,
    TRL_GRPO_RUN,
    TRL_KTO_RUN,
    TRL_REWARD_RUN,
    TRL_RUN,
)
from vlmplan.other_trainers.programs.unsloth_runs import (
    UNSLOTH_DPO_RUN,
    UNSLOTH_GRPO_RUN,
    UNSLOTH_RUN,
    UNSLOTH_RUNS,
)
