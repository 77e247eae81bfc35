"""The reference of DPO, KTO and R1-V's GRPO: its forward within a micro batch, and the bytes of a second model."""

from collections.abc import Callable, Hashable
from copy import deepcopy
from dataclasses import replace

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import EvaluationPass, evaluation_pass
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.reference import reference_trace, with_kl_forward, with_reference
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.engines import ModelStates
from vlmplan.engines.choice import engine_of
from vlmplan.engines.components import Components
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.shards import Shards
from vlmplan.estimation.micro_batch import tape_for
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Offload
from vlmplan.recipe.reference_adapters import copies_adapters, runs_without_adapters
from vlmplan.recipe.task_choices import IdleOffload, Reference, ReferenceShards, TaskTrainer
from vlmplan.units import DType

RUNS_BESIDE = (Reference.ADAPTER_OFF, Reference.ADAPTER_COPY, Reference.COPY)
"""References that run while the model is trained."""


class ReferenceRuns:
    """Forwards of references, each run once. ``batch_of`` makes the batch of a recipe, ``key_of`` says what its
    forward depends on."""

    def __init__(
        self,
        model: Model,
        batch_of: Callable[[Recipe], Batch],
        key_of: Callable[[Recipe, AttentionBackend], tuple[Hashable, ...]],
    ) -> None:
        self._model, self._batch_of, self._key_of = model, batch_of, key_of
        self._copies: dict[DType | None, Model] = {}
        self._traces: dict[Hashable, Trace] = {}
        self._evaluations: dict[Hashable, EvaluationPass] = {}

    def around(self, trace: Trace, kind: type[Tape], recipe: Recipe, backend: AttentionBackend) -> Trace:
        """``trace`` of the recipe's micro batch on a tape of this ``kind``, with the forwards without gradients that
        its loss asks for: the reference's, and in KTO those over answers to other prompts."""
        task, reference = recipe.task, self.trace(kind, recipe, backend)
        has_kl = task is not None and task.estimates_kl
        is_last = task is not None and task.estimates_kl_last
        is_reentrant = recipe.has_reentrant_checkpoints
        if has_kl:
            own = self.own_trace(kind, recipe, backend)
            trace = with_kl_forward(trace, own, is_last=is_last, is_reentrant=is_reentrant)
        if reference is None:
            return trace
        is_itself = recipe.reference.is_trained_model
        times = 1 + (has_kl and not is_last)
        return with_reference(trace, reference, is_itself=is_itself, is_reentrant=is_reentrant, times=times)

    def trace(self, kind: type[Tape], recipe: Recipe, backend: AttentionBackend) -> Trace | None:
        """The forwards in a micro batch of DPO, KTO or R1-V on tapes of this ``kind``, one of two that are equal; None
        where there is none."""
        if recipe.task is None or not recipe.task.runs_reference_within or recipe.reference not in RUNS_BESIDE:
            return None
        found = self._forward(kind, recipe, backend, copies=recipe.task.copies_logits)
        if not recipe.task.estimates_kl_last:
            return found
        return with_kl_forward(found, self._forward(kind, recipe, backend, copies=False), is_last=True)

    def precomputed(self, kind: type[Tape], recipe: Recipe, backend: AttentionBackend) -> list[Trace]:
        """The forwards before the run over a batch of the samples that are trained on, and of those that are
        evaluated."""
        batches = [recipe.micro_batch, *([recipe.evaluation.batch] if recipe.evaluation is not None else [])]
        sized = [recipe.with_changes(micro_batch=batch) for batch in batches]
        return [self._forward(kind, one, backend, copies=False) for one in sized]

    def _forward(self, kind: type[Tape], recipe: Recipe, backend: AttentionBackend, *, copies: bool) -> Trace:
        """One forward of the reference, whose logits are copied when they are looked up, or not."""
        assert recipe.task is not None
        unchecked = recipe.with_changes(activation_checkpointing=False, vision_activation_checkpointing=False)
        key = (kind, copies, *self._key_of(unchecked, backend))
        if key not in self._traces:
            tape = tape_for(kind, recipe, is_evaluating=True)
            # A second model beside adapters has none of its own (OpenRLHF), nor does it before training.
            tape.switches_adapters_off = recipe.trains_adapters and not copies_adapters(recipe)
            model = self.model_of(recipe.reference, copy_dtype(recipe))
            loss = recipe.loss if recipe.task.has_own_loss else LossKind.TRL
            batch = replace(self._batch_of(recipe), copies_logits=copies)
            self._traces[key] = reference_trace(model, tape, batch, backend, loss=loss)
        return self._traces[key]

    def own_trace(self, kind: type[Tape], recipe: Recipe, backend: AttentionBackend) -> Trace:
        """The same of the model as it is trained."""
        unchecked = recipe.with_changes(activation_checkpointing=False, vision_activation_checkpointing=False)
        key = (kind, "own", *self._key_of(unchecked, backend))
        if key not in self._traces:
            tape = tape_for(kind, recipe, is_evaluating=True)
            batch = replace(self._batch_of(recipe), copies_logits=False)
            self._traces[key] = reference_trace(self._model, tape, batch, backend, loss=recipe.loss)
        return self._traces[key]

    def evaluation(self, kind: type[Tape], recipe: Recipe, backend: AttentionBackend) -> EvaluationPass | None:
        """The same in a batch of an evaluation, which is the recipe's micro batch; None where there is none."""
        if recipe.reference not in RUNS_BESIDE:
            return None
        unchecked = recipe.with_changes(activation_checkpointing=False, vision_activation_checkpointing=False)
        key = ("evaluation", kind, *self._key_of(unchecked, backend))
        if key not in self._evaluations:
            tape = tape_for(kind, recipe, is_evaluating=True)
            tape.switches_adapters_off = runs_without_adapters(recipe)
            model = self.model_of(recipe.reference, copy_dtype(recipe))
            self._evaluations[key] = evaluation_pass(model, tape, self._batch_of(recipe), backend, loss=LossKind.TRL)
        return self._evaluations[key]

    def model_of(self, reference: Reference, dtype: DType | None = None) -> Model:
        """A second model has weights of its own, which ZeRO-3 gathers by themselves. ``dtype`` is theirs; None: that of
        the first's."""
        if reference is not Reference.COPY:
            return self._model
        if dtype not in self._copies:
            self._copies[dtype] = deepcopy(self._model)
            for _, weight in self._copies[dtype].distinct_parameters():
                weight.dtype = dtype or weight.dtype
        return self._copies[dtype]


def with_other_models(states: ModelStates, table: ParameterTable, recipe: Recipe, num_ranks: int) -> ModelStates:
    """``states`` with the models that stand beside the trained one, where the recipe has such, and with tables of the
    model that are no weights."""
    num_bytes = beside_bytes(table, recipe, num_ranks) + table.table_bytes(recipe)
    return states._replace(other_models=Components(weights=num_bytes)) if num_bytes else states


def has_upper_bound(recipe: Recipe) -> bool:
    """Whether closed bounds hold the recipe's peak: not where answers are generated, which depends on the whole batch,
    and not where a reference or an evaluation makes stage 3 keep what it gathers."""
    task = recipe.task
    if recipe.evaluation is not None and recipe.zero_stage == 3:
        return False
    if task is None:
        return True
    loses_order = recipe.reference.is_trained_model or task.estimates_kl
    return task.reads_reference and not (loses_order and recipe.zero_stage == 3)


def beside_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """Bytes on one GPU of the models that stand beside the trained one: the reference, and reward models.

    Reward models go through ``prepare_deepspeed`` or ``prepare_model`` (``grpo_trainer.py``): in the precision under
    DeepSpeed, sharded under stage 3, else as they are loaded, in float32; ms-swift loads them as the model.
    """
    rewards = 0 if recipe.task is None else recipe.task.reward_params
    is_narrow = recipe.uses_deepspeed or (recipe.task is not None and recipe.task.is_of_ms_swift)
    width = recipe.precision.dtype.num_bytes if is_narrow else DType.FLOAT32.num_bytes
    shards = num_ranks if recipe.zero_stage == 3 else 1
    return copy_bytes(table, recipe, num_ranks) + adapter_copy_bytes(table, recipe) + -(-rewards // shards) * width


def beside_sizes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> list[int]:
    """The same, tensor by tensor, without a second model under stage 3; where weights are sharded otherwise, each has
    its share of what a GPU has."""
    copied = copy_bytes(table, recipe, num_ranks)
    rest = beside_bytes(table, recipe, num_ranks) - copied
    if not copied or recipe.zero_stage == 3:
        return [rest] if rest else []
    trained = recipe.trains_adapters and not recipe.fsdp
    weights = [one.parameter for one in table.entries if not (trained and one.parameter.requires_grad)]
    of_all = sum(weight.num_bytes for weight in weights)
    sizes = [weight.num_bytes * copied // of_all for weight in weights]
    return [*sizes, rest] if rest else sizes


def adapter_copy_bytes(table: ParameterTable, recipe: Recipe) -> int:
    """Bytes of the adapters that are the reference's: the bundled trainer has them in the type of the trained ones. In
    axolotl peft makes them float32, and TRL those that are trained alone narrower; an engine of DeepSpeed casts all
    (``deepspeed/runtime/engine.py`` ``_configure_distributed_model``)."""
    if not copies_adapters(recipe):
        return 0
    if recipe.reference is Reference.ADAPTER_COPY:
        return table.total_bytes - table.frozen_bytes
    dtype = recipe.precision.dtype if recipe.uses_deepspeed else DType.FLOAT32
    return table.num_trained * dtype.num_bytes


def host_copy_bytes(table: ParameterTable, recipe: Recipe, stored: DType) -> int:
    """Bytes of a second model in a rank's host memory while it loads.

    Under DeepSpeed but for stage 3 the first model waits there for its engine, which ``Trainer.train`` makes
    (``Trainer.__init__`` moves it to the GPU otherwise), while the second is read (``dpo_trainer.py``). Weights in the
    type of the files are those themselves, which ranks share.
    """
    waits = recipe.uses_deepspeed and recipe.zero_stage != 3
    is_of_llama_factory = recipe.task is not None and recipe.task.is_of_llama_factory
    dtype = recipe.precision.dtype if is_of_llama_factory else recipe.loaded_dtype
    if recipe.reference is not Reference.COPY or not waits or dtype is stored:
        return 0
    return table.num_loaded(recipe) * dtype.num_bytes


def copy_dtype(recipe: Recipe) -> DType | None:
    """Element type of a second model's weights; None where they are those of the first, or as an engine casts them.

    LLaMA-Factory 0.9.5 ``create_ref_model`` in ``train/trainer_utils.py``: ``load_model`` with ``is_trainable=False``
    makes nothing of it float32, as ``init_adapter`` does what is trained. TRL 1.9 ``create_model_from_path`` in
    ``trainer/utils.py``, which axolotl's GRPO has, loads it in float32 where no type is said.
    """
    task = recipe.task
    if task is None or recipe.uses_deepspeed:
        return None
    if task.is_of_axolotl and task.is_grpo:
        return DType.FLOAT32
    return recipe.precision.dtype if task.is_of_llama_factory else None


def copy_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """Bytes of a second model on one GPU.

    It has the type of the first (``dpo_trainer.py``: ``ref_model_init_kwargs.setdefault("dtype", self.model.dtype)``),
    which DeepSpeed casts alike. ``prepare_deepspeed`` (``trl/models/utils.py``) shards it under stage 3, with weights
    up to the persistence threshold whole, and has it whole on every GPU under the others. Its configuration is the
    run's own but for the optimizer's part, so that shards are on the host where the first model's are. verl
    shards it as it shards the first. OpenRLHF has one beside adapters too, without any (``train_dpo.py``), whose engine
    is of stage 3 or 0 (``get_ds_eval_config``).
    """
    if recipe.reference is not Reference.COPY:
        return 0
    if recipe.fsdp:
        is_here = recipe.task is not None and recipe.task.reference_shards is ReferenceShards.GPU
        return reference_shard_bytes(table, recipe, num_ranks) if is_here else 0
    dtype = copy_dtype(recipe)
    if recipe.zero_stage != 3:
        own = table.frozen_bytes if recipe.trains_adapters else table.total_bytes
        return own if dtype is None else table.num_params * dtype.num_bytes
    found = Shards(table, recipe, num_ranks)
    shards, persistent = found.frozen_weight_totals if recipe.trains_adapters else found.weight_totals
    waits = recipe.task is not None and recipe.task.reference_shards is not ReferenceShards.GPU
    return persistent + (0 if waits or recipe.offload_params is not Offload.NONE else shards)


def reference_shard_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """Bytes of a rank's shards of verl's second model, wherever they are: up to 0.8 in copies where the first one is
    (``device_mesh`` of ``ActorRolloutRefWorker``), later and in EasyR1 by a size of its own."""
    if recipe.task is not None and recipe.task.trainer is TaskTrainer.VERL:
        num_ranks = recipe.sharing_ranks(num_ranks)
    is_wide = recipe.task is not None and recipe.task.reference_shards is ReferenceShards.HOST_FLOAT32
    dtype = DType.FLOAT32 if is_wide else DType.BFLOAT16
    return -(-table.num_params // num_ranks) * dtype.num_bytes


def idle_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> tuple[int, int]:
    """Bytes of a rank's weights and of its optimizer's states that wait in host memory while nothing computes with
    them, as verl has it."""
    task = recipe.task
    if task is None or task.idle_offload is IdleOffload.NONE or task.is_of_ms_swift:
        return 0, 0
    resident = engine_of(table, recipe, num_ranks=num_ranks).states().resident
    weights = resident.weights if task.idle_offload.has_weights else 0
    return weights, resident.optimizer_states if task.idle_offload.has_optimizer else 0
