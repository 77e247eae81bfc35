"""Runs on CPU ranks that go on when gloo's threads have let go of a message, so that their bytes are a card's."""

import torch.distributed as dist

from vlmplan_trainer.gloo_threads import rest


def let_go_of_messages() -> None:
    """From now on whoever has waited for a message goes on when gloo's threads have let go of it."""
    wait = dist.Work.wait

    def wait_and_rest(self: dist.Work, *args: object) -> object:
        found = wait(self, *args)
        rest()
        return found

    dist.Work.wait = wait_and_rest
