"""What takes long says on a terminal that it goes on, and nothing beside JSON."""

import contextlib
import io
from pathlib import Path

import pytest

from cli_calls import folder_of
from vlmplan.cli.command_line import run
from vlmplan.render import progress

TINY_LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
TINY_LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
SETUP = ("--gpu", "rtx-4060:1", "--seq-len", "64")
TRAIN = "model_name_or_path: ./tiny\nstage: sft\nfinetuning_type: lora\nbf16: true\noutput_dir: out\n"
COMMANDS = {
    "comparing": ("estimate", "--model", "./tiny", *SETUP, "--compare", "checkpointing"),
    "looking for changes": ("check", "train.yaml", *SETUP, "--fix"),
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("work", COMMANDS)
def test_a_terminal_is_told_that_it_goes_on_and_not_beside_json(work: str, monkeypatch: pytest.MonkeyPatch):
    folder_of("tiny", TINY_LLAMA)
    Path("train.yaml").write_text(TRAIN, encoding="utf-8")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "WAITING_SECONDS", 0.0)

    def said(stream: io.StringIO, *words: str) -> bool:
        with contextlib.redirect_stderr(stream), contextlib.redirect_stdout(io.StringIO()):
            run((*COMMANDS[work], *words))
        return work in stream.getvalue()

    assert said(Terminal())
    assert not said(Terminal(), "--json")
