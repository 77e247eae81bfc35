"""Plain PyTorch on one GPU: weights, gradients and states in the weights' own types, nothing beside them."""

from collections.abc import Mapping, Sequence

from vlmplan.engines.components import Components
from vlmplan.engines.engine import Engine, ModelStates
from vlmplan.engines.events import Component
from vlmplan.engines.optimizer_states import norm_sizes, plain_update_sizes, state_bytes
from vlmplan.units import DType


class PlainPyTorch(Engine):
    """``torch.optim`` on the model's own parameters. Those without a gradient it passes over (``_init_group`` in
    ``torch/optim/adamw.py``): they have no states."""

    @property
    def _updated(self) -> Mapping[DType, Sequence[tuple[int, ...]]]:
        """Shapes of the parameters that the optimizer updates, by element type."""
        return self.table.updated_shapes_by_dtype

    @property
    def _gradient_bytes(self) -> int:
        """All gradients that there are when the optimizer steps."""
        return self.table.trained_bytes - self.table.idle_bytes

    def step(self, *, is_first: bool) -> None:
        by_dtype = self._updated
        for num_bytes in norm_sizes(self.recipe, by_dtype):
            self.sink.transient(Component.TEMPORARIES, [num_bytes])
        if self.recipe.optimizer.is_torchao:
            self._step_one_by_one(by_dtype, is_first=is_first)
        else:
            for dtype, shapes in by_dtype.items() if is_first else ():
                self._keep_states(shapes, dtype)
            for sizes in plain_update_sizes(self.recipe, by_dtype):
                self.sink.transient(Component.TEMPORARIES, sizes)
        self._free_gradients()

    def _step_one_by_one(self, by_dtype: Mapping[DType, Sequence[tuple[int, ...]]], *, is_first: bool) -> None:
        """Each weight's states are made when its turn comes (``_AdamBase.step`` in ``torchao/optim/adam.py``)."""
        for dtype, shapes in by_dtype.items():
            for shape in shapes:
                if is_first:
                    self._keep_states([shape], dtype)
                self._update([shape], dtype)

    def states(self) -> ModelStates:
        """16 bytes a trained weight in float32 (4 + 4 + 8), 8 in pure bfloat16 (2 + 2 + 4), and in the step the copy
        that foreach AdamW makes: 10 in pure bfloat16."""
        table, recipe = self.table, self.recipe
        states = [state_bytes(recipe, shapes, dtype) for dtype, shapes in self._updated.items()]
        start = Components(weights=table.total_bytes)
        resident = start + Components(optimizer_states=sum(states))
        updates = map(sum, plain_update_sizes(recipe, self._updated))
        most = max([*norm_sizes(recipe, self._updated), *updates], default=0)
        step = resident + Components(gradients=self._gradient_bytes, temporaries=most)
        return ModelStates(at_start=start, resident=resident, init_peak=start, step_peak=step)
