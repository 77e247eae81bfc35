"""vlmplan: plan the memory, time and money of fine-tuning vision-language and language models."""

__version__ = "0.1.0"

__all__ = ["__version__"]
