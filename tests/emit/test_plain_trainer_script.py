"""train.py beside training_args.yaml."""

import ast

import pytest

from model_table import packaged_config
from vlmplan.emit.plain_trainer_script import script_text
from vlmplan.recipe import Recipe
from vlmplan.recipe.evaluation import Evaluation, Moment
from vlmplan.workload import ModelFiles, Workload

MODEL = ModelFiles(id="llama-3.2-1b", config=packaged_config("llama-3.2-1b"), hub_id="meta-llama/Llama-3.2-1B")


@pytest.mark.parametrize(
    ("evaluation", "has_samples", "is_at_the_end"),
    [
        (None, False, False),
        (Evaluation(batch=1, every=10), True, False),
        (Evaluation(batch=1, every=10, after_training=True), True, True),
        (Evaluation(batch=1, every=Moment.END), True, True),
    ],
)
def test_a_program_has_samples_for_what_its_arguments_evaluate(evaluation, has_samples, is_at_the_end):
    tree = ast.parse(script_text([], Recipe(evaluation=evaluation), Workload(model=MODEL)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (trainer,) = (call for call in calls if ast.unparse(call.func) == "Trainer")
    assert ("eval_dataset" in {keyword.arg for keyword in trainer.keywords}) == has_samples
    assert "callbacks" not in {keyword.arg for keyword in trainer.keywords}
    assert ("trainer.evaluate" in {ast.unparse(call.func) for call in calls}) == is_at_the_end


def test_a_program_has_the_callback_by_which_evaluations_end_its_run():
    evaluation = Evaluation(batch=1, every=10, early_stopping_patience=3, early_stopping_threshold=0.5)
    tree = ast.parse(script_text([], Recipe(evaluation=evaluation), Workload(model=MODEL)))
    (trainer,) = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Trainer")
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in trainer.keywords}
    assert given["callbacks"] == "[EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=0.5)]"
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names}
    assert "EarlyStoppingCallback" in imported
