"""Triton, whose kernels are compiled for a card: here each is a function that does nothing.

A kernel fills tensors that it is given and allocates none of them (only the host's side of a library does, with torch),
so without it every byte is as with it. What it would have computed is not known afterwards, and its FLOPs are not
counted. Where Triton is installed its own launches are put out of the way; where it is not, as beside a torch for CPUs,
there is a package of its name, so that libraries take the same way as on a card: TRL's head, Liger's layers.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.rehearse.values import forget_value

PACKAGE, VERSION = "triton", "3.5.0"
"""Of the Triton that torch 2.13 comes with on Linux, or newer than what libraries ask for."""
NOTE = "Triton's kernels are not run: they fill what they are given, and their FLOPs and seconds are not counted"
LAUNCHING = (("jit", "JITFunction"), ("autotuner", "Autotuner"), ("autotuner", "Heuristics"))
"""Modules of ``triton.runtime`` and their classes that start kernels by ``run`` (Triton 3.5)."""


@contextmanager
def triton_without_kernels(say: Callable[[str], None]) -> Iterator[None]:
    """Within, kernels of Triton do nothing; ``say`` gets a sentence when the first would run."""
    import transformers.utils.import_utils as known
    from torch.utils._triton import has_triton_package

    def launch(*arguments: Any, **named: Any) -> None:
        say(NOTE)
        for value in (*arguments, *named.values()):
            if isinstance(value, FakeTensor):
                forget_value(value)

    with ExitStack() as stack:
        if importlib.util.find_spec(PACKAGE) is not None:
            for module, name in LAUNCHING:
                kind = getattr(importlib.import_module(f"{PACKAGE}.runtime.{module}"), name)
                stack.enter_context(replaced(kind, "run", lambda self, *args, **kwargs: launch(*args, **kwargs)))
        else:
            has_triton_package()  # torch remembers that it is not there for what it compiles itself
            stack.enter_context(_standing_in(launch))
        stack.callback(known.is_triton_available.cache_clear)
        known.is_triton_available.cache_clear()
        yield


@contextmanager
def _standing_in(launch: Callable[..., None]) -> Iterator[None]:
    """Within, ``import triton`` finds a package, and in it whatever is looked for."""
    finder = Finder(launch)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
            del sys.modules[name]


class Finder(MetaPathFinder, Loader):
    """Finds and makes the modules of the package."""

    def __init__(self, launch: Callable[..., None]) -> None:
        self._launch = launch

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        is_ours = fullname == PACKAGE or fullname.startswith(f"{PACKAGE}.")
        return ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return PlaceholderModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in (PACKAGE, f"{PACKAGE}.runtime", f"{PACKAGE}.runtime.jit"):
            module.__dict__.update(_functions(self._launch))
        elif module.__name__ in (f"{PACKAGE}.language", f"{PACKAGE}.language.core"):
            module.__dict__["constexpr"] = Constant


def _placeholder(owner: Any, name: str) -> Any:
    """What ``owner`` has under any name that Python does not ask for itself."""
    if name.startswith("__"):
        raise AttributeError(name)
    made = PlaceholderKind(name, (), {})
    setattr(owner, name, made)
    return made


class PlaceholderModule(ModuleType):
    """A module that has whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return _placeholder(self, name)


class PlaceholderKind(type):
    """A class that stands for a type, a function or a decorator that nothing calls but kernels."""

    def __getattr__(cls, name: str) -> Any:
        return _placeholder(cls, name)

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else super().__call__()

    def __getitem__(cls, item: Any) -> Any:
        return cls


class Constant:
    """``triton.language.constexpr``: a value that kernels are compiled with. The host's side of a library reads it."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Kernel:
    """A function that ``triton.jit`` was put before."""

    def __init__(self, function: Any, launch: Callable[..., None]) -> None:
        self.__name__, self.__doc__ = getattr(function, "__name__", ""), getattr(function, "__doc__", None)
        self.fn, self._launch = function, launch

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._launch

    def run(self, *arguments: Any, **named: Any) -> None:
        self._launch(*arguments, **named)

    warmup = run


def _functions(launch: Callable[..., None]) -> dict[str, Any]:
    """What the host's side of a library calls."""

    def jit(function: Any = None, **named: Any) -> Any:
        make = functools.partial(Kernel, launch=launch)
        return make if function is None else make(function)

    def unchanged(*arguments: Any, **named: Any) -> Any:
        return lambda function: function

    return {
        "__version__": VERSION,
        "jit": jit,
        "autotune": unchanged,
        "heuristics": unchanged,
        "JITFunction": Kernel,
        "cdiv": lambda number, by: -(-number // by),
        "next_power_of_2": lambda number: 1 << max(0, int(number) - 1).bit_length(),
    }
