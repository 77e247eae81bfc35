"""What an existing ds_config.json says.

Every key that DeepSpeed reads is checked by its table; what DeepSpeed does not know, or what matters and is not
modelled, is refused by name, all of it at once. An "auto" that Hugging Face's Trainer fills in stays open until the
options and the model are known (``auto``).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vlmplan.deepspeed_config.auto import SIZES_FROM_MODEL, sizes_from_hidden_size
from vlmplan.deepspeed_config.content import ZERO, Content, checked_content, idle_sentences, listed
from vlmplan.deepspeed_config.mistakes import Mistakes
from vlmplan.deepspeed_config.other_files import read_ds_config, refuse_other_files
from vlmplan.deepspeed_config.precision import open_precisions
from vlmplan.deepspeed_config.schedules import check_scheduler
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject, shown
from vlmplan.recipe.choices import Offload, OptimizerKind, Precision
from vlmplan.recipe.muon import MOMENTUM as MUON_MOMENTUM
from vlmplan.recipe.zero import ZeroSettings

DEFAULT_STAGE = 0
"""Without a stage, ZeRO is off."""

UNTESTED = "zero_allow_untested_optimizer"
SGD_MOMENTUM = 0.9
OPTIMIZERS = {
    "adam": OptimizerKind.ADAMW,  # DeepSpeed's Adam is AdamW unless adam_w_mode is false
    "adamw": OptimizerKind.ADAMW,
    "muon": OptimizerKind.MUON,
}
"""Optimizers of DeepSpeed's own, whose capitals do not count."""
TORCH_OPTIMIZERS = {"SGD": OptimizerKind.SGD, "Adafactor": OptimizerKind.ADAFACTOR}
"""Names that DeepSpeed looks up in ``torch.optim``, whose ``sgd`` is a module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DsConfig:
    """What a ds_config.json says; None where it says nothing, or leaves it to the options with "auto".

    ``content`` is the file under DeepSpeed's current names, with whole numbers as int, without "auto", and without
    optimizer and scheduler, which the trainer builds itself. ``autos`` are the paths of what is "auto".
    ``precisions`` are those that the file leaves open, ``precision`` the one where it decides. ``notes`` are sentences
    that the user should see.
    """

    source: str
    content: Mapping[str, Any] = field(hash=False)
    zero_stage: int | None
    offload_optimizer: Offload | None
    offload_params: Offload | None
    hpz: int | None
    sequence_parallel: int | None
    nvme_path: str | None
    precisions: tuple[Precision, ...] | None
    micro_batch: int | None
    grad_accum: int | None
    train_batch_size: int | None
    gradient_clipping: float | None
    optimizer: OptimizerKind | None
    optimizer_params: Mapping[str, Any] = field(hash=False)
    scheduler: Mapping[str, Any] = field(hash=False)
    autos: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def precision(self) -> Precision | None:
        """The precision that the file decides."""
        return self.precisions[0] if self.precisions is not None and len(self.precisions) == 1 else None

    @property
    def has_torch_adam(self) -> bool:
        """Whether DeepSpeed would make torch's AdamW in place of its own."""
        return self.optimizer is OptimizerKind.ADAMW and bool(self.optimizer_params.get("torch_adam"))

    @property
    def zero(self) -> ZeroSettings:
        """The sizes at the file's own stage."""
        return self.zero_settings(DEFAULT_STAGE if self.zero_stage is None else self.zero_stage)

    def zero_settings(self, stage: int, *, hidden_size: int | None = None) -> ZeroSettings:
        """The sizes at ``stage``, with DeepSpeed's defaults: communication overlaps at stage 3 unless said.

        ``hidden_size`` is the model's, of which sizes that are "auto" are made; InputError where it is needed.
        """
        section = self.content.get(ZERO, {})
        stated = {item.name: section[item.name] for item in fields(ZeroSettings) if item.name in section}
        open_sizes = sorted(SIZES_FROM_MODEL & self.autos)
        if open_sizes and hidden_size is None:
            raise InputError(
                f'{self.source}: {listed(open_sizes)} {"is" if len(open_sizes) == 1 else "are"} "auto", which is made '
                f"of the model's hidden_size, and its config.json has none; write the numbers"
            )
        if open_sizes and hidden_size is not None:
            sizes = sizes_from_hidden_size(hidden_size)
            stated |= {path.rpartition(".")[2]: sizes[path] for path in open_sizes}
        return ZeroSettings(**({"overlap_comm": stage == 3} | stated))


def notes_beside(config: DsConfig, given: Collection[str]) -> tuple[str, ...]:
    """The file's notes where ``given`` are the settings that the user decided beside it."""
    if config.optimizer is not None or "optimizer" in given or not config.content.get(UNTESTED):
        return config.notes
    sentence = (
        f"{config.source}: {UNTESTED} is true, as a file for SGD, Adafactor or an optimizer of bitsandbytes has it, "
        f"but no optimizer.type says which; AdamW is planned unless --optimizer names another"
    )
    return (*config.notes, sentence)


def settings_from_ds_config(config: str | Path | Mapping[str, Any], *, name: str = "ds_config") -> DsConfig:
    """What a ds_config.json (a path, or its content under ``name``) says.

    Raises UnavailableError if the file cannot be read, InputError for what is no ds_config.json or not modelled: one
    sentence with everything that is wrong.
    """
    if isinstance(config, (str, Path)):
        config, name = read_ds_config(Path(config)), str(config)
    refuse_other_files(config, name)
    mistakes = Mistakes(name)
    content = checked_content(JsonObject(config, source=name), mistakes)
    values = content.values
    zero = values.get(ZERO, {})
    optimizer, scheduler = values.pop("optimizer", {}), values.pop("scheduler", {})
    kind = _optimizer_kind(optimizer.get("type"), mistakes)
    _check_optimizer(kind, optimizer.get("params", {}), mistakes)
    check_scheduler(scheduler, mistakes)
    nvme_path = _nvme_path(zero, mistakes)
    precisions = open_precisions(values, content.autos, mistakes)
    mistakes.report()
    return DsConfig(
        source=name,
        content=values,
        zero_stage=None if "stage" not in zero else int(zero["stage"]),
        offload_optimizer=_device(zero, "offload_optimizer"),
        offload_params=_device(zero, "offload_param"),
        hpz=zero.get("zero_hpz_partition_size"),
        sequence_parallel=values.get("sequence_parallel_size"),
        nvme_path=nvme_path,
        precisions=precisions,
        micro_batch=values.get("train_micro_batch_size_per_gpu"),
        grad_accum=values.get("gradient_accumulation_steps"),
        train_batch_size=values.get("train_batch_size"),
        gradient_clipping=None if (norm := values.get("gradient_clipping")) is None else float(norm),
        optimizer=kind,
        optimizer_params=optimizer.get("params", {}),
        scheduler=scheduler,
        autos=frozenset(content.autos),
        notes=tuple(f"{name}: {sentence}" for sentence in _sentences(content, kind, optimizer, scheduler)),
    )


def _sentences(
    content: Content, kind: OptimizerKind | None, optimizer: Mapping[str, Any], scheduler: Mapping[str, Any]
) -> list[str]:
    """What the user should know of a file that is taken."""
    sentences = list(idle_sentences(content))
    params: Mapping[str, Any] = optimizer.get("params", {})
    stated = [f"{key} {shown(params[key])}" for key in ("lr", "betas", "eps", "weight_decay") if key in params]
    if stated:
        sentences.append(f"the optimizer's {listed(stated)} decide results, not bytes; launch takes its own options")
    if scheduler:
        sentences.append("scheduler is not used: the trainer has its own (launch --schedule, --warmup-fraction)")
    if kind is OptimizerKind.SGD and "momentum" not in params:
        sentences.append("optimizer.type is SGD, which the trainer runs with a momentum of 0.9, as planned")
    zero = content.values.get(ZERO, {})
    if kind is OptimizerKind.MUON and zero.get("stage") == 3 and zero.get("reduce_scatter", True):
        sentences.append(
            "zero_optimization.reduce_scatter is true, with which DeepSpeed refuses Muon at stage 3; false is planned "
            "and written"
        )
    return sentences


def _device(zero: Mapping[str, Any], key: str) -> Offload | None:
    return Offload(zero[key].get("device", "none")) if key in zero else None


def _nvme_path(zero: Mapping[str, Any], mistakes: Mistakes) -> str | None:
    paths: list[str] = []
    for key in ("offload_optimizer", "offload_param"):
        block = zero.get(key, {})
        if block.get("device") == "nvme":
            if block.get("nvme_path"):
                paths.append(block["nvme_path"])
            else:
                mistakes.add(f"{ZERO}.{key}.device is nvme, but its nvme_path is missing")
    return paths[0] if paths else None


def _check_optimizer(kind: OptimizerKind | None, params: Mapping[str, Any], mistakes: Mistakes) -> None:
    """The trainer builds its optimizers with momenta of its own. DeepSpeed builds none with ``max_grad_norm``."""
    own = MUON_MOMENTUM if kind is OptimizerKind.MUON else SGD_MOMENTUM
    if params.get("momentum", own) != own:
        mistakes.add(f"optimizer.params.momentum is {shown(params['momentum'])}; the trainer has {own}")
    if kind is not None and "max_grad_norm" in params:
        mistakes.add("optimizer.params.max_grad_norm stops DeepSpeed, whose gradient_clipping is what it means")


def _optimizer_kind(name: str | None, mistakes: Mistakes) -> OptimizerKind | None:
    if name is None:
        return None
    kind = OPTIMIZERS.get(name.lower(), TORCH_OPTIMIZERS.get(name))
    if kind is None:
        mistakes.add(f"optimizer.type is {shown(name)}; one of AdamW, Adam, SGD, Adafactor, Muon is needed")
    return kind
