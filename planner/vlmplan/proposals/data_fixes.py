"""What else a trainer's file can do with samples that are known: group them by length, or pack them."""

from collections.abc import Iterator, Mapping
from typing import Any

from vlmplan.data_plan.data_run import DataRun, DataRuns
from vlmplan.data_rules import Order
from vlmplan.estimation import Estimate
from vlmplan.other_trainers import OpenedConfig, TrainerConfig
from vlmplan.other_trainers.writing import Tool, tool_of_trainer
from vlmplan.request import Request


def run_on_samples(request: Request, estimate: Estimate) -> DataRun | None:
    """The run of an estimate of the request on its samples; None where they are not known."""
    if request.from_data is None:
        return None
    source = request.from_data.source
    return DataRuns(estimate, source).of(source)


def sampling_keys(opened: OpenedConfig, config: TrainerConfig, request: Request) -> Iterator[Mapping[str, Any]]:
    """Keys of the file that put samples of about equal length together, or several into a row.

    ms-swift's own sampler knows ``group_by_length`` (``trainers/mixin.py``, 4.6.0), as axolotl's key is called;
    transformers 5 calls it a ``train_sampling_strategy``. TrainingArguments alone have no packing, and rows of images
    are packed by few trainers.
    """
    assert request.from_data is not None
    source, tool = request.from_data.source, tool_of_trainer(config.trainer)
    if tool is None or source.rules.packs:
        return
    if source.rules.order is not Order.BY_LENGTH:
        is_older = tool in (Tool.MS_SWIFT, Tool.AXOLOTL) or "group_by_length" in opened.values
        yield {"group_by_length": True} if is_older else {"train_sampling_strategy": "group_by_length"}
    if tool is not Tool.TRANSFORMERS and not source.found.sizes and not source.dataset.has_sounds:
        yield {"sample_packing" if tool is Tool.AXOLOTL else "packing": True}


def saves(run: DataRun | None, before: DataRun, fraction: float) -> bool:
    """Whether a run takes that part less of the time."""
    if run is None or run.run_seconds is None or before.run_seconds is None:
        return False
    return run.run_seconds <= (1 - fraction) * before.run_seconds
