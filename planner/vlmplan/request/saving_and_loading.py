"""When a run saves, and which processes open its images: as asked, or as the trainer that is planned for does it."""

from dataclasses import replace

from vlmplan.data_rules import loader_workers_of
from vlmplan.recipe.evaluation import Every, Moment
from vlmplan.request.record import Request
from vlmplan.run.saving import Interval, Saving, saving_of

GATHERS_SHARDS = "stage3_gather_16bit_weights_on_model_save"


def requested_saving(request: Request) -> Saving:
    """When checkpoints are written, how many stay and what is in them: as the trainer that is planned for does it where
    neither its configuration nor an option says otherwise.

    Source of ``"auto"``: accelerate takes it for true (``deepspeed_config.auto``).
    """
    asked, config = request.workload, request.ds_config
    saving = asked.saving or saving_of(None if request.made_for is None else request.made_for.value)
    if asked.save_every is not None:
        saving = replace(saving, interval=Interval.STEPS, every=asked.save_every)
    if asked.keep_last is not None:
        saving = replace(saving, keep_last=asked.keep_last)
    if request.evaluation.keeps_best:
        saving = replace(saving, keeps_best=True)
        if asked.saving is None and not saving.keeps_best_result:
            saving = _saved_when_evaluated(saving, request.evaluation.every)
    if config is not None:
        section = config.content.get("zero_optimization", {})
        gathers = bool(section.get(GATHERS_SHARDS)) or f"zero_optimization.{GATHERS_SHARDS}" in config.autos
        saving = replace(saving, gathers_shards=gathers)
    return saving


def _saved_when_evaluated(saving: Saving, every: Every | None) -> Saving:
    """As Hugging Face's Trainer wants it for the best model (``TrainingArguments.__post_init__``, 5.23)."""
    if every is None or isinstance(every, Moment):
        return replace(saving, interval=Interval.EPOCHS)
    return replace(saving, interval=Interval.STEPS, every=every)


def requested_loader_workers(request: Request) -> int:
    """Processes that open images, as its configuration or the trainer that is planned for has them."""
    asked, tool = request.workload.loader_workers, request.made_for
    return loader_workers_of(None if tool is None else tool.value) if asked is None else asked
