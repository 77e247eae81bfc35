"""``vlmplan estimate --compare``: variants of one setup side by side."""

from collections.abc import Sequence
from pathlib import Path

from vlmplan.cli.output import print_document, waiting_at, write_report
from vlmplan.commands.compare import compared
from vlmplan.memory.device import Verdict
from vlmplan.proposals.comparison import Variant
from vlmplan.request import Request


def run_comparison(
    name: str,
    request: Request,
    catalog_files: tuple[Path, ...],
    *,
    as_json: bool,
    html: Path | None,
    asked: str,
    force: bool,
) -> bool:
    """Print the comparison, which was ``asked`` for with that command line, and write its page; whether any variant
    fits or is tight."""
    from vlmplan.answers.comparison import document, print_comparison

    variants = compared(name, request, catalog_files, waiting_at("comparing", as_json=as_json))
    write_report(html, lambda: _report(variants, asked), force=force)
    known = [variant.estimate for variant in variants if variant.estimate is not None]
    if as_json:
        print_document(document(name, variants))
    else:
        print_comparison(variants)
    return any(found.verdict is not Verdict.DOES_NOT_FIT for found in known)


def _report(variants: Sequence[Variant], asked: str) -> str:
    from vlmplan.reports import comparison_report

    return comparison_report(variants, command_text=asked)
