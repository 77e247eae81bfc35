"""How every model type of transformers is planned: the table, held to the code and to transformers' own counts."""

from collections import Counter

import pytest

from model_types import FILE, counts, stored_rows, table
from vlmplan.architecture.families import FAMILIES
from vlmplan.models.untrainable import UNPLANNABLE, UNTRAINABLE


def test_every_type_stands_once_and_in_order():
    names = [row.model_type for row in stored_rows()]
    assert names == sorted(set(names))


def test_a_type_is_exact_if_a_family_describes_it_and_refused_only_with_a_sentence():
    for row in stored_rows():
        assert (row.how == "exact") is (row.model_type in FAMILIES)
        assert (row.how == "refused") is (bool(row.refusal) and row.model_type not in FAMILIES)
        assert row.num_params > 0 or row.how == "refused", row.model_type


def test_what_cannot_be_trained_is_refused_with_its_reason():
    rows = {row.model_type: row for row in stored_rows()}
    for model_type, reason in {**UNTRAINABLE, **UNPLANNABLE}.items():
        assert rows[model_type].refusal.endswith(reason)


def test_the_counts_are_those_of_the_table():
    found = Counter(line.split(" | ")[1] for line in table().splitlines()[2:])
    last = {line.split(" | ")[0].strip("| "): line.split(" | ")[3].strip("| ") for line in counts().splitlines()[2:]}
    assert {how: int(last[how]) for how in found} == found
    assert int(last["all"]) == found.total() == len(FILE.read_text(encoding="utf-8").splitlines()) - 1


@pytest.mark.sweep
def test_every_type_of_transformers_is_planned_as_the_table_says_with_its_own_number_of_parameters():
    """Half a minute of processor time; ``python tests/tools/every_model_type.py`` writes the table."""
    pytest.importorskip("transformers")
    from tools.every_model_type import measured_rows

    now, stored = measured_rows(), stored_rows()
    assert [(row.model_type, row.takes, row.class_name, row.num_params) for row in now] == [
        (row.model_type, row.takes, row.class_name, row.num_params) for row in stored
    ]
    traced = [row for row in now if row.model_type not in FAMILIES]
    refusals = {row.model_type: row.refusal for row in stored}
    assert {row.model_type: row.refusal for row in traced} == {
        row.model_type: refusals[row.model_type] for row in traced
    }
