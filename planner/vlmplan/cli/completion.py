"""Names that the shell completes behind ``--model`` and ``--gpu``, where the user has loaded click's script for it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

THIS_MACHINE = ("cpu", "local")


def model_names(context: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem]":
    """Aliases of packaged models that begin so; files and folders where none does."""
    from click.shell_completion import CompletionItem

    from vlmplan.models import packaged_models

    return _beginning(packaged_models(), begun) or [CompletionItem(begun, type="file")]


def gpu_names(context: click.Context, parameter: click.Parameter, begun: str) -> "list[CompletionItem]":
    """GPUs of the catalog, and those of this machine, that begin so."""
    from vlmplan.catalog import load_catalog

    return _beginning((*load_catalog(()).gpu_ids, *THIS_MACHINE), begun)


def _beginning(names: Iterable[str], begun: str) -> "list[CompletionItem]":
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in sorted(names) if name.startswith(begun.casefold())]
