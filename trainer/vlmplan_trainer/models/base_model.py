"""transformers' model, whether peft has wrapped it or not."""

from typing import Any

from torch import nn


def base_model(model: nn.Module) -> Any:
    """The model within peft's; ``model`` itself where it has no adapters. Its class is transformers' own."""
    wrapped: Any = model
    return wrapped.get_base_model() if hasattr(model, "get_base_model") else model
