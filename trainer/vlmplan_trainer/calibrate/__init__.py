"""What the planner assumes of a GPU and its host, measured: ``python -m vlmplan_trainer.calibrate``."""
