"""The search: what it is asked, the plans that it finds, and what they share with other commands

options, recommendation
                      the search that a request means, from its question to its answer
answer, explanation, pareto, no_offer, refusals
                      plans, why the first is the first, cost against time, and why there is none
clusters, offers, prices, hosts, step_samples
                      machines: which are looked at, at which price, with which host memory
choices, recipe_space, setup_records, setups, micro_batches
                      recipes: which are tried, and the micro batches of each that fit
recipe_bounds, exploration, entries, ranking, scoring
                      what is left out by bounds, and the order of the rest
long_samples          what makes room where nothing fits
shared_traces, combined_traces, memoized_estimates, identity_cache
                      what is computed once
"""

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
