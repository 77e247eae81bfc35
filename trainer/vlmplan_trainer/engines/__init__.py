"""What runs a plan's step: plain PyTorch, or DeepSpeed's engine. Both look the same to the loop."""

from vlmplan_trainer.engines.base import Engine, EngineState, StepResult
from vlmplan_trainer.engines.make import make_engine

__all__ = ["Engine", "EngineState", "StepResult", "make_engine"]
