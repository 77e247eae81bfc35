"""Nothing is compiled, and no lock of a build is waited for: a killed build leaves one that lasts for ever."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.rehearse.shims import NoAdam
from vlmplan_trainer.script_rehearsal.mode import place_in_script

IN_PLACE = ("cpu_adam", "cpu_adagrad", "cpu_lion", "fused_adam", "fused_lion")
"""DeepSpeed's kernels that update weights and states where they are, and allocate nothing (``csrc/adam``,
``csrc/adagrad``, ``csrc/lion``, 0.19.8)."""
SHARED_MEMORY = "deepspeed_shm_comm"
"""Collectives of CPU ranks by shared memory, which DeepSpeed builds when it starts (``build_shm_op``,
``comm/torch.py``); without it they go through torch's process group."""
AS_IT_IS = "torch.compile is off: what it would fuse is rehearsed operation by operation, so its peak may be lower"


@contextmanager
def compiling_nothing(say: Callable[[str], None]) -> Iterator[None]:
    """In place of DeepSpeed's kernels that update in place stands what does nothing; other builds fail with a note, as
    they do on a machine without a compiler."""
    import deepspeed.ops
    import torch.utils.cpp_extension as extensions
    from deepspeed.ops.op_builder.builder import OpBuilder

    def load(builder: Any, verbose: bool = False) -> Any:
        if builder.name in IN_PLACE:
            return NoAdam()
        return refuse(builder.name)

    def refuse(name: Any = "", *args: Any, **kwargs: Any) -> Any:
        say(f"it would compile {name}: a rehearsal compiles nothing, so the script goes on without, if it can")
        raise RuntimeError(f"{name} is not compiled in a rehearsal")

    compile_with_torch: Any = torch.compile

    def compiled(*args: Any, **kwargs: Any) -> Any:
        if place_in_script()[0]:  # libraries compile what may never run
            say(AS_IT_IS)
        return compile_with_torch(*args, **kwargs)

    deepspeed.ops.__compatible_ops__[SHARED_MEMORY] = False
    with ExitStack() as stack:
        stack.enter_context(replaced(OpBuilder, "load", load))
        stack.enter_context(replaced(torch, "compile", compiled))
        for build in ("load", "load_inline", "_jit_compile"):
            stack.enter_context(replaced(extensions, build, refuse))
        yield
