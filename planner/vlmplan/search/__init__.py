"""The search: what it is asked, the plans that it finds, and what they share with other commands."""

# pyright: reportUnusedImport=false
from vlmplan.request import Objective
from vlmplan.search.answer import (
    Compared,
    Limits,
    RankedPlan,
    Recommendation,
    Rejection,
    SearchQuery,
)
from vlmplan.search.recommendation import recommend
