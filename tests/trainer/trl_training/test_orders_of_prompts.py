"""A run of GRPO that goes on in a later epoch has the prompts in the order of that epoch."""

import pytest

pytest.importorskip("trl")

from trl.trainer.utils import RepeatSampler

from vlmplan_trainer.trl_training.planned import skip_epochs


@pytest.mark.parametrize("num_epochs", [0, 1, 3])
def test_epochs_that_are_done_are_skipped_in_the_order_of_prompts(num_epochs):
    whole, on = [RepeatSampler(range(23), mini_repeat_count=2, batch_size=4, seed=7) for _ in range(2)]
    orders = [list(whole) for _ in range(num_epochs + 1)]
    skip_epochs(on, num_epochs)
    assert list(on) == orders[-1]
    assert len({tuple(order) for order in orders}) == num_epochs + 1
