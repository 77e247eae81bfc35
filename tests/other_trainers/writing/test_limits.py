"""What other trainers cannot do, and how that is said."""

import pytest

from vlmplan.other_trainers.writing import Tool
from vlmplan.other_trainers.writing.choice import limits_of


@pytest.mark.parametrize("tool", Tool)
def test_every_limit_is_said(tool):
    for limit in limits_of(tool):
        assert limit.sentence, limit.field
        assert limit.source, limit.field
