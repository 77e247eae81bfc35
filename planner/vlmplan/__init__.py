"""vlmplan: plan the memory, time and money of fine-tuning vision-language and language models.

Names come when they are asked for (PEP 562): the console script imports this module before it is ready for Ctrl-C.
"""

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this
if TYPE_CHECKING:
    from vlmplan.api import (
        AdviseOptions,
        AdviseResult,
        Change,
        CheckOptions,
        CheckResult,
        CompareOptions,
        CompareResult,
        Configuration,
        DiagnoseOptions,
        DiagnoseResult,
        EstimateOptions,
        EstimateResult,
        Fix,
        OtherMachine,
        Phase,
        RankedPlan,
        RecommendOptions,
        RecommendResult,
        Rejection,
        ToFit,
        Variant,
        advise,
        check,
        compare,
        diagnose,
        estimate,
        read_config,
        recommend,
    )
    from vlmplan.errors import (
        DoesNotFitError,
        InputError,
        MissingPackageError,
        UnavailableError,
        UnknownNameError,
        VlmplanError,
    )
    from vlmplan.version import __version__

__all__ = [
    "AdviseOptions",
    "AdviseResult",
    "Change",
    "CheckOptions",
    "CheckResult",
    "CompareOptions",
    "CompareResult",
    "Configuration",
    "DiagnoseOptions",
    "DiagnoseResult",
    "DoesNotFitError",
    "EstimateOptions",
    "EstimateResult",
    "Fix",
    "InputError",
    "MissingPackageError",
    "OtherMachine",
    "Phase",
    "RankedPlan",
    "RecommendOptions",
    "RecommendResult",
    "Rejection",
    "ToFit",
    "UnavailableError",
    "UnknownNameError",
    "Variant",
    "VlmplanError",
    "__version__",
    "advise",
    "check",
    "compare",
    "diagnose",
    "estimate",
    "read_config",
    "recommend",
]


def __getattr__(name: str) -> object:
    """What ``__all__`` names."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = "version" if name == "__version__" else "errors" if name.endswith("Error") else "api"
    return getattr(import_module(f"vlmplan.{place}"), name)


def __dir__() -> list[str]:
    return [*__all__, *globals()]
