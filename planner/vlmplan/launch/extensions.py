"""DeepSpeed's kernels that are compiled at their first use on a machine, and what a killed build leaves behind.

``torch.utils.cpp_extension`` builds each in a folder of its own and holds a file ``lock`` there meanwhile
(``utils/file_baton.py``). A build that is killed leaves it, and every later start waits for ever that it goes.
"""

import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from vlmplan.plan import Plan
from vlmplan.recipe.choices import Offload

LOCK = "lock"
CPU_ADAM, ASYNC_IO = "cpu_adam", "async_io"
INSTALLED = {CPU_ADAM: "ops/adam/cpu_adam_op*.so", ASYNC_IO: "ops/aio/async_io_op*.so"}
"""Where in DeepSpeed's package a kernel is that was compiled when DeepSpeed was installed (``DS_BUILD_...``)."""


def compiled_kernels(plan: Plan) -> list[str]:
    """The kernels that this plan's run loads on the host."""
    recipe = plan.recipe
    names = [CPU_ADAM] if recipe.offload_optimizer is not Offload.NONE else []
    return names + ([ASYNC_IO] if Offload.NVME in (recipe.offload_optimizer, recipe.offload_params) else [])


def held_locks(plan: Plan, environment: Mapping[str, str]) -> list[Path]:
    """The lock files that a run of this plan would wait for."""
    return [lock for name in compiled_kernels(plan) if not _is_installed(name) for lock in _locks(name, environment)]


def _locks(name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Locks in the folders in which ``_get_build_directory`` of torch builds: TORCH_EXTENSIONS_DIR, or one by Python
    and kind of torch."""
    own = environment.get("TORCH_EXTENSIONS_DIR")
    if own is not None:
        yield from Path(own).glob(f"{name}/{LOCK}")
        return
    python = f"py{sys.version_info.major}{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"
    yield from sorted(_cache(environment).glob(f"torch_extensions/{python}_*/{name}/{LOCK}"))


def _cache(environment: Mapping[str, str]) -> Path:
    """The user's folder for caches (``torch/_appdirs.py``, ``user_cache_dir``)."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _is_installed(name: str) -> bool:
    spec = find_spec("deepspeed")
    places = () if spec is None else spec.submodule_search_locations or ()
    return any(True for place in places for _ in Path(place).glob(INSTALLED[name]))


def lock_sentence(lock: Path) -> str:
    """What to do about it."""
    return (
        f"the run would wait until {lock} is gone, which a build of DeepSpeed's {lock.parent.name} that was killed "
        f"leaves behind; delete it, if no other run is building now"
    )
