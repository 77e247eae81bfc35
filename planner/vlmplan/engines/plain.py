"""Plain PyTorch on one GPU: weights, gradients and states in the weights' own types, nothing beside them."""

from collections.abc import Iterable, Mapping, Sequence

from vlmplan.engines.components import Components
from vlmplan.engines.engine import Engine
from vlmplan.engines.events import Component
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.optimizer_states import norm_sizes, plain_update_sizes, state_bytes
from vlmplan.engines.parameter_groups import chosen_of_groups
from vlmplan.engines.parameters import by_dtype, is_copy
from vlmplan.units import DType


class PlainPyTorch(Engine):
    """``torch.optim`` on the model's own parameters. Those without a gradient it passes over (``_init_group`` in
    ``torch/optim/adamw.py``): they have no states."""

    @property
    def _updated(self) -> Mapping[DType, Sequence[tuple[int, ...]]]:
        """Shapes of the parameters that the optimizer updates, by element type."""
        return self.table.updated_shapes_by_dtype

    @property
    def _updated_ordinals(self) -> Iterable[int]:
        """The ordinals of the parameters that the optimizer updates."""
        return self.table.reduced_ordinals

    @property
    def _updated_groups(self) -> Sequence[Mapping[DType, Sequence[tuple[int, ...]]]]:
        """``_updated`` of each parameter group."""
        if self.recipe.loraplus_lr_ratio is None:
            return [self._updated]
        groups = chosen_of_groups(self.table, self.recipe, self._updated_ordinals)
        return [by_dtype(self.table.trained_entries[ordinal] for ordinal in group) for group in groups]

    @property
    def _gradient_bytes(self) -> int:
        """All gradients that there are when the optimizer steps."""
        return self.table.trained_bytes - self.table.idle_bytes

    def step(self, *, is_first: bool) -> None:
        for num_bytes in norm_sizes(self.recipe, self._updated):
            self.sink.transient(Component.TEMPORARIES, [num_bytes])
        for group in self._updated_groups:
            self._step_group(group, is_first=is_first)
        self._free_gradients()

    def _step_group(self, group: Mapping[DType, Sequence[tuple[int, ...]]], *, is_first: bool) -> None:
        if self.recipe.optimizer.is_torchao:
            self._step_one_by_one(group, is_first=is_first)
            return
        for dtype, shapes in group.items() if is_first else ():
            self._keep_states(shapes, dtype)
        for sizes in plain_update_sizes(self.recipe, group):
            self.sink.transient(Component.TEMPORARIES, sizes)

    def _step_one_by_one(self, group: Mapping[DType, Sequence[tuple[int, ...]]], *, is_first: bool) -> None:
        """Each weight's states are made when its turn comes (``_AdamBase.step`` in ``torchao/optim/adam.py``)."""
        for dtype, shapes in group.items():
            for shape in shapes:
                if is_first:
                    self._keep_states([shape], dtype)
                self._update([shape], dtype)

    @property
    def saving_bytes(self) -> int:
        """An adapter's trained copy of a table that is embedding and head: of a task's checkpoint, which Hugging Face's
        Trainer has ``save_pretrained`` write, it is cloned for its second name, as safetensors knows no aliases (peft
        0.21 ``peft_model.py``)."""
        if self.recipe.task is None or not self.table.ties_weights:
            return 0
        copies = [one.parameter for one in self.table.trained_entries if is_copy(one)]
        return sum(one.num_bytes for one in copies if self.table.is_of_head(one))

    def states(self) -> ModelStates:
        """16 bytes a trained weight in float32 (4 + 4 + 8), 8 in pure bfloat16 (2 + 2 + 4), and in the step the copy
        that foreach AdamW makes: 10 in pure bfloat16."""
        table, recipe = self.table, self.recipe
        states = [state_bytes(recipe, shapes, dtype) for dtype, shapes in self._updated.items()]
        start = Components(weights=table.total_bytes)
        resident = start + Components(optimizer_states=sum(states))
        updates = [sum(sizes) for group in self._updated_groups for sizes in plain_update_sizes(recipe, group)]
        most = max([*norm_sizes(recipe, self._updated), *updates], default=0)
        step = resident + Components(gradients=self._gradient_bytes, temporaries=most)
        return ModelStates(at_start=start, resident=resident, init_peak=start, step_peak=step)
