"""Data loaders of a script: read in this process, at an end once all steps are done or an evaluation has been seen."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.script_rehearsal.phases import ScriptPhases

NUM_EVALUATED = 2
"""Batches of an evaluation: the second finds what the first leaves."""
WORKERS = 5
"""Where ``num_workers`` stands among the arguments of a ``DataLoader``, ..."""
BEHIND_WORKERS = ("collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn")
"""... and what may be given by place behind it."""


@contextmanager
def short_loaders(phases: ScriptPhases) -> Iterator[None]:
    """Worker processes would not know of fake tensors; they change no byte of the device."""
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    make, following = DataLoader.__init__, _BaseDataLoaderIter.__next__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.update(num_workers=0, prefetch_factor=None, persistent_workers=False, multiprocessing_context=None)
        kwargs.update(zip(BEHIND_WORKERS, args[WORKERS + 1 :], strict=False))
        kwargs["timeout"] = 0
        make(self, *args[:WORKERS], **kwargs)

    def next_batch(self: Any) -> Any:
        is_training = is_training_loader(self, phases)
        if phases.is_done and is_training and phases.meter.in_progress == "step":
            raise StopIteration
        if phases.num_evaluated - self._evaluated_before >= NUM_EVALUATED:
            raise StopIteration
        return following(self)

    with replaced(DataLoader, "__init__", made), replaced(_BaseDataLoaderIter, "__next__", next_batch):
        yield


def is_training_loader(loader: Any, phases: ScriptPhases) -> bool:
    """Whether an iterator of a loader has given no batch to an evaluation yet, and gives none now."""
    before = loader.__dict__.setdefault("_evaluated_before", phases.num_evaluated)
    return phases.num_evaluated == before and not _is_evaluating()


@contextmanager
def datasets_in_this_process() -> Iterator[None]:
    """Hugging Face's datasets are mapped and filtered here: each process of ``num_proc`` would be one as large as this,
    and the machine that rehearses has fewer cores than the one that trains."""
    datasets: Any = sys.modules.get("datasets")  # transformers' Trainer has imported it where it is installed
    if datasets is None:
        yield
        return

    def alone(call: Any) -> Any:
        def told(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs | ({"num_proc": None} if "num_proc" in kwargs else {}))

        return told

    with ExitStack() as stack:
        for name in ("map", "filter"):
            stack.enter_context(replaced(datasets.Dataset, name, alone(getattr(datasets.Dataset, name))))
        yield


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
