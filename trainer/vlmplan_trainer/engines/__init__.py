"""What runs a plan's step: plain PyTorch, data-parallel or not, or DeepSpeed's engine. The loop sees no difference."""

from vlmplan_trainer.engines.base import Engine, EngineState, StepResult
from vlmplan_trainer.engines.make import make_engine

__all__ = ["Engine", "EngineState", "StepResult", "make_engine"]
