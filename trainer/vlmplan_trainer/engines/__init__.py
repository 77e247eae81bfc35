"""What runs a plan's step: plain PyTorch, data-parallel or not, or DeepSpeed's engine. The loop sees no difference."""

from vlmplan_trainer.engines.base import Engine
from vlmplan_trainer.engines.make import make_engine
