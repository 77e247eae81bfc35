"""Engines: what plain PyTorch, DDP and each ZeRO stage hold on a GPU and send to others, from load to save.

An engine is one class: its walk tells a ``Sink`` what it allocates and frees, and beside the walk stand its model
states in closed form, its bounds for searching and its collectives; those of ZeRO-1 to 3 and of FSDP2 in files of their
own, from which the walk inherits (``zero12_formulas``, ``zero3_formulas``, ``fsdp2_formulas``).
"""

# pyright: reportUnusedImport=false
from vlmplan.engines.choice import STAGES, engine_of, overlapped_fraction
from vlmplan.engines.engine import Engine
from vlmplan.engines.model_states import ModelStates
