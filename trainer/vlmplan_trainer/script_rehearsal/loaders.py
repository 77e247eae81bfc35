"""Data loaders of a script: read in this process, at an end once all steps are done or an evaluation has been seen.

Which loaders train is told by the passes that follow their batches. Those come to their end behind the last step, in
this epoch and in all that follow, so that what the script does behind them runs too: evaluations and what it saves.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.script_rehearsal.phases import EndOfRehearsal, ScriptPhases

NUM_EVALUATED = 2
"""Batches of an evaluation: the second finds what the first leaves."""
NUM_EMPTY_EPOCHS = 5
"""Epochs without a batch behind the last step, after which a script that asks for more is ended: it may never stop."""
WORKERS = 5
"""Where ``num_workers`` stands among the arguments of a ``DataLoader``, ..."""
BEHIND_WORKERS = ("collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn")
"""... and what may be given by place behind it."""
TRAINS = "_feeds_passes_that_train"
"""Set on loaders and their iterators."""


class NoBatchLeft(StopIteration):
    """All steps are done. A script that asks for batches by hand (``next``) ends with it."""


class Feeding:
    """The loaders whose batches are trained on. ``read_by``: the iterators that gave a batch since the last pass."""

    def __init__(self, phases: ScriptPhases) -> None:
        self._phases = phases
        self._read_by: list[Any] = []
        phases.on_pass = self._passed

    def _passed(self, trains: bool) -> None:
        for iterator in self._read_by if trains else ():
            setattr(iterator, TRAINS, True)
            setattr(iterator._loader, TRAINS, True)
        self._read_by.clear()

    def look_for_end(self, iterator: Any) -> None:
        """Raises StopIteration where an iterator gives no batch more."""
        phases = self._phases
        before = iterator.__dict__.setdefault("_evaluated_before", phases.num_evaluated)
        if self.has_trained(iterator._loader) and not _is_evaluating():
            raise NoBatchLeft
        trains = getattr(iterator, TRAINS, False) and not _is_evaluating()
        if not trains and phases.num_evaluated - before >= NUM_EVALUATED:
            raise StopIteration

    def has_trained(self, loader: Any) -> bool:
        """Whether the last step is done, and was one of the loader's."""
        return self._phases.is_done and getattr(loader, TRAINS, False)

    def begin(self, loader: Any) -> None:
        """An epoch of the loader. Raises EndOfRehearsal for one too many."""
        if self.has_trained(loader) and not _is_evaluating():
            self._phases.num_empty_epochs += 1
            if self._phases.num_empty_epochs > NUM_EMPTY_EPOCHS:
                raise EndOfRehearsal(0)

    def gives(self, iterator: Any) -> None:
        """A batch."""
        self._read_by.append(iterator)


@contextmanager
def short_loaders(phases: ScriptPhases) -> Iterator[None]:
    """Worker processes would not know of fake tensors; they change no byte of the device."""
    from accelerate import data_loader as ahead
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    feeding = Feeding(phases)
    make, begin, following = DataLoader.__init__, _BaseDataLoaderIter.__init__, _BaseDataLoaderIter.__next__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.update(num_workers=0, prefetch_factor=None, persistent_workers=False, multiprocessing_context=None)
        kwargs.update(zip(BEHIND_WORKERS, args[WORKERS + 1 :], strict=False))
        kwargs["timeout"] = 0
        make(self, *args[:WORKERS], **kwargs)

    def begun(self: Any, loader: Any) -> None:  # torchdata's loader, too, which has an ``__iter__`` of its own
        feeding.begin(loader)
        self._loader = loader
        begin(self, loader)

    def next_batch(self: Any) -> Any:
        feeding.look_for_end(self)
        batch = following(self)
        feeding.gives(self)
        return batch

    with ExitStack() as stack:
        for owner, name, value in (
            (DataLoader, "__init__", made),
            (_BaseDataLoaderIter, "__init__", begun),
            (_BaseDataLoaderIter, "__next__", next_batch),
        ):
            stack.enter_context(replaced(owner, name, value))
        for kind in (ahead.DataLoaderShard, ahead.DataLoaderDispatcher):
            stack.enter_context(replaced(kind, "__iter__", _without_batch_ahead(kind.__iter__, feeding)))
        yield


def _without_batch_ahead(iterate: Any, feeding: Feeding) -> Any:
    """accelerate's loaders read a batch ahead, which they would give behind the last step (``data_loader.py`` 1.15)."""

    def told(self: Any) -> Iterator[Any]:
        for batch in iterate(self):
            if feeding.has_trained(self.base_dataloader) and not _is_evaluating():
                self.end()
                return
            yield batch

    return told


def is_training_loader(loader: Any, phases: ScriptPhases) -> bool:
    """Whether an iterator of a loader has given no batch to an evaluation yet, and gives none now."""
    before = loader.__dict__.setdefault("_evaluated_before", phases.num_evaluated)
    return (phases.num_evaluated == before or getattr(loader, TRAINS, False)) and not _is_evaluating()


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
