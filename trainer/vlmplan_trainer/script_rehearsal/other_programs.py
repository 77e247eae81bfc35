"""Programs that a script starts. A rehearsal cannot redirect what they write or keep them off the network, so it runs
those alone that only read something."""

import errno
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

LOOKING = frozenset(
    "arch cat cc c++ clang clang++ cut date df dirname echo file free g++ gcc getconf grep head hostname id ldconfig "
    "ldd ls lsb_release lscpu lsof lspci nproc nvcc nvidia-smi printenv ps pwd readlink realpath rocm-smi stat sw_vers "
    "sysctl system_profiler tail test true tty uname uptime wc which whoami xpu-smi".split()
)
"""Programs that only tell, as libraries start them to find out where they are; compilers among them, which are asked
for their version: nothing is compiled in a rehearsal."""
TELLING: Mapping[str, frozenset[str]] = {
    "conda": frozenset(("info", "list", "--version")),
    "git": frozenset("branch config describe diff log ls-files remote rev-list rev-parse show status version".split()),
    "ninja": frozenset(("--version",)),
    "numactl": frozenset(("--hardware", "-H", "--show", "-s")),
}
"""Programs that build, install or start others too, and the words with which they only tell: the first, of git the
first that is no option."""
CPUINFO = ("cpuinfo", "cpuinfo.py")
"""The module of py-cpuinfo, which starts itself to ask the processor: DeepSpeed's Adam on the host wants its maker."""
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
    """From now on a program that may write is not found when the script starts it; ``say`` gets a sentence."""

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
    >>> only_looks(["numactl", "--hardware"]), only_looks(["numactl", "-C", "0", "rm", "a"]), only_looks(["env", "rm"])
    (True, False, False)
    """
    program = os.path.basename(words[0]) if words else ""
    if program in SHELLS and len(words) == 3 and words[1] == "-c":
        return not MORE_THAN_WORDS & set(words[2]) and only_looks(shlex.split(words[2]))
    if program == "env":  # else it starts what follows
        return len(words) == 1
    if program == "git":
        return next((word for word in words[1:] if not word.startswith("-")), "version") in TELLING[program]
    if program in TELLING:
        return len(words) > 1 and words[1] in TELLING[program]
    if len(words) == 3 and words[2] == "--json" and Path(words[1]).parts[-2:] == CPUINFO:
        return True
    return program in LOOKING
