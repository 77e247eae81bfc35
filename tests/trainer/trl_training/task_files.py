"""Preferences, prompts and reward functions for tiny models, as users write them."""

import json
from pathlib import Path

from vlmplan_trainer.data.dummy import coloured_png

COLOURS = {"red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}
REWARDS = """
def shortness(completions, **columns):
    return [-len(answer[0]["content"]) / 10 for answer in completions]


def names_colour(completions, colour, **columns):
    return [float(colour in answer[0]["content"]) for answer, colour in zip(completions, colour)]


def constant(completions, **columns):
    return [2.5] * len(completions)
"""
"""Three functions, one of which reads a column of the data."""
LINES = 40
"""Samples in each file."""


def said(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def preferences(folder: Path) -> Path:
    """Pairs of text whose answers both fill a row of 64 tokens."""
    lines = [
        {
            "prompt": said("user", f"What is {i % 10} and {i % 10}?"),
            "chosen": said("assistant", f"The answer is {i % 10}. " * 20),
            "rejected": said("assistant", "There are two circles on the left. " * 20),
        }
        for i in range(LINES)
    ]
    return written(folder / "preferences.jsonl", lines)


PAIR_TOKENS = 95


def equal_pairs(folder: Path) -> Path:
    """Pairs of text whose rows have ``PAIR_TOKENS`` each, with nothing behind them."""
    line = {
        "prompt": said("user", "What is it?"),
        "chosen": said("assistant", "The answer is four. " * 15),
        "rejected": said("assistant", "The sign says stop. " * 15),
    }
    return written(folder / "pairs.jsonl", [line] * LINES)


def marked_answers(folder: Path) -> Path:
    """Answers of ``PAIR_TOKENS`` with their prompt, of which every other one is good."""
    texts = ("The answer is four. ", "The sign says stop. ")
    lines = [
        {"prompt": said("user", "What is it?"), "completion": said("assistant", texts[i % 2] * 15), "label": i % 2 == 0}
        for i in range(LINES)
    ]
    return written(folder / "marked.jsonl", lines)


def prompts(folder: Path, *, sees: bool) -> Path:
    """Questions, each with a colour in a column of its own; ``sees``: and with an image of it."""
    lines = []
    for i in range(LINES):
        name, colour = list(COLOURS.items())[i % len(COLOURS)]
        line = {"prompt": said("user", "<image>\nWhich colour is it?" if sees else "What is it?"), "colour": name}
        if sees:
            (folder / f"{name}.png").write_bytes(coloured_png(colour, (56, 56)))
            line["images"] = [f"{name}.png"]
        lines.append(line)
    return written(folder / f"prompts{'-seen' if sees else ''}.jsonl", lines)


def rewards(folder: Path) -> Path:
    path = folder / "rewards.py"
    path.write_text(REWARDS)
    return path


def written(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path
