"""Reward functions are the user's own code: found by what they take, checked in what they return."""

import asyncio
import inspect
from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan_trainer.trl_training.rewards import reward_functions

GOOD = """
from statistics import mean

def length(completions, **rest):
    return [_size(one) for one in completions]

def right(completions, solution, **rest):
    return [None if truth is None else float(truth in one) for one, truth in zip(completions, solution)]

async def slow(completions, **rest):
    return [2.5] * len(completions)

def _size(completion):
    return len(completion)

def helper(text):
    return text
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "rewards.py"
    path.write_text(text)
    return path


def test_functions_that_take_completions_are_the_rewards_in_the_order_of_the_file(tmp_path: Path):
    found = reward_functions(written(tmp_path, GOOD))
    assert [function.__name__ for function in found] == ["length", "right", "slow"]
    given = {"prompts": ["p", "p"], "completions": ["ab", "abc"], "solution": ["b", None]}
    assert found[0](**given) == [2.0, 3.0]
    assert found[1](**given) == [1.0, None]
    assert inspect.iscoroutinefunction(found[2])
    assert asyncio.run(found[2](**given)) == [2.5, 2.5]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import nothing_of_this_name", "cannot be run: ModuleNotFoundError in line 1: No module named"),
        ("x = 1\ndef f(:", "cannot be run: SyntaxError in line 2: "),
        ("raise SystemExit(3)", "cannot be run: SystemExit in line 1: 3"),
        ("def f(texts): return []", "has no reward function: a function of the file's own that takes completions"),
        ("from os.path import join as f", "has no reward function"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, sentence: str):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as found:
        reward_functions(path)
    assert str(found.value).startswith(f"--rewards {path} ")
    assert sentence in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("1 / 0", "f failed: ZeroDivisionError in line 2: division by zero"),
        ("return [1.0]", "f returned 1 rewards for 2 answers; a list with one for each is needed"),
        ("return 1.0", "f returned 1 rewards for 2 answers"),
        ("return [1.0, 'good']", "f returned 'good' as a reward; a number or None is needed"),
    ],
)
def test_a_function_that_fails_is_one_sentence(tmp_path: Path, body: str, sentence: str):
    path = written(tmp_path, f"def f(completions, **rest):\n    {body}\n")
    [function] = reward_functions(path)
    with pytest.raises(InputError, match="--rewards") as found:
        function(completions=["a", "b"], prompts=["p", "p"])
    assert str(found.value) == f"--rewards {path}: {sentence}" or sentence in str(found.value)
