"""Gradients without a micro batch, for tests of what engines do with them."""

from vlmplan.engines import Engine
from vlmplan.engines.events import Component
from vlmplan.memory.peaks import PeakTracker


class Gradients(PeakTracker):
    """Hands gradients to an engine without a micro batch."""

    def arrive(self, engine: Engine) -> None:
        engine.begin_micro_batch(accumulates=False, is_last=True)
        for ordinal in reversed(engine.table.reduced_ordinals):
            engine.expect_gradient()
            self.allocate(ordinal, Component.GRADIENTS, engine.table.gradient_sizes[ordinal])
            engine.take_gradient(ordinal)
        engine.end_backward()
        engine.reduce_gradients()
