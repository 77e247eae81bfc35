"""DeepSpeed's own parser as the referee."""

import copy
import os

import pytest


class Reader:
    """``DeepSpeedConfig`` for any number of ranks."""

    def __call__(self, config: dict, num_gpus: int = 1):
        return self.untouched(copy.deepcopy(config), num_gpus)

    def untouched(self, config: dict, num_gpus: int = 1):
        """Of this very dictionary, which DeepSpeed may change."""
        from deepspeed import comm
        from deepspeed.runtime.config import DeepSpeedConfig

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(comm, "get_rank", lambda *_: 0)
            patch.setattr(comm, "get_world_size", lambda *_: num_gpus)
            return DeepSpeedConfig(config)


@pytest.fixture(scope="session")
def deepspeed_reads() -> Reader:
    os.environ["DS_ACCELERATOR"] = "cpu"
    pytest.importorskip("deepspeed")
    return Reader()
