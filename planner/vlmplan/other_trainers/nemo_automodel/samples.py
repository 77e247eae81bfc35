"""Batches, samples, checkpoints and evaluation of a recipe.

Source: Automodel@36044ad3 ``nemo_automodel/components/training/step_scheduler.py``; ``components/datasets`` and
``components/checkpoint``; ``_run_validation_epoch`` in ``recipes/llm/train_ft.py``.
"""

from typing import Final

from vlmplan.data_rules import NOT_KNOWN, DataRules, Order
from vlmplan.other_trainers.assembled import largest_image, without_limit
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.nemo_automodel.keys import NEMO_AUTOMODEL, NOT_PLANNED
from vlmplan.other_trainers.nemo_automodel.models import NemoModel
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import AttentionImplementation, BatchesOnGpu
from vlmplan.recipe.evaluation import Kept
from vlmplan.run.saving import Interval, Saving
from vlmplan.workload import ModelFiles

S: Final = "step_scheduler."
P: Final = "packed_sequence."
PACKED: Final = f"{P}packed_sequence_size"
THD: Final = "thd"
STRATEGIES: Final = (THD, "neat")
GLOBAL_BATCH, EPOCHS, CHECKPOINT_STEPS = 32, 10, 100
LENGTHS: Final = (*("dataset.seq_length", "dataset.seq_len", "dataset.max_length", "dataloader.collate_fn.max_length"),)
"""Keys that cut samples, or leave longer ones out, the first that is said."""


def batch_options(settings: Settings, around: Surroundings, *, sees: bool) -> dict[str, Value]:
    micro_batch = settings.count(f"{S}local_batch_size", 1, least=1)
    total = settings.count(f"{S}global_batch_size", GLOBAL_BATCH, least=1)
    if around.num_gpus is not None and total % (micro_batch * around.num_gpus):
        settings.refuse(
            f"{S}global_batch_size",
            f"a multiple of {S}local_batch_size {micro_batch} on {around.num_gpus} GPUs is needed: "
            f"{micro_batch * around.num_gpus}, or more",
        )
    options: dict[str, Value] = {
        "micro_batch": micro_batch,
        "global_batch": total,
        "batches_on_gpu": (BatchesOnGpu.TURN_FLOAT32 if sees else BatchesOnGpu.TURN).value,
    }
    steps = settings.maybe_count(f"{S}max_steps", least=1)
    if steps is None:
        return {**options, "epochs": float(settings.count(f"{S}num_epochs", EPOCHS, least=1))}
    if f"{S}num_epochs" in settings:
        settings.note(f"{S}max_steps goes before {S}num_epochs here: fewer steps are made where samples run out before")
    settings.ignore((f"{S}num_epochs",))
    return {**options, "epochs": 1.0, "num_samples": steps * total}


def sample_options(settings: Settings, model: ModelFiles | None, *, sees: bool) -> dict[str, Value]:
    """The length of samples, and the largest image."""
    said = next((key for key in LENGTHS if key in settings), None)
    options: dict[str, Value] = {}
    if said is None:
        settings.note(f"no length of samples is said: {without_limit(model)}")
    else:
        options["seq_len"] = settings.count(said, 1, least=1)
    pixels = settings.maybe_count("processor.max_pixels", least=1)
    if sees and pixels is not None:
        options["image_size"] = largest_image(pixels)
    return options


def packing_options(settings: Settings, model: NemoModel) -> dict[str, Value]:
    """Rows of exactly ``packed_sequence_size`` tokens, by flash attention whatever else is said
    (``_apply_preload_overrides`` in ``_transformers/kernel_patches.py``; ``ThdPackingConfig`` and ``NeatPackingConfig``
    in ``components/datasets/loader.py``). Its own models take rows of ``thd`` by Transformer Engine alone
    (``components/models/llama/model.py``), which is what they have where it is installed (``BackendConfig``)."""
    settings.only(f"{P}pack_size", f"samples with images that are packed: {NOT_PLANNED}; 0 is")
    size = settings.maybe_count(PACKED)
    if not size:
        return {}
    if model.sees:
        settings.refuse(PACKED, f"samples with images that are packed: {NOT_PLANNED}; 0 is")
    strategy, attention = settings.text(f"{P}packing_strategy", THD), settings.value("model.backend.attn")
    if strategy not in STRATEGIES:
        settings.refuse(f"{P}packing_strategy", f"{NOT_PLANNED}; {' and '.join(STRATEGIES)} are")
    if model.is_own and strategy == THD and attention not in (None, "te"):
        settings.refuse(
            PACKED, f"{NEMO_AUTOMODEL}'s own model of this type takes rows of {THD} with model.backend.attn: te alone"
        )
    name = "Transformer Engine's, planned as flash attention" if model.is_own and strategy == THD else "flash attention"
    settings.note(f"{PACKED}: rows of {size:,} tokens, whatever lengths samples have; attention is {name}")
    return {"seq_len": size, "attention": AttentionImplementation.FLASH_ATTENTION_2.value}


def evaluation_options(settings: Settings, micro_batch: int) -> dict[str, Value]:
    """The loss of the validation set after so many steps; logits go batch by batch."""
    if not any(key.startswith("validation_dataset") for key in settings.keys):
        settings.ignore((f"{S}val_every_steps",))
        return {}
    every = settings.maybe_count(f"{S}val_every_steps", least=1)
    if every is None:
        settings.note(f"{S}val_every_steps is not said: it evaluates beside checkpoints, which is not counted")
        return {}
    batch = settings.maybe_count("validation_dataloader.batch_size", least=1)
    names = [f"validation_dataset.{name}" for name in ("limit_dataset_samples", "num_samples_limit", "num_samples")]
    most = next((settings.count(name, 1, least=1) for name in names if name in settings), None)
    return {
        "eval_batch": batch or micro_batch,
        "eval_every": every,
        "eval_keeps": Kept.LOSS.value,
        **({} if most is None else {"eval_samples": most}),
    }


def saving_of(settings: Settings) -> Saving:
    """Shards of weights and states, and the model where it says so."""
    is_on = settings.flag("checkpoint.enabled", True)
    every = settings.count(f"{S}ckpt_every_steps", CHECKPOINT_STEPS, least=1)
    return Saving(
        interval=Interval.STEPS if is_on else Interval.NEVER,
        every=float(every),
        keep_last=settings.maybe_count("checkpoint.max_recent_checkpoints", least=1),
    )


def data_rules_of(settings: Settings) -> DataRules:
    shuffles = settings.flag("dataloader.shuffle", False)
    packs = bool(settings.value(PACKED))
    return DataRules(
        trainer=NEMO_AUTOMODEL,
        pads_to=settings.count("dataloader.collate_fn.pad_seq_len_divisible", 1, least=1),
        packs=packs,
        learns=NOT_KNOWN,
        order=Order.RANDOM if shuffles else Order.SEQUENTIAL,
    )
