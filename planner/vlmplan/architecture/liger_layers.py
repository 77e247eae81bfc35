"""Liger's kernels in the layers of a model, as version 0.8.5 puts them in (``_apply_liger_kernel_to_instance``)."""

from vlmplan.architecture.families.llama import Attention, Decoder, GatedMlp
from vlmplan.architecture.model import Model
from vlmplan.architecture.modules import Module, RMSNorm
from vlmplan.errors import InputError
from vlmplan.model_types.liger import LAYER_TYPES, TYPES_WITH_VISION_NORMS, TYPES_WITHOUT_MLP

LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")
HEAD_NORMS = ("q_norm", "k_norm")
VISION_NORMS = ("norm1", "norm2")


def use_liger_layers(model: Model) -> None:
    """Change the norms, MLPs and rotary positions of ``model``. Raises InputError unless it is of ``LAYER_TYPES``."""
    model_type = model.model_type
    if model_type not in LAYER_TYPES:
        raise InputError(f"--liger-layers is not planned for {model_type or 'a model without a family'}")
    for name, module in model.distinct_modules():
        if isinstance(module, Decoder):
            _use_norms(module, ("norm",))
            for layer in module.layers.kinds:
                _use_in_layer(layer, fuses_mlp=model_type not in TYPES_WITHOUT_MLP)
        elif model_type in TYPES_WITH_VISION_NORMS and name.endswith("blocks"):
            for layer in getattr(module, "kinds", ()):
                _use_norms(layer, VISION_NORMS)


def use_compiled_norms(model: Model) -> None:
    """Make of the norms of a decoder and its layers one kernel each, which keeps x and a float32 factor a row as
    Liger's does: what inductor makes of NeMo AutoModel's ``Float32RMSNorm`` (Automodel@36044ad3
    ``components/models/common/utils.py``)."""
    for _, module in model.distinct_modules():
        if isinstance(module, Decoder):
            for owner, names in ((module, ("norm",)), *((layer, LAYER_NORMS) for layer in module.layers.kinds)):
                for name in names:
                    norm = owner.modules_by_name.get(name)
                    if isinstance(norm, RMSNorm):
                        norm.is_compiled = True


def _use_in_layer(layer: Module, *, fuses_mlp: bool) -> None:
    _use_norms(layer, LAYER_NORMS)
    for module in layer.modules_by_name.values():
        if isinstance(module, Attention):
            module.rotates_in_place = True
            _use_norms(module, HEAD_NORMS)
        elif isinstance(module, GatedMlp) and fuses_mlp:
            module.is_fused = True


def _use_norms(owner: Module, names: tuple[str, ...]) -> None:
    for name in names:
        norm = owner.modules_by_name.get(name)
        if isinstance(norm, RMSNorm):
            norm.is_fused = True
