"""vlmplan: plan the memory, time and money of fine-tuning vision-language and language models."""

from vlmplan.api import EstimateResult, Phase, estimate
from vlmplan.errors import InputError, UnavailableError, VlmplanError
from vlmplan.version import __version__

__all__ = [
    "EstimateResult",
    "InputError",
    "Phase",
    "UnavailableError",
    "VlmplanError",
    "__version__",
    "estimate",
]
