"""What the functions do: the same calls as the commands of the command line, and their answers as results."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlmplan.api.arguments import command_values, in_words_of_python, request_of
from vlmplan.api.kinds import checked
from vlmplan.api.options import EstimateOptions, File, Model
from vlmplan.api.results import EstimateResult
from vlmplan.cli.estimate import Answer, answered, described, print_answer
from vlmplan.cli.estimate import estimate as estimate_command
from vlmplan.cli.options import document_text
from vlmplan.cli.to_fit import command_text
from vlmplan.deepspeed_config import deepspeed_config
from vlmplan.json_reader import JsonDict
from vlmplan.recipe import Offload
from vlmplan.render.captured import printed

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.request import Request

OneGpu = str | None


def estimated(model: Model | None, gpu: str | None, config: File | None, given: Mapping[str, Any]) -> EstimateResult:
    """``vlmplan.estimate``."""
    with in_words_of_python(estimate_command):
        values = command_values(estimate_command, EstimateOptions, given)
        catalogs, lengths, scales = (values.pop(name) for name in ("catalog_files", "lengths", "scales"))
        request = request_of(model, config, {"gpu": checked("gpu", gpu, OneGpu), **values})
        answer = answered(request, catalogs, lengths, scales=scales)
        command = command_text(estimate_command, catalogs, order=("model", "gpu", "config", *values))
        return EstimateResult(
            document_text(described(answer, command)),
            printed(lambda: print_answer(answer, command)),
            _more(answer, request, command(request)),
        )


def _more(answer: Answer, request: "Request", command: str) -> dict[str, Any]:
    """What the attributes of an estimate need besides its document."""
    found = answer.estimate
    ds_config = _ds_config(found, request)
    return {
        "components": [phase.peak.as_json() for phase in found.timeline.phases],
        "num_steps": found.num_steps,
        "ds_config": None if ds_config is None else document_text(ds_config),
        "command": command,
    }


def _ds_config(found: "Estimate", request: "Request") -> JsonDict | None:
    """The ds_config.json of an estimate; None where there is none, or where the folder for NVMe is not said yet."""
    if found.recipe.nvme_path is None and Offload.NVME in (found.recipe.offload_optimizer, found.recipe.offload_params):
        return None
    return deepspeed_config(found.recipe, num_gpus=found.cluster.num_gpus, base=request.ds_config)
