"""Rehearse one rank of a plan with a task: ``python -m vlmplan_trainer.task_rehearsal``, a request on standard
input, the answer on standard output.

The request is that of ``vlmplan_trainer.rehearse``, with the card as scripts have it and a temporary folder; so is the
answer.
"""

import os
import sys
from pathlib import Path
from typing import Any

from vlmplan_trainer.answering import Answering, say_phase_begins


def main() -> int:
    answering = Answering()
    answering.end(answering.answer(_rehearsed))
    return 0


def _rehearsed(request: dict[str, Any]) -> dict[str, Any]:
    from vlmplan.plan import plan_from_json
    from vlmplan_trainer.script_rehearsal.launchers import World, rank_variables
    from vlmplan_trainer.script_rehearsal.side_effects import set_environment

    folder, plan = Path(request["folder"]), plan_from_json(request["plan"])
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # nothing is compiled, so that no compiler need be imported
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a card that is there is not asked
    os.environ["DS_ACCELERATOR"] = "cpu"  # what DeepSpeed finds by itself when it is imported
    set_environment(folder, allows_network=False)
    os.chdir(folder)
    world = World(rank=request["rank"], gpus_per_node=plan.hardware.num_gpus, num_nodes=1)
    os.environ.update(rank_variables(world, is_launched=plan.has_ranks))
    from vlmplan_trainer.rehearse.samples import ImageSpec, Samples
    from vlmplan_trainer.script_rehearsal.queries import card_from_json
    from vlmplan_trainer.task_rehearsal.run import TaskRequest, rehearse_task

    samples = dict(request["samples"])
    image = samples.pop("image")
    samples.pop("sequences", None)
    return rehearse_task(
        TaskRequest(
            plan=plan,
            samples=Samples(**samples, image=None if image is None else ImageSpec(**image)),
            rank=world.rank,
            num_steps=request.get("num_steps", 3),
            card=card_from_json(request["card"], index=world.rank, count=world.num_ranks),
            folder=folder,
            say=say_phase_begins,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
