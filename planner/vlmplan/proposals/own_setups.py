"""Setups that the trainer of a configuration can train: changes of its file are held to them."""

from collections.abc import Callable
from functools import partial

from vlmplan.errors import InputError
from vlmplan.estimation import Estimate
from vlmplan.hardware import Cluster
from vlmplan.other_trainers.editing.keys import cannot_train, unlike_script
from vlmplan.other_trainers.nemo_automodel.keys import NEMO_AUTOMODEL
from vlmplan.other_trainers.nemo_automodel.limits import beyond_nemo_automodel
from vlmplan.other_trainers.openrlhf.common import OPENRLHF
from vlmplan.other_trainers.openrlhf.limits import beyond_openrlhf
from vlmplan.other_trainers.writing import SCRIPTS_AROUND_THE_TRAINER, tool_of_trainer
from vlmplan.request import Request
from vlmplan.request.setup import RequestedSetup, requested_setup


def setups_of_trainer(trainer: str, present: Estimate) -> Callable[[Request, Cluster], RequestedSetup] | None:
    """What makes setups that the trainer, by its name in ``TrainerConfig``, can train as it does ``present``; None
    where nothing is known of what it can, or ``present`` is beyond that already."""
    model = present.workload.model
    tool = tool_of_trainer(trainer)
    if trainer == OPENRLHF:
        why_not = partial(beyond_openrlhf, present.recipe)
    elif trainer == NEMO_AUTOMODEL:
        why_not = partial(beyond_nemo_automodel, present.recipe)
    elif tool is None:
        return None
    elif trainer in SCRIPTS_AROUND_THE_TRAINER:
        why_not = partial(unlike_script, present.recipe)
    else:
        why_not = partial(cannot_train, tool)
    if why_not(present.recipe, model) is not None:
        return None

    def setup(asked: Request, cluster: Cluster) -> RequestedSetup:
        found = requested_setup(asked, (cluster, ()), model)
        if (reason := why_not(found.recipe, model)) is not None:
            raise InputError(reason)
        return found

    return setup
