"""Inputs of layers that wait on the host: the same gradients, and nothing but inputs moves."""

import copy

import pytest
import torch
from torch import nn

from vlmplan_trainer.models import offloading


class Layer(nn.Module):
    """With tensors inside that a checkpoint makes again."""

    def __init__(self):
        super().__init__()
        self.wide, self.thin = nn.Linear(5, 35), nn.Linear(35, 5)

    def forward(self, x):
        return x + self.thin(torch.tanh(self.wide(x)))


def gradients(layers, checkpointing):
    x = torch.linspace(-1, 1, 3 * 5).view(3, 5).requires_grad_()
    hidden = x
    for layer in layers:
        hidden = checkpointing(layer, hidden)
    hidden.square().sum().backward()
    return [x.grad, *(parameter.grad for layer in layers for parameter in layer.parameters())]


@pytest.fixture
def moved(monkeypatch):
    """What is packed, on a machine whose device is not the CPU: the copy on the host is one of another type here."""
    found = []

    def packed(x):
        if not x.numel():
            return x
        found.append(tuple(x.shape))
        return x.device, x.detach().clone()

    monkeypatch.setattr(offloading, "_packed", packed)
    return found


def test_gradients_are_those_without_and_only_inputs_move(moved):
    torch.manual_seed(0)
    layers = [Layer() for _ in range(3)]
    expected = gradients(copy.deepcopy(layers), lambda layer, x: layer(x))
    found = gradients(layers, offloading.offloading_checkpoint)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    assert moved == [(3, 5)] * 3


def test_what_is_on_the_host_already_stays():
    x = torch.ones(3)
    assert offloading._packed(x) is x
    assert offloading._unpacked(x) is x


def test_what_comes_back_is_on_its_device():
    on_host = torch.ones(3)
    assert offloading._unpacked((torch.device("meta"), on_host)).device.type == "meta"
