"""What is replaced is so for everybody who imported it, and only for a while."""

import sys
from types import ModuleType

import pytest

from vlmplan_trainer.rehearse.replaced import replaced_wherever_imported


def test_names_taken_into_other_modules_are_replaced_too(monkeypatch: pytest.MonkeyPatch):
    def written() -> str:
        return "written"

    def counted() -> str:
        return "counted"

    owner, user = ModuleType("owner"), ModuleType("user")
    owner.save, user.save_by_another_name = written, written  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "owner", owner)
    monkeypatch.setitem(sys.modules, "user", user)
    with replaced_wherever_imported(owner, "save", counted):
        assert owner.save() == user.save_by_another_name() == "counted"
    assert owner.save() == user.save_by_another_name() == "written"
