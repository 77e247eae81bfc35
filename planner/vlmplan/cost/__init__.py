"""Money: what a run costs by its parts, what interruptions take, what a machine of one's own costs by the hour."""

# pyright: reportUnusedImport=false
from vlmplan.cost.run import CostAssumptions, RunBytes, RunCost, run_cost
