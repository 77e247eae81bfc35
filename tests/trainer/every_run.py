"""Tiny Llama and Qwen2-VL with every method and stage that goes with it, as a table. Takes about three minutes:

python tests/trainer/every_run.py FOLDER
"""

import sys
from pathlib import Path

from trainer_runs import Outcome, planned, train_all

from vlmplan_trainer.models.tiny import write_tiny_model

WORDS = ("--dummy-data", "64", "--learning-rate", "1e-2", "--max-steps", "8")
PHASES = ("load", "init", "forward", "backward", "step")


def line(name: str, outcome: Outcome) -> str:
    if outcome.code != 0:
        return f"{name:<22} failed: {str(outcome.code).strip().splitlines()[-1]}"
    errors = " ".join(f"{outcome.error_of(f'{phase}, peak') or 0:+8.1%}" for phase in PHASES)
    return f"{name:<22} {outcome.losses[0]:7.4f} {outcome.losses[-1]:7.4f}  {errors}"


def main(folder: str) -> None:
    root = Path(folder)
    print(f"{'run':<22} {'first':>7} {'last':>7}  " + " ".join(f"{phase:>8}" for phase in PHASES))
    models = {family: write_tiny_model(root / family, family) for family in ("llama", "qwen2_vl")}
    for num_ranks, stages in ((1, ("none",)), (2, ("none", "0", "1", "2", "3"))):
        jobs = {}
        for family, model in models.items():
            for method in ("full", "lora", "qlora"):
                for stage in stages:
                    if (method, stage) != ("qlora", "3"):
                        fields = {"zero_stage": stage, "method": method, "num_samples": 64}
                        plan = planned(model, num_ranks=num_ranks, global_batch=8, micro_batch=2, **fields)
                        jobs[f"{family}-{method}-{stage}"] = (plan, WORDS)
        for name, outcome in train_all(jobs, root, num_ranks=num_ranks).items():
            print(line(name, outcome), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
