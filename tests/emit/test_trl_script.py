"""train.py for TRL where evaluations may end the run."""

import json
import subprocess
import sys

import pytest

from vlmplan.emit.trl_script import TRAINERS, trl_script_text
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.task_choices import TaskKind

STOPS = Evaluation(batch=1, every=10, early_stopping_patience=3, early_stopping_threshold=0.25)
TRL = """
class {trainer}:
    def __init__(self, model, *, args):
        self.args, self.callbacks = args, []

    def add_callback(self, callback):
        self.callbacks.append(callback)
"""
SCRIPT = """
import json

def main(script_args, training_args, model_args, dataset_args):
    from trl import {trainer}

    (callback,) = {trainer}("model", args=training_args).callbacks
    print(json.dumps([training_args, callback.early_stopping_patience, callback.early_stopping_threshold]))

def make_parser():
    class Parser:
        def parse_args_and_config(self, *, fail_with_unknown_args):
            return None, "arguments", None, None
    return Parser()
"""
"""As the scripts of TRL 1.16.0 are: the trainer is asked of ``trl`` when ``main`` runs."""


@pytest.mark.parametrize("kind", TRAINERS)
def test_the_trainer_that_trls_own_script_makes_has_the_callback(kind, tmp_path):
    (tmp_path / "trl" / "scripts").mkdir(parents=True)
    (tmp_path / "trl" / "__init__.py").write_text(TRL.format(trainer=TRAINERS[kind]), encoding="utf-8")
    (tmp_path / "trl" / "scripts" / "__init__.py").write_text("", encoding="utf-8")
    module = f"{'sft' if kind is None else kind.value}.py"
    (tmp_path / "trl" / "scripts" / module).write_text(SCRIPT.format(trainer=TRAINERS[kind]), encoding="utf-8")
    (tmp_path / "transformers.py").write_text(
        "class EarlyStoppingCallback:\n    def __init__(self, **words):\n        self.__dict__ |= words\n",
        encoding="utf-8",
    )
    (tmp_path / "train.py").write_text(trl_script_text(["written by a test"], kind, STOPS), encoding="utf-8")
    run = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == ["arguments", 3, 0.25]


def test_every_task_of_trl_has_its_trainer():
    assert set(TRAINERS) == {None, *TaskKind}
