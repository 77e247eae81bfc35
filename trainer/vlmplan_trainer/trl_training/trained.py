"""What a trainer of TRL's has trained: as a result, merged, and kept while the run goes on."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from vlmplan.plan import Plan
from vlmplan_trainer.engines.ranks import RanksHere
from vlmplan_trainer.models.load import LoadedModel, Processing
from vlmplan_trainer.models.weight_types import REFERENCE_ADAPTER
from vlmplan_trainer.options import Options
from vlmplan_trainer.reporting.result import result_folder
from vlmplan_trainer.saving.best import BestResult
from vlmplan_trainer.saving.export import export, merge


class TrainedModel:
    """What a trainer of TRL's has trained, as ``export`` wants an engine."""

    def __init__(self, trainer: Any, ranks: RanksHere) -> None:
        self._trainer, self._ranks = trainer, ranks
        self.rank = ranks.rank

    @property
    def model(self) -> Any:
        return self._trainer.model

    def weights(self) -> dict[str, torch.Tensor] | None:
        """All weights whole, on rank 0."""
        whole = self._trainer.accelerator.get_state_dict(self._trainer.model_wrapped)
        return None if whole is None else {name: tensor.detach() for name, tensor in whole.items()}

    def barrier(self) -> None:
        self._ranks.barrier()


def best_of(
    plan: Plan, options: Options, trained: Any, loaded: LoadedModel, processing: Processing
) -> BestResult | None:
    """What is kept of the best evaluation, where there is any; ``trained`` is a ``TrainedModel``."""
    evaluation = plan.recipe.evaluation
    if evaluation is None or not evaluation.keeps_best:
        return None
    write = partial(export, trained, loaded, processing, is_adapter=plan.recipe.trains_adapters)
    return BestResult(evaluation, options.output_dir, write, rank=trained.rank)


def write_result(
    plan: Plan,
    options: Options,
    trained: Any,
    loaded: LoadedModel,
    processing: Processing,
    best: BestResult | None,
) -> Path:
    """Write the result, and merged where that is asked for; where it is. Every rank calls it, with its
    ``TrainedModel``."""
    recipe = plan.recipe
    if recipe.scores_rows:  # which finds the last token of a row by it
        loaded.config.pad_token_id = processing.processor.pad_token_id
    if recipe.trains_adapters and REFERENCE_ADAPTER in trained.model.peft_config:
        trained.model.delete_adapter(REFERENCE_ADAPTER)
    place = result_folder(plan, options.output_dir, is_merged=False)
    if best is None or not best.take(place.name, place):
        export(trained, loaded, processing, options.output_dir, is_adapter=recipe.trains_adapters)
    if not (recipe.trains_adapters and options.merge_adapters):
        return place
    unset_hf_deepspeed_config()  # of TRL's arguments: the model that is merged into would be sharded, by one rank alone
    merge(plan, trained, processing, options.output_dir)
    return result_folder(plan, options.output_dir, is_merged=True)
