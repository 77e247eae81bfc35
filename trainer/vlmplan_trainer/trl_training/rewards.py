"""Reward functions from a Python file of the user's, which is run as it is: nothing of it is downloaded or checked.

A reward function is a function of the file's own, not a borrowed one, that takes ``completions``. GRPO calls it with
``prompts``, ``completions``, ``completion_ids``, whatever else stands beside a prompt in the data, and more, all as
keywords and as lists with an entry for each answer; it returns as many numbers, None for an answer that it has no
opinion of (``_calculate_rewards`` in ``trl/trainer/grpo_trainer.py`` 1.16). What several functions return is added up.
"""

import functools
import importlib.util
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from vlmplan.errors import InputError
from vlmplan.units import counted

TAKES = "completions"
RewardFunction = Callable[..., Any]


def reward_functions(file: Path) -> list[RewardFunction]:
    """The functions of the file, in its order.

    Raises InputError where the file cannot be run or has none; so does a function that fails, when it is called.
    """
    module = _run(file)
    own = [
        value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    found = [function for function in own if TAKES in inspect.signature(function).parameters]
    if not found:
        raise InputError(
            f"--rewards {file} has no reward function: a function of the file's own that takes {TAKES} and returns a "
            f"number for each"
        )
    return [_explained(function, file) for function in found]


def _run(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"vlmplan_rewards_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError(f"--rewards {file} is no Python file (NAME.py)")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"--rewards {file} cannot be run: {_said(error, file)}") from None
    return module


def _explained(function: RewardFunction, file: Path) -> RewardFunction:
    """``function``, whose failures are sentences."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(**given: Any) -> Any:
            try:
                return _checked(await function(**given), given[TAKES], function, file)
            except Exception as error:
                raise _failure(error, function, file) from None

        return awaited

    @functools.wraps(function)
    def called(**given: Any) -> Any:
        try:
            return _checked(function(**given), given[TAKES], function, file)
        except Exception as error:
            raise _failure(error, function, file) from None

    return called


def _failure(error: Exception, function: RewardFunction, file: Path) -> InputError:
    if isinstance(error, InputError):
        return error
    return InputError(f"--rewards {file}: {function.__name__} failed: {_said(error, file)}")


def _checked(rewards: Any, completions: list[Any], function: RewardFunction, file: Path) -> list[float | None]:
    """Raises InputError unless ``rewards`` are a number or None for each of the completions."""
    listed = list(rewards) if hasattr(rewards, "__iter__") else [rewards]
    if len(listed) != len(completions):
        raise InputError(
            f"--rewards {file}: {function.__name__} returned {counted(len(listed), 'reward')} for "
            f"{counted(len(completions), 'answer')}; a list with one for each is needed"
        )
    try:
        return [None if reward is None else float(reward) for reward in listed]
    except (TypeError, ValueError):
        wrong = next(reward for reward in listed if reward is not None and not _is_number(reward))
        raise InputError(
            f"--rewards {file}: {function.__name__} returned {wrong!r:.60} as a reward; a number or None is needed"
        ) from None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _said(error: BaseException, file: Path) -> str:
    """The error in a few words, with the last line of ``file`` that it went through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    if isinstance(error, SyntaxError) and error.filename == str(file):
        lines.append(error.lineno)
    where = f" in line {lines[-1]}" if lines else ""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}{where}" + (f": {message}" if message else "")
