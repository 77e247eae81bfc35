"""What gloo's threads hold of a message that is there already."""

import time

import torch.distributed as dist

REST_SECONDS = 0.003


def let_go_of_messages() -> None:
    """Let gloo's own threads forget a message before its receiver goes on: they hold its tensors for a moment after
    they have said that it is there, or for longer where they have to wait for the processor, as no card's would."""
    wait = dist.Work.wait

    def wait_and_rest(self: dist.Work, *args: object) -> object:
        found = wait(self, *args)
        time.sleep(REST_SECONDS)
        return found

    dist.Work.wait = wait_and_rest
