"""Money: what a run costs by its parts, what interruptions take, what a machine of one's own costs by the hour."""

from vlmplan.cost.run import CostAssumptions, RunBytes, RunCost, run_cost

__all__ = ["CostAssumptions", "RunBytes", "RunCost", "run_cost"]
