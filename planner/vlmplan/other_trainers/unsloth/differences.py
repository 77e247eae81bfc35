"""What Unsloth does with a program's values and no plan has, said in notes.

Sources: unsloth 2026.10.9 (``models/vision.py``, ``models/_utils.py``) and unsloth_zoo 2026.10.9 (``peft_utils.py``).
"""

from typing import Final

from vlmplan.architecture.families import has_family
from vlmplan.architecture.families.build import build_model
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.packed_weight import nf4_bytes
from vlmplan.notes import Caveat, listed
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.meaning import sees
from vlmplan.other_trainers.programs.unsloth_runs import VARIABLES
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.unsloth.names import DYNAMIC, OF_FOUR_BITS, makers_name
from vlmplan.recipe.choices import Method, Part
from vlmplan.units import DType, gib_text
from vlmplan.workload import ModelFiles

WHERE_MEMORY_IS_TIGHT: Final = (
    'offload_embedding is "auto": embeddings that the head does not share are planned on the GPU; on one GPU Unsloth '
    "moves them to the host where it finds too little memory free for a step"
)
"""``offload_embedding_if_tight`` (``models/_utils.py``)."""


def note_differences(
    settings: Settings, model: ModelFiles | None, method: Method, name: str, *, is_alone: bool
) -> None:
    """Of a program that loads ``name`` with these values; ``is_alone``: one GPU trains."""
    if VARIABLES in settings:
        settings.note(
            f"{listed(settings.names(VARIABLES))}: the program sets what changes Unsloth's memory; planned as if it "
            f"did not"
        )
    _note_packing(settings, model, method, name)
    _note_embeddings(settings, model, method, is_alone=is_alone)


def _note_packing(settings: Settings, model: ModelFiles | None, method: Method, name: str) -> None:
    """Which model is meant, and which of its weights are not in 4 bits."""
    if name and makers_name(name) != name:
        settings.note(f"model_name {name} is taken for {makers_name(name)}")
    if method is not Method.QLORA:
        return
    if not name.casefold().endswith(OF_FOUR_BITS) or name.casefold().endswith(DYNAMIC):
        settings.note(
            "all Linears but the head are planned in 4 bits; Unsloth may load a checkpoint of its own "
            "(unsloth-bnb-4bit) that leaves some in 16 bits, which take more"
        )
    if model is not None and sees(model):
        settings.note(
            Caveat(
                f"all Linears of the tower and the projector are planned in 4 bits, which Unsloth leaves in 16 for "
                f"most models: up to {gib_text(_unpacked_bytes(model))} more"
            )
        )


def _unpacked_bytes(model: ModelFiles) -> int:
    """What Linears outside the language model take more in 16 bits than in 4 (``SKIP_QUANTIZATION_MODULES``)."""
    if not has_family(model.config):
        return 0
    tree = build_model(model.config)
    parts = {id(one): part for part, one in tree.distinct_parameters()}
    linears = [module for _, module in tree.named_modules() if isinstance(module, Linear)]
    sizes = [one.weight.numel for one in linears if parts[id(one.weight)] is not Part.LANGUAGE]
    return sum(size * DType.BFLOAT16.num_bytes - nf4_bytes(size, double_quantises=True) for size in sizes)


def _note_embeddings(settings: Settings, model: ModelFiles | None, method: Method, *, is_alone: bool) -> None:
    """``offload_embedding``: what moves only where memory is tight stands on the GPU in a plan."""
    settings.only("offload_embedding", NOT_PLANNED, "auto")
    if not is_alone or settings.is_on("fast_inference") or model is None or not has_family(model.config):
        return
    is_auto = "offload_embedding" not in settings or settings.mentions("offload_embedding", "auto")
    if is_auto and method is not Method.FULL and not build_model(model.config).ties_weights:
        settings.note(WHERE_MEMORY_IS_TIGHT)
