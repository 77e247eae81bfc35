"""Runs on CPU ranks that go on when gloo's threads have let go of a message, so that their bytes are a card's."""

from typing import Any

import torch.distributed as dist

from vlmplan_trainer.gloo_threads import rest


def let_go_of_messages() -> None:
    """From now on whoever has waited for a message goes on when gloo's threads have let go of it, and what DDP sends
    at its start, for which nothing waits in Python."""
    wait, broadcast = dist.Work.wait, dist._broadcast_coalesced

    def wait_and_rest(self: dist.Work, *args: object) -> object:
        found = wait(self, *args)
        rest()
        return found

    def broadcast_and_rest(*args: Any) -> None:
        broadcast(*args)
        rest()

    dist.Work.wait = wait_and_rest
    dist._broadcast_coalesced = broadcast_and_rest
