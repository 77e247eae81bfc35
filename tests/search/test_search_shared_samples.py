"""Samples that no GPU has room for are shared by several, where nobody has decided otherwise."""

import pytest

from search_cases import TODAY
from vlmplan.catalog import load_catalog
from vlmplan.request import parse
from vlmplan.search import recommend
from vlmplan.search.options import search_query
from vlmplan.search.shared_samples import recommend_or_share


def query(**changes):
    options = {"model": "qwen3-0.6b", "gpu": ("rtx-4090:2",), "method": "lora", "seq_len": 200_000}
    request = parse(options | changes)
    return search_query(request, load_catalog(()), request.model_files, TODAY)


def test_samples_without_room_are_shared_and_the_answer_says_so():
    asked = query()
    assert not recommend(asked).plans
    found = recommend_or_share(asked)
    assert found.plans[0].estimate.recipe.sequence_parallel == 2
    assert "--sequence-parallel 2 shares each among 2 GPUs" in found.notes[0]


@pytest.mark.parametrize("changes", [{"seq_len": 2048}, {"sequence_parallel": 1}, {"gpu": ("rtx-4090:1",)}])
def test_samples_with_room_and_decided_ones_are_searched_as_before(changes):
    asked = query(**changes)
    assert recommend_or_share(asked) == recommend(asked)
