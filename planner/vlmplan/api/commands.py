"""The functions: each parses, asks and describes with what the command of its name does.

Everything but types is imported when a function is called, so that ``import vlmplan`` takes no time.
"""

import inspect
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from vlmplan.api.check_result import CheckResult, Configuration
from vlmplan.api.compare_result import CompareResult
from vlmplan.api.diagnose_result import DiagnoseResult
from vlmplan.api.estimate_result import EstimateResult
from vlmplan.api.options import (
    AdviseOptions,
    CheckOptions,
    Comparable,
    CompareOptions,
    DiagnoseOptions,
    EstimateOptions,
    File,
    Gpus,
    Model,
    RecommendOptions,
)
from vlmplan.api.recommend_result import AdviseResult, RecommendResult

if TYPE_CHECKING:
    from typing_extensions import Unpack

Function = TypeVar("Function", bound=Callable[..., Any])


def _with_keywords(options: type, **defaults: Any) -> Callable[[Function], Function]:
    """Shows the keys of ``options`` among a function's parameters, for ``help`` and for completion in a notebook.

    ``defaults`` are those that are neither None, nor False of a switch that is off, nor an empty sequence.
    """

    def shown(function: Function) -> Function:
        own, kind = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        named = [parameter for parameter in own.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, kind, annotation=hint, default=defaults.get(name, _left_out(hint)))
            for name, hint in options.__annotations__.items()
        ]
        setattr(function, "__signature__", own.replace(parameters=[*named, *more]))  # noqa: B010
        return function

    return shown


def _left_out(hint: Any) -> Any:
    """What stands for an argument of this type that is not given."""
    return False if hint is bool else None if NoneType in get_args(hint) else ()


@_with_keywords(EstimateOptions)
def estimate(
    model: Model | None = None,
    gpu: str | None = None,
    *,
    config: File | None = None,
    **options: "Unpack[EstimateOptions]",
) -> EstimateResult:
    """Bytes per phase and component, host RAM, disk and seconds of one setup, as ``vlmplan estimate`` has them.

    ``model`` is an alias, a Hugging Face id, a folder or config.json, or what ``config.to_dict()`` of transformers
    gives. ``gpu`` is ``NAME`` or ``NAME:COUNT`` of the catalog, ``local`` or ``cpu:N``; this machine's where it is left
    out. ``config`` is a file that another trainer is started with; arguments beside it win. The others are the options
    of the command line by their names, with the same defaults.

    Raises InputError for what is not allowed, UnavailableError for what cannot be read or is not there.

    >>> import vlmplan
    >>> found = vlmplan.estimate("qwen2-vl-2b", "rtx-4090:2", method="lora", seq_len=2048)
    >>> found.verdict, found.fits, round(found.peak_device_bytes / 2**30, 1)
    ('fits', True, 6.5)
    """
    from vlmplan.api.asking import estimated

    return estimated(model, gpu, config, options)


@_with_keywords(RecommendOptions, objective="cost")
def recommend(
    model: Model | None = None,
    gpu: Gpus | None = None,
    *,
    config: File | None = None,
    **options: "Unpack[RecommendOptions]",
) -> RecommendResult:
    """The cheapest, fastest or smallest setup over many kinds of hardware, as ``vlmplan recommend`` finds it.

    ``model`` and ``config`` are those of ``estimate``. ``gpu`` is one name or several; every offer of the catalog where
    it is left out. Arguments of the recipe that are given are held fixed, everything else is tried.

    Raises InputError for what is not allowed, UnavailableError for what cannot be read or is not there,
    DoesNotFitError where no offer is left to look at.

    >>> import vlmplan
    >>> found = vlmplan.recommend("gpt2", ["t4", "rtx-4090"], method="lora", objective="time")
    >>> found.plan.gpu, found.plan.num_gpus, found.plan.estimate.fits
    ('rtx-4090', 1, True)
    """
    from vlmplan.api.asking import recommended

    return recommended(model, gpu, config, options)


@_with_keywords(AdviseOptions)
def advise(
    model: Model | None = None,
    gpu: Gpus | None = None,
    *,
    config: File | None = None,
    **options: "Unpack[AdviseOptions]",
) -> AdviseResult:
    """What each single change of the best plan buys, as ``vlmplan advise`` has it.

    Arguments and errors are those of ``recommend``.
    """
    from vlmplan.api.asking import advised

    return advised(model, gpu, config, options)


@_with_keywords(CompareOptions)
def compare(
    by: Comparable,
    model: Model | None = None,
    gpu: str | None = None,
    *,
    config: File | None = None,
    **options: "Unpack[CompareOptions]",
) -> CompareResult:
    """One setup beside others that differ in one choice, as ``vlmplan estimate --compare`` has them.

    ``by`` is ``"zero"``, ``"method"``, ``"precision"``, ``"optimizer"`` or ``"checkpointing"``; the others are those of
    ``estimate``. A variant that cannot be trained has the reason. Raises as ``estimate`` does, and InputError where no
    variant can be trained.

    >>> import vlmplan
    >>> found = vlmplan.compare("method", "gpt2", "t4")
    >>> [(one.name, one.fits) for one in found.variants]
    [('full', True), ('lora', True), ('lora-8bit', True), ('qlora', True)]
    """
    from vlmplan.api.asking import compared

    return compared(by, model, gpu, config, options)


@_with_keywords(CheckOptions)
def check(
    path: File, gpu: str | None = None, *, model: Model | None = None, **options: "Unpack[CheckOptions]"
) -> CheckResult:
    """How the configuration of another trainer is read, and its estimate, as ``vlmplan check`` has them; with
    ``fix=True`` the least changes of that file with which it fits, or is faster where it does (``--fix``).

    ``path`` is what the trainer is started with: YAML, JSON or a shell script, which is parsed and never run. ``model``
    stands in place of the file's. The others are those of ``estimate``; without ``gpu``, and without GPUs in this
    machine, there is no estimate. Raises as ``estimate`` does.
    """
    from vlmplan.api.asking import checked_file

    return checked_file(path, gpu, model, options)


@_with_keywords(DiagnoseOptions)
def diagnose(
    log: File | BaseException,
    gpu: str | None = None,
    *,
    config: File | None = None,
    plan: File | None = None,
    model: Model | None = None,
    **options: "Unpack[DiagnoseOptions]",
) -> DiagnoseResult:
    """Why a run ran out of memory, as ``vlmplan diagnose`` has it.

    ``log`` is a training log, a file with a traceback or the message, the folder of a run of ``vlmplan launch``, which
    has its plan too, or the error itself that was caught. With the setup, by ``config``, ``plan`` (a plan.json), or
    ``model``, ``gpu`` and the options of ``estimate``, what was planned stands beside what was needed, with the
    smallest change.

    Raises InputError where there is no such message, and for the rest as ``estimate`` does.
    """
    from vlmplan.api.asking import diagnosed

    return diagnosed(log, gpu, config, plan, model, options)


def read_config(path: File, gpu: str | None = None, *, model: Model | None = None) -> Configuration:
    """How the configuration of another trainer is read: ``check`` without the estimate.

    What a file means can depend on the model and the number of GPUs. Raises as ``estimate`` does.
    """
    from vlmplan.api.asking import configuration_of

    return configuration_of(path, gpu, model)
