"""What one trainer's keys mean, and what is known beside them: what a configuration is assembled of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vlmplan.architecture.images import IMAGE_MODEL_TYPES
from vlmplan.data_rules import NOT_KNOWN, DataRules
from vlmplan.model_types.liger import FUSED_LOSS_TYPES
from vlmplan.other_trainers.fsdp import (
    OF_ACCELERATE,
    Sharding,
)
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.shipped_deepspeed import ShippedFiles
from vlmplan.recipe.choices import Method, Precision, WeightDtype
from vlmplan.workload import ModelFiles

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
OF_PROCESSOR = "processor."
"""How keys begin by which a program says what its processor does to images; no trainer's arguments have them."""
MOST_PIXELS = f"{OF_PROCESSOR}max_pixels"


def not_asked() -> None:
    """Nothing is known of a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known beside the keys: files are looked for from ``folder`` upwards, None where it came alone;
    ``environment`` is a script's, ``script`` the name of what it starts in Python, without its ending.
    ``num_gpus`` counts all machines, None where a search chooses. ``uses_deepspeed``, ``method`` and ``precision`` are
    the user's own, which go before the file's; None: the file decides.
    """

    folder: Path | None
    num_gpus: int | None = None
    num_nodes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    uses_deepspeed: bool | None = None
    shards: bool | None = None
    """Whether PyTorch shards (``--fsdp``), as the user says."""
    method: Method | None = None
    precision: Precision | None = None
    computes_in_bf16: Callable[[], bool | None] = not_asked
    """Whether the GPU that is asked for does; None: no one card is."""
    script: str = ""
    named_deepspeed: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])
    """DeepSpeed configurations that the trainer ships, by the names that it takes for them."""
    shipped_deepspeed: ShippedFiles = field(default_factory=ShippedFiles)
    """Those of its checkout by their paths there, for names of files that are not here."""

    @property
    def expandable_segments(self) -> bool:
        texts = [self.environment.get(name, "") for name in ALLOCATOR_VARIABLES]
        return any("expandable_segments:true" in text.replace(" ", "").casefold() for text in texts)


@dataclass(slots=True, kw_only=True)
class Meaning:
    """What the keys of one trainer mean beyond ``Arguments``."""

    trainer: str
    method: Method
    options: dict[str, Value]
    weights: WeightDtype = WeightDtype.TABLE
    """The types of the model's own weights in plain PyTorch."""
    adapters: str = "float32"
    """``--adapter-dtype`` in plain PyTorch: peft's own, unless the trainer casts what is trained."""
    data_rules: DataRules = field(default_factory=lambda: DataRules(pads_to=1, learns=NOT_KNOWN))
    """How samples are padded, packed and cut; their order is the arguments'."""
    casts_zero3_adapters: bool = False
    """Whether adapters are made in 16 bit under ZeRO-3, where DeepSpeed leaves them as peft makes them: in float32."""
    packed_storage: str | None = "uint8"
    """``bnb_4bit_quant_storage``: in which type 4-bit weights are kept; None: that is the user's script."""
    packed_computes_in: str | None = None
    """``bnb_4bit_compute_dtype``: in which type 4-bit layers compute; None: as the others, or that is not known."""
    is_reentrant: bool = False
    """Whether its checkpoints are where ``gradient_checkpointing_kwargs`` do not say it."""
    if_reentrant: str = ""
    unless_reentrant: str = ""
    """What is said of adapters under ZeRO-3 whose checkpoints are, and whose are not."""
    use_double_quant: bool | None = None
    """Whether scales of 4-bit weights are quantised too."""
    grows_on_several: bool = False
    """Whether its launcher lets the allocator's segments grow where it starts several processes."""
    without_autocast: Precision = Precision.FP32
    """What plain PyTorch computes in where neither bf16 nor fp16 is set."""
    upcasts_frozen: bool | None = False
    """Whether it calls peft's ``prepare_model_for_kbit_training``; None: that is the user's script."""
    model: ModelFiles | None = None
    fused_loss_types: frozenset[str] = FUSED_LOSS_TYPES
    """The models that what it takes the fused loss from, Liger or another, has one for."""
    sharding: Sharding = OF_ACCELERATE
    """Its FSDP2."""
    without_fsdp: str | None = None
    """Why its FSDP2 is not planned of this run; None where it is."""

    def leaves_float32(self, method: Method) -> bool:
        """Whether peft leaves float32 beside 16-bit weights: adapters, or what it prepares for training."""
        return method is not Method.FULL and (self.adapters == "float32" or self.upcasts_frozen is True)


def sees(model: ModelFiles | None) -> bool:
    """Whether images are among the samples of a model unless the user says otherwise."""
    return model is not None and model.model_type in IMAGE_MODEL_TYPES
