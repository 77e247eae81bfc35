"""Engines: what plain PyTorch, DDP and each ZeRO stage hold on a GPU and send to others, from load to save.

An engine is one file: its walk tells a ``Sink`` what it allocates and frees, and beside the walk stand its model states
in closed form, its bounds for searching and its collectives.
"""

from vlmplan.engines.choice import engine_of, overlapped_fraction, stages_on
from vlmplan.engines.engine import Engine, ModelStates

__all__ = ["Engine", "ModelStates", "engine_of", "overlapped_fraction", "stages_on"]
