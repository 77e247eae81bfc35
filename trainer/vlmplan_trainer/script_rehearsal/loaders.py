"""Data loaders of a script: read in this process, at an end once all steps are done or an evaluation has been seen."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.script_rehearsal.phases import ScriptPhases

NUM_EVALUATED = 2
"""Batches of an evaluation: the second finds what the first leaves."""


@contextmanager
def short_loaders(phases: ScriptPhases) -> Iterator[None]:
    """Worker processes would not know of fake tensors; they change no byte of the device."""
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    make, following = DataLoader.__init__, _BaseDataLoaderIter.__next__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.update(num_workers=0, prefetch_factor=None, persistent_workers=False, multiprocessing_context=None)
        kwargs["timeout"] = 0
        make(self, *_without_workers(args), **kwargs)

    def next_batch(self: Any) -> Any:
        first = self.__dict__.setdefault("_evaluated_before", phases.num_evaluated)
        is_training = phases.num_evaluated == first and phases.meter.in_progress == "step" and not _is_evaluating()
        if phases.is_done and is_training:
            raise StopIteration
        if phases.num_evaluated - first >= NUM_EVALUATED:
            raise StopIteration
        return following(self)

    with replaced(DataLoader, "__init__", made), replaced(_BaseDataLoaderIter, "__next__", next_batch):
        yield


def _without_workers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``num_workers`` is the sixth argument; scripts that give so many by place have it replaced there."""
    return args[:5]


def _is_evaluating() -> bool:
    """Whether Hugging Face's Trainer evaluates, or gradients are off."""
    return not torch.is_grad_enabled() or _in_evaluation[0]


_in_evaluation = [False]


@contextmanager
def stopping_trainers(phases: ScriptPhases) -> Iterator[None]:
    """Hugging Face's Trainer ends after the last step: with an evaluation and a checkpoint where it makes any."""
    from transformers import Trainer
    from transformers.trainer_callback import CallbackHandler

    end_step, evaluate, predict = CallbackHandler.on_step_end, Trainer.evaluate, Trainer.predict

    def ended(self: Any, args: Any, state: Any, control: Any) -> Any:
        control = end_step(self, args, state, control)
        if phases.is_done:
            control.should_training_stop = True
            control.should_save = str(args.save_strategy).rpartition(".")[2].lower() != "no"
            control.should_evaluate = str(args.eval_strategy).rpartition(".")[2].lower() != "no"
        return control

    def told(call: Any) -> Any:
        def evaluated(*args: Any, **kwargs: Any) -> Any:
            _in_evaluation[0] = True
            try:
                return call(*args, **kwargs)
            finally:
                _in_evaluation[0] = False

        return evaluated

    with (
        replaced(CallbackHandler, "on_step_end", ended),
        replaced(Trainer, "evaluate", told(evaluate)),
        replaced(Trainer, "predict", told(predict)),
    ):
        yield
