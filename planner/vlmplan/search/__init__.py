"""The search: what it is asked, the plans that it finds, and what they share with other commands."""

from vlmplan.request import Objective
from vlmplan.search.answer import (
    Compared,
    Limits,
    RankedPlan,
    Recommendation,
    Rejection,
    SearchQuery,
)
from vlmplan.search.ranking import MAX_PLANS
from vlmplan.search.recommendation import recommend

__all__ = [
    "MAX_PLANS",
    "Compared",
    "Limits",
    "Objective",
    "RankedPlan",
    "Recommendation",
    "Rejection",
    "SearchQuery",
    "recommend",
]
