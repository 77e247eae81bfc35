"""The bundled trainer's SGD beside torch's: the same weights, without copies of gradients."""

from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from vlmplan.recipe import Recipe  # noqa: E402
from vlmplan.recipe.choices import OptimizerKind  # noqa: E402
from vlmplan_trainer.engines.optimizers import make_optimizer, set_learning_rate  # noqa: E402


class Made(TorchDispatchMode):
    """Elements of the tensors that operations make."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        made = found if isinstance(found, list | tuple) else [found]
        if not func._schema.is_mutable:  # of which the results are what it works on
            self.numel += sum(one.numel() for one in made if isinstance(one, torch.Tensor) and one.numel() > 1)
        return found


def weights() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.nn.Parameter(torch.randn(7, 11, generator=generator)) for name in ("first", "second")}


def test_weight_decay_makes_no_copies_of_gradients_and_the_weights_of_torch():
    own, beside = weights(), weights()
    optimizer = make_optimizer(own, Recipe(optimizer=OptimizerKind.SGD), weight_decay=0.1)
    set_learning_rate(optimizer, 0.5)
    theirs = torch.optim.SGD(beside.values(), lr=0.5, momentum=0.9, weight_decay=0.1, foreach=True)
    made = Made()
    for number in range(3):
        for name in own:
            own[name].grad = torch.full((7, 11), number + 0.25)
            beside[name].grad = torch.full((7, 11), number + 0.25)
        with made if number else nullcontext():  # the first step makes momenta
            optimizer.step()
        theirs.step()
    for name in own:
        assert torch.equal(own[name], beside[name])
        assert not torch.equal(own[name], weights()[name])
    assert made.numel == 0
