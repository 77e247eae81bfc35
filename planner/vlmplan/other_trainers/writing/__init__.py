"""Setups written for other trainers: what each can do, and the keys that make it do so

record            ``Tool``, ``WrittenSetup``
limits            what a tool lets a setting be; ``Limit``
hugging_face      what all of them have in common: ``TrainingArguments``, DeepSpeed's file, how processes are started
trl, plain_trainer, llama_factory, ms_swift, axolotl
                  one file each: limits, behaviour and keys
choice            a tool by its name: ``objection``, ``behaviour``, ``usual`` and ``settings_for``
"""

# pyright: reportUnusedImport=false
from vlmplan.other_trainers.writing.choice import (
    SCRIPTS_AROUND_THE_TRAINER,
    behaviour,
    evaluated_by,
    limits_of,
    objection,
    objection_to_experts,
    objection_to_two_texts,
    settings_for,
    title_of,
    tool_of_trainer,
    usual,
)
from vlmplan.other_trainers.writing.hugging_face import model_name, needs_processes, trained_embeddings
from vlmplan.other_trainers.writing.record import DS_CONFIG_FILE, Tool, WrittenSetup, placeholder
