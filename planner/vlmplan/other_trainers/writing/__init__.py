"""Setups written for other trainers: what each can do, and the keys that make it do so

record            ``Tool``, ``WrittenSetup``
limits            what a tool lets a setting be; ``Limit``
hugging_face      what all of them have in common: ``TrainingArguments``, DeepSpeed's file, how processes are started
trl, plain_trainer, llama_factory, ms_swift
                  one file each: limits, behaviour and keys
choice            a tool by its name: ``objection``, ``behaviour``, ``usual`` and ``settings_for``
"""

from vlmplan.other_trainers.writing.choice import (
    behaviour,
    limits_of,
    objection,
    settings_for,
    tool_of_trainer,
    usual,
)
from vlmplan.other_trainers.writing.limits import Limit, LimitContext
from vlmplan.other_trainers.writing.record import Tool, WrittenSetup

__all__ = [
    "Limit",
    "LimitContext",
    "Tool",
    "WrittenSetup",
    "behaviour",
    "limits_of",
    "objection",
    "settings_for",
    "tool_of_trainer",
    "usual",
]
