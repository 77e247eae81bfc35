"""The functions: each parses, asks and describes with what the command of its name does.

Everything but types is imported when a function is called, so that ``import vlmplan`` takes no time.
"""

import inspect
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from vlmplan.api.options import EstimateOptions, File, Model
from vlmplan.api.results import EstimateResult

if TYPE_CHECKING:
    from typing_extensions import Unpack

Function = TypeVar("Function", bound=Callable[..., Any])


def _with_keywords(options: type, **defaults: Any) -> Callable[[Function], Function]:
    """Shows the keys of ``options`` among a function's parameters, for ``help`` and for completion in a notebook.

    ``defaults`` are those that are neither None, nor False of a switch that is off, nor an empty sequence.
    """

    def shown(function: Function) -> Function:
        own, kind = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        named = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
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
    out. ``config`` is what another trainer is started with; arguments beside it win. The others are the options of the
    command line by their names.

    Raises InputError for what is not allowed, UnavailableError for what cannot be read or is not there.

    >>> import vlmplan
    >>> found = vlmplan.estimate("qwen2-vl-2b", "rtx-4090:2", method="lora", seq_len=2048)
    >>> found.verdict, found.fits, round(found.peak_device_bytes / 2**30, 1)
    ('fits', True, 6.1)
    """
    from vlmplan.api.asking import estimated

    return estimated(model, gpu, config, options)
