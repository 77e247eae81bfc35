"""train.py for TRL: its own script, with the callback that no key of it asks for.

``trl/scripts/sft.py`` and its like (TRL 1.16.0) take their trainer out of ``trl`` when ``main`` runs, and give it no
callbacks.
"""

from collections.abc import Sequence

from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.task_choices import TaskKind

TRAINERS = {
    None: "SFTTrainer",
    TaskKind.DPO: "DPOTrainer",
    TaskKind.KTO: "KTOTrainer",
    TaskKind.REWARD: "RewardTrainer",
    TaskKind.GRPO: "GRPOTrainer",
}
PROGRAM = '''
import trl
from transformers import EarlyStoppingCallback
from trl.scripts import {script}


class StoppedEarly(trl.{trainer}):
    """Evaluations without a lower loss end the run."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.add_callback({callback})


if __name__ == "__main__":
    trl.{trainer} = StoppedEarly  # which the script asks trl for
    {script}.main(*{script}.make_parser().parse_args_and_config(fail_with_unknown_args=False))
'''


def trl_script_text(head: Sequence[str], kind: TaskKind | None, evaluation: Evaluation | None) -> str:
    """The program; ``head`` are lines for its docstring's place."""
    comments = "".join(f"# {line}\n" for line in head)
    return comments + PROGRAM.lstrip("\n").format(
        script="sft" if kind is None else kind.value, trainer=TRAINERS[kind], callback=stopping_callback(evaluation)
    )


def stopping_callback(evaluation: Evaluation | None) -> str | None:
    """The call of transformers' ``EarlyStoppingCallback``; None where nothing ends the run early."""
    if evaluation is None or evaluation.early_stopping_patience is None:
        return None
    words = [f"early_stopping_patience={evaluation.early_stopping_patience}"]
    if evaluation.early_stopping_threshold:
        words.append(f"early_stopping_threshold={evaluation.early_stopping_threshold}")
    return f"EarlyStoppingCallback({', '.join(words)})"
