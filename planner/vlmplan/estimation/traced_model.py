"""The model as a method and a type make it, and the traces of its micro batches, each run once."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture.attention_backend import SMALL_HEAD_DIM, AttentionBackend
from vlmplan.architecture.model import Part
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.prepare import prepared_model, set_checkpointing
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.architecture.unreleased import until_backward_ends, until_layers_end
from vlmplan.engines.collectives import arrivals
from vlmplan.engines.flat_units import give_gradients
from vlmplan.engines.parameters import ParameterTable
from vlmplan.errors import InputError
from vlmplan.estimation.asked_types import refuse_asked_types
from vlmplan.estimation.micro_batch import tape_for
from vlmplan.estimation.sample_runs import SampleRuns
from vlmplan.estimation.task_inputs import refuse_task_inputs
from vlmplan.hardware import CPU_KERNELS
from vlmplan.models.tree import model_tree
from vlmplan.recipe import Recipe
from vlmplan.recipe.adapter_views import adapter_views
from vlmplan.recipe.choices import AttentionImplementation, CheckpointKind, LinearAttention
from vlmplan.workload import Workload


class TracedModel:
    """What clusters, batch sizes, engines and checkpointing do not change: the model as a method and a type make it.

    ``recipe`` decides method, adapters, frozen parts, precision and whether DeepSpeed holds the weights; recipes given
    to the other methods may differ from it in everything else.
    """

    def __init__(self, workload: Workload, recipe: Recipe, *, widest_head: int | None = None) -> None:
        """``widest_head``: of the model's attention heads, if another of the same model has found out. Raises
        InputError where FSDP2 knows no layers to shard, or FSDP1 would flatten frozen weights with trained ones or
        leave a module without parameters that is asked for their type."""
        self.model = prepared_model(model_tree(workload.model, recipe.transformers_version), recipe)
        self.table = ParameterTable(self.model, lambda: self._arrivals(recipe))
        if recipe.fsdp and not self.table.stacks_by_label:
            raise InputError(
                f"{workload.model.id} has no layers that vlmplan knows by name, which --fsdp shards one by one; "
                f"give --zero-stage 3"
            )
        if recipe.gradient_units is not None and self.table.frozen_bytes:
            if not recipe.uses_orig_params:
                raise InputError(_frozen_beside_trained(workload.model.id))
            give_gradients(self.table, recipe)
            self.table = ParameterTable(self.model, lambda: self._arrivals(recipe))
        refuse_asked_types(workload, recipe, self.table)
        refuse_task_inputs(workload, recipe)
        self._samples = SampleRuns(workload, self.model, self.table, self._trace_key)
        self._backends: dict[Hashable, AttentionBackend] = {}
        self.widest_head = widest_head
        stacks = self.model.stacks()
        self._others_can_checkpoint = any(one.can_checkpoint for part, one in stacks if part is not Part.LANGUAGE)

    @property
    def workload(self) -> Workload:
        return self._samples.workload

    def trace(self, recipe: Recipe, capability: tuple[int, int] | None) -> Trace:
        """One micro batch of the recipe on a GPU of this compute capability."""
        return self._traced(recipe, self.backend(recipe, capability))

    def first_trace(self, recipe: Recipe, capability: tuple[int, int] | None) -> Trace | None:
        """The first micro batch of a run; None where it is as any other."""
        if not differs_at_first(recipe):
            return None
        return self._traced(recipe, self.backend(recipe, capability), is_first=True)

    def _traced(self, recipe: Recipe, backend: AttentionBackend, *, is_first: bool = False) -> Trace:
        key = (*self._trace_key(recipe, backend), is_first)
        if key not in self._samples.traces:
            tape = tape_for(Tape, recipe, is_first=is_first)
            trace = self._run(tape, recipe, backend)
            self.widest_head = tape.widest_head
            self._samples.traces[key] = trace
        return self._samples.traces[key]

    def _arrivals(self, recipe: Recipe) -> Sequence[tuple[Parameter, int | None]]:
        """The weights that a backward of a workload's samples gives gradients: the same whatever the micro batch."""
        trace = next(iter(self._samples.traces.values()), None) or self.trace(recipe, None)
        return arrivals(trace)

    def _trace_key(self, recipe: Recipe, backend: AttentionBackend) -> Any:
        """What the micro batch of a recipe depends on, beside what an estimator is made for."""
        checkpoints = (recipe.activation_checkpointing, self.checkpoints_others(recipe), recipe.offload_activations)
        checkpoints = (*checkpoints, recipe.checkpoints_reentrantly and recipe.checkpoint_kind)
        is_sharded = recipe.zero_stage == 3, recipe.prefetches_forward, adapter_views(recipe)
        keeps = recipe.keeps_linear_inputs
        batch = (recipe.micro_batch, recipe.batching, recipe.task, recipe.reference)
        caches = recipe.caches_casts and recipe.autocast is not None
        computed = (recipe.loss, recipe.autocast, caches, recipe.pixel_dtypes, recipe.needs_input_gradients)
        release = recipe.transformers_version
        return (*batch, checkpoints, recipe.tiled_mlp, backend, *computed, keeps, is_sharded, release)

    def checkpoints_others(self, recipe: Recipe) -> bool:
        """Whether layers beside the language model's run again in backward: some models' vision encoders never do."""
        return recipe.vision_activation_checkpointing and self._others_can_checkpoint

    def _run(self, tape: Tape, recipe: Recipe, backend: AttentionBackend) -> Trace:
        trace = self._run_itself(tape, recipe, backend)
        if recipe.zero_stage == 3 and recipe.checkpoints_reentrantly:
            calls = recipe.checkpoint_kind is CheckpointKind.REENTRANT_CALLS
            trace = until_backward_ends(trace) if calls else until_layers_end(trace)
        return self._samples.references.around(trace, type(tape), recipe, backend)

    def _run_itself(self, tape: Tape, recipe: Recipe, backend: AttentionBackend) -> Trace:
        set_checkpointing(self.model.stacks(), recipe)
        return self.model.run(tape, self._samples.batch(recipe), backend, loss=recipe.loss)

    def run(self, tape: Tape, recipe: Recipe, capability: tuple[int, int] | None) -> Trace:
        """One micro batch of the recipe on a tape of one's own, for what ``trace`` does not say. Without what runs on
        others: a reference, and what estimates the KL divergence, which leave no activations."""
        return self._run_itself(tape, recipe, self.backend(recipe, capability))

    def backend(self, recipe: Recipe, capability: tuple[int, int] | None) -> AttentionBackend:
        """The attention of a recipe; GPUs on which every head of this model meets the same kernel share one."""
        types = recipe.method.packs_weights, recipe.loaded_dtype
        kinds = recipe.attention, recipe.sequence_parallel, recipe.linear_attention, recipe.torch_version
        key = (capability, *types, *kinds)
        if key not in self._backends:
            self._backends[key] = self._new_backend(recipe, capability)
        return self._backends[key]

    def _new_backend(self, recipe: Recipe, capability: tuple[int, int] | None) -> AttentionBackend:
        backend = AttentionBackend(
            implementation=recipe.attention.value,
            compute_capability=capability or (8, 0),
            sequence_parallel=recipe.sequence_parallel,
            gets_mask=recipe.task is not None,
            uses_fla=recipe.linear_attention is LinearAttention.FLA,
            groups_efficient_heads=recipe.torch_version.groups_efficient_heads,
            packed_dtype=recipe.loaded_dtype if recipe.method.packs_weights else None,
        )
        common = replace(backend, compute_capability=(8, 0))
        if capability == CPU_KERNELS:
            return backend
        if recipe.attention is not AttentionImplementation.SDPA:
            return common
        if backend.compute_capability < (8, 0):
            return replace(backend, compute_capability=(7, 0))
        if not backend.has_small_shared_memory:
            return common
        small = replace(backend, compute_capability=(8, 6))
        if self.widest_head is None:
            self._find_widest_head(recipe, small, common)
        assert self.widest_head is not None
        return common if self.widest_head <= SMALL_HEAD_DIM else small

    def _find_widest_head(self, recipe: Recipe, small: AttentionBackend, common: AttentionBackend) -> None:
        """By a trace that is needed anyway: where all heads meet the kernels of ``common``, it is that of ``common``
        too."""
        trace = self._traced(recipe, small)
        assert self.widest_head is not None
        if self.widest_head <= SMALL_HEAD_DIM:
            self._samples.traces[(*self._trace_key(recipe, common), False)] = trace


def differs_at_first(recipe: Recipe) -> bool:
    """Whether the first micro batch of a run computes otherwise than later ones."""
    return adapter_views(recipe, is_first=True) != adapter_views(recipe)


def _frozen_beside_trained(model: str) -> str:
    """Why FSDP1 without original parameters does not train it: its root has weights of every part (torch 2.13
    ``_flat_param.py``, ``_validate_tensors_to_flatten``)."""
    return (
        f"weights of {model} are frozen, which FSDP1 with --no-orig-params cannot flatten with trained ones, and its "
        f"root has both: torch stops; train all parts, give --orig-params, or --flat-parameters none for FSDP2"
    )
