"""Every command in a terminal of 80 columns: no line is wider, a row of a table is one line, nothing is lost unsaid."""

import json
import re
from pathlib import Path

import pytest

from cli_calls import TINY, Call, call, folder_of
from vlmplan.render.lines import cell_width

WIDTH = 80
LONG = "a-model-of-somebody-with-a-name-as-long-as-names-of-models-can-be-on-the-hub-v1.5"
MINE = ("--catalog", "mine.yaml")
PROVIDER = "a-provider-whose-name-is-longer-than-any"
CATALOG = {
    "offers": [
        {
            "gpu": "rtx-4090",
            "num_gpus": count,
            "provider": PROVIDER,
            "sku": f"{count}x RTX 4090 [in the secure part of the cloud]",
            "region": "a-region-in-the-south-of-the-east",
            "pricing": "on_demand",
            "usd_per_hour": 123_456.78 * count,
            "as_of": "2026-11-01",
        }
        for count in (1, 2, 8)
    ]
}
"""Long names and prices of six digits."""
SETUP = ("--model", f"./{LONG}", "--gpu", "rtx-4090:2")
COMMANDS = {
    "recommend": ("recommend", "--model", "qwen2-vl-2b", "--pareto"),
    "recommend, long": (
        *("recommend", "--model", f"./{LONG}", *MINE, "--provider", PROVIDER, "--pareto", "--out", "plans"),
    ),
    "recommend, nothing fits": ("recommend", "--model", "llama-3.1-70b", "--gpu", "t4:1", "--gpu", "rtx-3060-12gb:2"),
    "estimate": ("estimate", "--model", "qwen2-vl-2b", "--gpu", "rtx-4090:2", "--method", "lora", "--scaling"),
    "estimate, long": ("estimate", *SETUP, "--num-nodes", "4", *MINE, "--scaling"),
    "estimate, does not fit": ("estimate", "--model", "mixtral-8x7b", "--gpu", "rtx-4090", "--method", "qlora"),
    "advise": ("advise", "--model", "qwen2-vl-2b", "--gpu", "rtx-4090:2"),
    "advise, long": ("advise", "--model", f"./{LONG}", *MINE, "--provider", PROVIDER),
    "buy": ("buy", "--gpu", "rtx-5090:2", "--hours-per-week", "20"),
    "buy, long": ("buy", "--gpu", "rtx-4090:2", "--hours-per-week", "20", "--price", "123456", *MINE),
    "gpus": ("gpus",),
    "gpus, offers": ("gpus", "--offers", *MINE),
    "models": ("models",),
    "model": ("models", "llava-onevision-7b"),
    "model, long": ("models", f"./{LONG}"),
    "models of a card": ("models", "--gpu", "rtx-4060", "--max-params", "2B"),
    "compare": ("estimate", *SETUP, "--compare", "zero"),
    "explain": ("explain", "reduce_bucket_size", *SETUP),
    "keys": ("explain",),
    "launch": ("launch", *SETUP, "--output-dir", "run", "--dry-run", "--dummy-data", "4"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _place(isolated: None) -> None:
    folder_of(LONG, TINY)
    Path("mine.yaml").write_text(json.dumps(CATALOG))


def at_width(monkeypatch: pytest.MonkeyPatch, columns: int | None, *words: str) -> Call:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    return call(*words, *(("--force",) if "--out" in words else ()))


_NARROW: dict[str, Call] = {}


def narrow(monkeypatch: pytest.MonkeyPatch, name: str) -> Call:
    """The command in a terminal of 80 columns, called once for all tests."""
    if name not in _NARROW:
        _NARROW[name] = at_width(monkeypatch, WIDTH, *COMMANDS[name])
    return _NARROW[name]


SLOW = ("recommend", "models of a card", "recommend, nothing fits", "advise, long", "estimate, does not fit")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.sweep] if name in SLOW else []) for name in COMMANDS]
)
def test_no_line_is_wider_than_the_terminal(name: str, monkeypatch: pytest.MonkeyPatch):
    found = narrow(monkeypatch, name)
    assert found.out
    too_wide = [line for line in found.out.splitlines() if cell_width(line) > WIDTH]
    # a word of a command is never broken: pasted, it would be two
    assert [line for line in too_wide if len(line.removesuffix("\\").split()) > 1 or name != "launch"] == []


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name",
    ["advise", "gpus", "models", "estimate", "recommend, long", pytest.param("recommend", marks=pytest.mark.sweep)],
)
def test_rows_of_the_main_tables_are_lines_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch):
    whole = at_width(monkeypatch, None, *COMMANDS[name]).out.splitlines()
    lines = narrow(monkeypatch, name).out.splitlines()
    wide_rows = [line for line in whole if re.search(r"\S  +\S.*\S  +\S", line) and not line.startswith(" ")]
    assert wide_rows
    for row in wide_rows:
        first = re.split("  +", row)[0]
        assert any(line.startswith(first) for line in lines), row


@pytest.mark.sweep
def test_headlines_of_an_estimate_are_one_line_each(monkeypatch: pytest.MonkeyPatch):
    lines = narrow(monkeypatch, "estimate").out.splitlines()
    assert lines[0].startswith("qwen2-vl-2b: ")
    assert any(re.match(r"(fits|tight|does not fit): .* GiB (free|short);?$", line) for line in lines[:4])


def test_options_of_every_command_keep_to_the_terminal(monkeypatch: pytest.MonkeyPatch):
    for command in ("recommend", "advise", "estimate", "rehearse", "launch"):
        shown = at_width(monkeypatch, WIDTH, command, "--help-all").out
        assert [line for line in shown.splitlines() if len(line) > WIDTH] == []
