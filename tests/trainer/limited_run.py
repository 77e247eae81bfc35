"""One run of the trainer in a process that may take only so many MiB more than the libraries do once imported.

python tests/trainer/limited_run.py MIB ARGUMENTS_OF_THE_TRAINER...
"""

import resource
import sys

from vlmplan_trainer import run as _imported  # noqa: F401
from vlmplan_trainer.__main__ import main
from vlmplan_trainer.out_of_memory import _proc_bytes


def limited(mib: int) -> None:
    """Linux counts private writable memory here, and refuses what would be more (man 2 getrlimit, RLIMIT_DATA)."""
    taken = _proc_bytes("/proc/self/status")["VmData"]
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (taken + mib * 2**20, hard))


if __name__ == "__main__":
    limited(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
