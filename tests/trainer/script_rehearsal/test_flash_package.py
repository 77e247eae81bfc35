"""flash-attn for scripts that import it themselves."""

import importlib.util
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from vlmplan_trainer.rehearse import flash
from vlmplan_trainer.script_rehearsal.flash_package import flash_attn_package
from vlmplan_trainer.script_rehearsal.loaders import short_loaders


def test_scripts_import_flash_attn_by_the_names_of_the_package():
    before = "flash_attn" in sys.modules
    with flash_attn_package():
        assert importlib.util.find_spec("flash_attn") is not None
        assert import_module("flash_attn").flash_attn_func is flash.flash_attn_func
        interface = import_module("flash_attn.flash_attn_interface")
        assert interface.flash_attn_varlen_func is flash.flash_attn_varlen_func
        padding = import_module("flash_attn.bert_padding")
        assert all(callable(getattr(padding, name)) for name in ("index_first_axis", "pad_input", "unpad_input"))
        distributed = import_module("flash_attn.utils.distributed")
        assert callable(distributed.all_gather)
    assert ("flash_attn" in sys.modules) == before


def test_its_cross_entropy_keeps_the_logits_and_makes_a_gradient_as_large():
    with flash_attn_package():
        cross_entropy_loss = import_module("flash_attn.ops.triton.cross_entropy").cross_entropy_loss
    logits, labels = torch.randn(5, 7, requires_grad=True), torch.zeros(5, dtype=torch.long)
    losses, z_losses = cross_entropy_loss(logits, labels)
    assert (losses.shape, losses.dtype, z_losses.requires_grad) == ((5,), torch.float32, False)
    assert losses.grad_fn.saved_tensors[0].data_ptr() == logits.data_ptr()
    losses.sum().backward()
    assert logits.grad is not None
    assert logits.grad.shape == logits.shape
    with pytest.raises(NotImplementedError, match="words that ranks share"):
        cross_entropy_loss(logits, labels, process_group=object())


def test_rows_are_taken_by_their_places_one_behind_the_other():
    with flash_attn_package():
        take = import_module("flash_attn.bert_padding").index_first_axis
    assert take(torch.arange(6).reshape(6, 1), torch.tensor([4, 1])).tolist() == [[4], [1]]


class OwnLoader(DataLoader):
    """As torchdata's ``StatefulDataLoader``: an ``__iter__`` of its own."""

    def __iter__(self):
        return self._get_iterator()


def test_loaders_with_an_iteration_of_their_own_are_read():
    phases = SimpleNamespace(on_pass=None, num_evaluated=0, is_done=False, num_empty_epochs=0)
    with short_loaders(phases):
        loader = OwnLoader(range(4), batch_size=2)
        read = []
        for batch in loader:
            read.append(batch.tolist())
            phases.on_pass(True)
        assert read == [[0, 1], [2, 3]]
        phases.is_done = True
        assert list(loader) == []  # the loader's batches have trained, and all steps are done
