"""Programs that a script starts: what they write and whom they reach nobody could keep from it, so only those run that
look at something."""

import errno
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LOOKING = frozenset(
    "arch cat cc c++ clang clang++ conda cut date df dirname echo env file free g++ gcc getconf grep head hostname id "
    "ldconfig ldd ls lsb_release lscpu lsof lspci nproc ninja numactl nvcc nvidia-smi printenv ps pwd readlink "
    "realpath rocm-smi stat sw_vers sysctl system_profiler tail test true tty uname uptime wc which whoami "
    "xpu-smi".split()
)
"""Programs that only tell, as libraries start them to find out where they are; compilers among them, which are asked
for their version: nothing is compiled in a rehearsal."""
CPUINFO = ("cpuinfo", "cpuinfo.py")
"""The module of py-cpuinfo, which starts itself to ask the processor: DeepSpeed's Adam on the host wants its maker."""
LOOKING_GIT = frozenset(
    "branch config describe diff log ls-files remote rev-list rev-parse show status version".split()
)
LONGEST_LINE = 120
SHELLS = ("sh", "bash", "dash", "zsh")
MORE_THAN_WORDS = frozenset("<>|;&$`\\\n(){}")
"""What makes a line of a shell more than a program with its arguments."""
STARTS: dict[str, Callable[[Any], Any]] = {
    "subprocess.Popen": lambda args: args[1],
    "os.system": lambda args: ["sh", "-c", os.fsdecode(args[0])],
    "os.posix_spawn": lambda args: args[1],
    "os.spawn": lambda args: args[2],
    "os.exec": lambda args: args[1],
}
"""Events of ``sys.addaudithook``, and where the words of the command are among their arguments."""


def refuse_other_programs(say: Callable[[str], None]) -> None:
    """Make programs that may write not there for the script from now on; ``say`` gets a sentence."""

    def audit(event: str, args: Any) -> None:
        if event not in STARTS:
            return
        found = STARTS[event](args)
        words = [found] if isinstance(found, (str, bytes, os.PathLike)) else list(found)
        command = [os.fsdecode(word) for word in words]
        if only_looks(command):
            return
        line = shlex.join(command)[:LONGEST_LINE]
        say(f"it would start {line}, which a rehearsal does not: --allow-programs lets it")
        raise FileNotFoundError(errno.ENOENT, "a rehearsal starts no other programs; --allow-programs lets it", line)

    sys.addaudithook(audit)


def only_looks(words: Sequence[str]) -> bool:
    """Whether a command only tells something.

    >>> only_looks(["git", "rev-parse", "HEAD"]), only_looks(["git", "pull"])
    (True, False)
    >>> only_looks(["python3", "site-packages/cpuinfo/cpuinfo.py", "--json"]), only_looks(["python3", "cpuinfo.py"])
    (True, False)
    >>> only_looks(["/bin/sh", "-c", "nvidia-smi -L"]), only_looks(["sh", "-c", "echo a > b"])
    (True, False)
    """
    program = os.path.basename(words[0]) if words else ""
    if program in SHELLS and len(words) == 3 and words[1] == "-c":
        return not MORE_THAN_WORDS & set(words[2]) and only_looks(shlex.split(words[2]))
    if program == "git":
        return next((word for word in words[1:] if not word.startswith("-")), "version") in LOOKING_GIT
    if len(words) == 3 and words[2] == "--json" and Path(words[1]).parts[-2:] == CPUINFO:
        return True
    return program in LOOKING
