"""Names that the shell completes: of commands and options by click, of models and GPUs by us."""

import pytest
from click.shell_completion import BashComplete

from vlmplan.cli.command_line import cli


def completed(*words: str) -> list[str]:
    """What is offered for the last of these words behind ``vlmplan``."""
    *before, begun = words
    found = BashComplete(cli, {}, "vlmplan", "_VLMPLAN_COMPLETE").get_completions(before, begun)
    return [item.value for item in found]


@pytest.mark.parametrize("command", ["recommend", "estimate", "launch", "check"])
def test_models_and_gpus_are_completed(command: str):
    assert completed(command, "--model", "qwen2-vl-") == ["qwen2-vl-2b", "qwen2-vl-72b", "qwen2-vl-7b"]
    assert completed(command, "--gpu", "rtx-5090") == ["rtx-5090", *completed(command, "--gpu", "rtx-5090-")]
    assert completed(command, "--gpu", "loc") == ["local"]


def test_what_begins_no_alias_is_completed_as_a_file():
    found = BashComplete(cli, {}, "vlmplan", "_VLMPLAN_COMPLETE").get_completions(["estimate", "--model"], "./mo")
    assert [(item.value, item.type) for item in found] == [("./mo", "file")]
