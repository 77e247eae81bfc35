"""DeepSpeed's engine at the stage and with the sizes of the plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlmplan.plan import Plan
from vlmplan.recipe.choices import OptimizerKind, Precision
from vlmplan_trainer.engines.base import LossModule, StepResult
from vlmplan_trainer.engines.optimizers import keeping_settings, make_optimizer, set_learning_rate, trained_of
from vlmplan_trainer.engines.ranks import OnRanks
from vlmplan_trainer.sequence_parallel import share_attention

TAG = "engine"
"""The folder of DeepSpeed's files inside a checkpoint."""


class ZeroEngine(OnRanks):
    def __init__(self, module: LossModule, plan: Plan, *, weight_decay: float, is_universal: bool = False) -> None:
        """``is_universal``: a checkpoint in DeepSpeed's universal form, of any number of ranks, will be loaded."""
        import deepspeed

        trained = trained_of(module)
        optimizer = make_optimizer(trained, plan.recipe, weight_decay=weight_decay)
        config: dict[str, Any] = dict(plan.ds_config or {})
        if is_universal:
            config["checkpoint"] = {**config.get("checkpoint", {}), "load_universal": True}
        made: tuple[Any, ...] = deepspeed.initialize(
            model=module,
            model_parameters=list(trained.values()),  # pyright: ignore[reportArgumentType]: parameters, as its docstring has it
            optimizer=optimizer,
            config=config,
            dist_init_required=False,
            mpu=share_attention(module.model, plan.recipe),
        )
        self._engine = made[0]
        forget_empty_step(optimizer)
        self._scales_loss = plan.recipe.zero_stage == 0 and plan.recipe.precision is Precision.FP16
        self._knows_norm = plan.recipe.optimizer is not OptimizerKind.MUON
        self._steps_per_update = plan.recipe.grad_accum
        self._averages_over = _averaged_ranks(plan)
        self.device = torch.device(self._engine.device)
        self.rank, self.num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()

    @property
    def model(self) -> nn.Module:
        return self._engine.module.model

    @property
    def loss_scale(self) -> int:
        """The engine takes means over micro batches and ranks; the loss is a sum over both."""
        return self._averages_over * self._steps_per_update

    def forward(self, batch: Mapping[str, Tensor], num_items: int) -> Tensor:
        return self._engine(batch, num_items) * self.loss_scale

    @property
    def _missing_scale(self) -> float:
        """What fp16 gradients of stage 0 have to be scaled by here.

        The optimizer divides them by its loss scale (``unscale_and_clip_grads`` in ``fp16/unfused_optimizer.py``
        0.19.8), but ``DeepSpeedEngine.backward`` multiplies the loss only where the optimizer is ZeRO's: without this
        they would be 65,536 times too small and never clipped (seen).
        """
        return float(self._engine.optimizer.loss_scale) if self._scales_loss else 1.0

    def backward(self, loss: Tensor) -> None:
        self._engine.backward(loss * self._missing_scale)
        self._engine.module.release_logits()
        if not self._engine.is_gradient_accumulation_boundary():
            self._engine.step()  # counts the micro batch; the update itself is ``step``

    def step(self, learning_rate: float) -> StepResult:
        set_learning_rate(self._engine.optimizer, learning_rate)
        skipped, scale = self._engine.skipped_steps, self._missing_scale
        self._engine.step()
        norm = self._engine.get_global_grad_norm() if self._knows_norm else None  # that of Muon's updates
        return StepResult(
            grad_norm=None if norm is None else float(norm) / scale, is_skipped=self._engine.skipped_steps > skipped
        )

    def save(self, folder: Path) -> None:
        self._engine.save_checkpoint(str(folder), tag=TAG, save_latest=False, exclude_frozen_parameters=True)

    def load(self, folder: Path) -> None:
        with keeping_settings(self._engine.optimizer):
            path, _ = self._engine.load_checkpoint(str(folder), tag=TAG, load_module_strict=False)
        if path is None:
            raise RuntimeError(f"DeepSpeed found nothing to load in {folder}")
        self._release_small_weights()

    def _release_small_weights(self) -> None:
        """Shard again the weights below the persistence threshold of stage 3, as they are before a run's first forward.

        DeepSpeed notes in that forward which weights a module uses beside its own, as DoRA's does, by their not being
        whole (``ZeROOrderedDict`` in 0.19.8 ``zero/parameter_offload.py``). ``load_checkpoint`` leaves small ones
        whole, the first forward releases them all the same, and DoRA's backward would find them empty.
        """
        small = getattr(self._engine.optimizer, "persistent_parameters", ())
        if small:
            small[0].partition(small)

    def weights(self) -> dict[str, Tensor] | None:
        if self._engine.zero_optimization_stage() == 3:
            whole = self._engine._zero3_consolidated_16bit_state_dict()
        else:
            whole = self._engine.module.state_dict()
        if self.rank != 0 or whole is None:
            return None
        return {name.removeprefix("model."): tensor.detach() for name, tensor in whole.items()}


def _averaged_ranks(plan: Plan) -> int:
    """What DeepSpeed divides the sum of all ranks' gradients by: ranks that share samples count once
    (``average_tensor`` in ``stage_1_and_2.py`` 0.19.8), but each under stage 3 where gradients are reduced and
    scattered (``reduce_scatter_coalesced``, which knows nothing of sequence parallelism)."""
    num_gpus, recipe = plan.hardware.num_gpus, plan.recipe
    scatters = recipe.zero_stage == 3 and (plan.ds_config or {})["zero_optimization"].get("reduce_scatter", True)
    return num_gpus if scatters else num_gpus // recipe.sequence_parallel


def forget_empty_step(optimizer: torch.optim.Optimizer) -> None:
    """Adam counts its steps from here on.

    Stage 0 makes the optimizer's states by a step with zero gradients (``initialize_optimizer_states`` in
    ``fp16/unfused_optimizer.py`` 0.19.8), which Adam's bias correction would take for one that had gradients: its first
    real update would be 0.74 of what it is without DeepSpeed.
    """
    for state in optimizer.state.values():
        step = state.get("step")
        if isinstance(step, torch.Tensor):
            step.zero_()
        elif step is not None:
            state["step"] = 0
