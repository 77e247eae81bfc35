"""Configurations of other trainers: what their keys mean, as vlmplan's options

record            ``TrainerConfig``: what a file says, and the setup that it means
opened, whose     a file and what it names, and whose it is, by its keys
read              what it means to that trainer
settings          keys by kind, each accounted for
shell, scripts    the training command of a shell script, which is never run
hugging_face      what TRL, LLaMA-Factory, ms-swift and axolotl have in common: ``TrainingArguments``
named_files       files and folders that a configuration names
assembled         the engine and the types of weights that follow
axolotl, llama_factory, ms_swift, nemo_automodel, trl, unsloth, verl
                  a trainer each, with what is its alone
vision_scripts    scripts that are published with vision-language models, around Hugging Face's Trainer
programs          what of a Python program says how it trains
"""

# pyright: reportUnusedImport=false
from vlmplan.other_trainers.contradictions import refuse_contradictions
from vlmplan.other_trainers.deepspeed_optimizers import deepspeed_optimizer
from vlmplan.other_trainers.named_files import found_folder
from vlmplan.other_trainers.opened import OpenedConfig, open_trainer_config
from vlmplan.other_trainers.read import Asked, read_opened
from vlmplan.other_trainers.record import TrainerConfig
