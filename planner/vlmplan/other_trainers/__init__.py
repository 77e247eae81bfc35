"""Configurations of other trainers: what their keys mean, as vlmplan's options

To read a new key of a trainer, begin at its ``reading``; ``docs/contributing.md`` goes through it.

record            ``TrainerConfig``: what a file says, and the setup that it means
opened, whose     a file and what it names, and whose it is, by its keys
read, readers     what it means to that trainer; who reads which trainer's keys
settings          keys by kind, each accounted for
axolotl, llama_factory, ms_swift, nemo_automodel, openrlhf, trl, unsloth, verl
                  a trainer each, with what is its alone
plain_trainer, vision_scripts
                  scripts around Hugging Face's Trainer: one's own, and those published with vision-language models
torchtune         what its recipes are for another trainer
hugging_face, argument_kinds, argument_rules, idle_kinds, contradictions
                  ``TrainingArguments``, which most of them have in common, and what these refuse
batching, evaluated, saving, liger, adapters, loaded_adapters, device_maps, processors, fsdp, parallelism,
deepspeed_optimizers
                  groups of its keys, each by its subject
older_names, shipped_deepspeed, accelerate
                  earlier names of keys, DeepSpeed files that trainers ship, accelerate's file
meaning, assembled, sharded
                  what keys mean, and the engine and the types of weights that follow
loaded, named_files
                  values as YAML and JSON have them; files and folders that a configuration names
scripts, launchers, started_modules, parsed_programs
                  the training command of a shell script, and what starts it
shell, shell_words, shell_variables, shell_branches, shell_options, shell_arithmetic
                  a shell script, which is never run
programs          what of a Python program says how it trains
editing, writing  a file changed, and a file written
"""

# pyright: reportUnusedImport=false
from vlmplan.other_trainers.contradictions import refuse_contradictions
from vlmplan.other_trainers.deepspeed_optimizers import deepspeed_optimizer
from vlmplan.other_trainers.named_files import found_folder
from vlmplan.other_trainers.opened import OpenedConfig, open_trainer_config
from vlmplan.other_trainers.read import Asked, read_opened
from vlmplan.other_trainers.record import TrainerConfig
