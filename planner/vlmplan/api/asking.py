"""What the functions do: the same calls as the commands of the command line, and their answers as results."""

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmplan.answers import notebook
from vlmplan.api.arguments import command_values, in_words_of_python, own_request_of, request_of
from vlmplan.api.check_result import CheckResult, Configuration
from vlmplan.api.compare_result import CompareResult
from vlmplan.api.diagnose_result import DiagnoseResult
from vlmplan.api.estimate_result import EstimateResult
from vlmplan.api.kinds import checked
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
from vlmplan.api.parts import (
    check_parts,
    comparison_parts,
    data_elements,
    diagnosis_parts,
    estimate_parts,
    fixed_parts,
    reading_parts,
    recommend_parts,
    way_out,
)
from vlmplan.api.recommend_result import AdviseResult, RecommendResult
from vlmplan.cli.advise import advise as advise_command
from vlmplan.cli.advise import command_of, words
from vlmplan.cli.check import check as check_command
from vlmplan.cli.diagnose import diagnose as diagnose_command
from vlmplan.cli.estimate import estimate as estimate_command
from vlmplan.cli.option_words import command_text
from vlmplan.cli.recommend import recommend as recommend_command
from vlmplan.commands import advise, check, compare, diagnose, estimate, recommend
from vlmplan.commands.document import document_text
from vlmplan.commands.fix import fixed_of
from vlmplan.errors import InputError
from vlmplan.render.captured import printed

if TYPE_CHECKING:
    from vlmplan.diagnosis import Log
    from vlmplan.estimation import Estimate
    from vlmplan.plan import Plan
    from vlmplan.rehearsal import Comparison
    from vlmplan.request import Request

OneGpu = str | None
ManyGpus = Gpus | None


def estimated(model: Model | None, gpu: str | None, config: File | None, given: Mapping[str, Any]) -> EstimateResult:
    """``vlmplan.estimate``."""
    command = estimate_command
    with in_words_of_python(command):
        values = command_values(command, EstimateOptions, given)
        catalogs, lengths, scales = (values.pop(name) for name in ("catalog_files", "lengths", "scales"))
        request = request_of(model, config, {"gpu": checked("gpu", gpu, OneGpu), **values})
        answer = estimate.answered(request, catalogs, lengths, scales=scales)
        text_of = command_text(command, catalogs, order=("model", "gpu", "config", *values), lengths=lengths)
        return EstimateResult(*estimate_parts(answer, request, text_of, catalogs))


def recommended(
    model: Model | None, gpu: Gpus | None, config: File | None, given: Mapping[str, Any]
) -> RecommendResult:
    """``vlmplan.recommend``."""
    command = recommend_command
    with in_words_of_python(command):
        values = command_values(command, RecommendOptions, given)
        catalogs, shows_pareto, rehearses = (
            values.pop(name) for name in ("catalog_files", "shows_pareto", "rehearses")
        )
        request = request_of(model, config, {"gpu": checked("gpu", gpu, ManyGpus), **values})
        answer = recommend.answered(
            request,
            catalogs,
            compares=recommend.compared(has_picture=shows_pareto),
            shows_pareto=shows_pareto,
            rehearse=_rehearsed if rehearses else None,
        )
        text_of = command_text(command, catalogs, order=("model", "gpu", "config", *values))
        return RecommendResult(*recommend_parts(answer, request, text_of, catalogs))


def advised(model: Model | None, gpu: Gpus | None, config: File | None, given: Mapping[str, Any]) -> AdviseResult:
    """``vlmplan.advise``."""
    command = advise_command
    with in_words_of_python(command):
        values = command_values(command, AdviseOptions, given)
        catalogs = values.pop("catalog_files")
        request = request_of(model, config, {"gpu": checked("gpu", gpu, ManyGpus), **values})
        answer = advise.answered(request, catalogs)
        found = answer.found
        text_of = command_of(request, catalogs, order=("model", "gpu", "config", *values))
        document = advise.described(answer, text_of, words)
        after = [*data_elements(answer.data), *notebook.way_out_elements(found.way_out, text_of, found.as_of)]
        more = {
            "text": printed(lambda: advise.print_answer(answer, text_of, words)),
            "html": notebook.advice_html(found, words, after),
            "changes": list(map(document_text, document["changes"])),
            **way_out(document, command),
        }
        return AdviseResult(document_text(document), more)


def compared(
    by: Comparable, model: Model | None, gpu: str | None, config: File | None, given: Mapping[str, Any]
) -> CompareResult:
    """``vlmplan.compare``."""
    command = estimate_command
    with in_words_of_python(command):
        values = command_values(command, CompareOptions, given)
        catalogs = values.pop("catalog_files")
        name = checked("by", by, Comparable)
        request = request_of(model, config, {"gpu": checked("gpu", gpu, OneGpu), **values})
        text_of = command_text(command, catalogs, order=("model", "gpu", "config", *values))
        variants = compare.compared(name, request, catalogs)
        return CompareResult(*comparison_parts(name, variants, request, text_of, catalogs))


def checked_file(path: File, gpu: str | None, model: Model | None, given: Mapping[str, Any]) -> CheckResult:
    """``vlmplan.check``."""
    command = check_command
    with in_words_of_python(command):
        values = command_values(command, CheckOptions, given)
        catalogs, fixes, file = values.pop("catalog_files"), values.pop("fixes"), _file(path)
        asked = {"gpu": checked("gpu", gpu, OneGpu), **values}
        request = request_of(model, file, asked)
        text_of = command_text(estimate_command, catalogs, order=("config", "model", "gpu", *values))
        if not fixes:
            return CheckResult(*check_parts(check.checked_of(request, catalogs), request, text_of, catalogs))
        own = own_request_of(model, asked)
        fixed = fixed_of(Path(file), own, request, catalogs, None)
        return CheckResult(*fixed_parts(fixed, request, text_of, catalogs))


def diagnosed(
    log: "File | BaseException",
    gpu: str | None,
    config: File | None,
    plan: File | None,
    model: Model | None,
    given: Mapping[str, Any],
) -> DiagnoseResult:
    """``vlmplan.diagnose``."""
    command = diagnose_command
    with in_words_of_python(command):
        values = command_values(command, DiagnoseOptions, given)
        catalogs = values.pop("catalog_files")
        read, own_plan = _log(log)
        request = _request_beside(gpu, config, plan, model, values, given, catalogs)
        if request is None and own_plan is not None:
            request = diagnose.request_of_plan(own_plan, catalogs)
        found = diagnose.diagnosed(read, request, catalogs)
        text_of = command_text(estimate_command, catalogs, order=("config", "model", "gpu", *values))
        return DiagnoseResult(*diagnosis_parts(found, text_of))


def _request_beside(
    gpu: str | None,
    config: File | None,
    plan: File | None,
    model: Model | None,
    values: Mapping[str, Any],
    given: Mapping[str, Any],
    catalogs: tuple[Path, ...],
) -> "Request | None":
    """The setup of a diagnosis; None where none is named."""
    named = {"gpu": gpu, "config": config, "model": model, **given}
    others = [name for name, value in named.items() if value is not None and name != "catalog"]
    if plan is not None:
        if others:
            raise InputError(f"plan is the whole setup; {others[0]} does not go with it")
        return diagnose.request_of_plan(Path(checked("plan", plan, File)), catalogs)
    if not others:
        return None
    request = request_of(model, config, {"gpu": checked("gpu", gpu, OneGpu), **values})
    if not request.hardware.gpus:
        raise InputError("gpu is missing; what the run was on is needed with a model")
    return request


def _log(log: "File | BaseException") -> "tuple[Log, Path | None]":
    """The log of a file, of a run's folder with its plan, or of an error with its traceback."""
    from vlmplan.diagnosis import Log, read_log

    if isinstance(log, BaseException):
        return Log(source=type(log).__name__, text="".join(traceback.format_exception(log))), None
    path, own_plan = diagnose.files_of(Path(checked("log", log, File)))
    return read_log(path), own_plan


def configuration_of(path: File, gpu: str | None, model: Model | None) -> Configuration:
    """``vlmplan.read_config``."""
    with in_words_of_python(check_command):
        return Configuration(*reading_parts(request_of(model, _file(path), {"gpu": checked("gpu", gpu, OneGpu)})))


def _file(path: File) -> File:
    """``path``, which may not be left out."""
    return checked("path", path, File)


def _rehearsed(plan: "Plan", found: "Estimate") -> "Comparison":
    """A rehearsal of which nobody is told meanwhile."""
    from vlmplan.rehearsal import rehearse

    return rehearse(plan, found)
