"""Operations on symbolic tensors: what each allocates, saves for backward, and computes.

Each function mirrors one torch operation (or one fused kernel) as eager PyTorch runs it on CUDA. The rules for saved
tensors are those of ``tools/autograd/derivatives.yaml`` in torch 2.13; the docstrings give them in one line, because
they are the memory model. ``g`` is the incoming gradient.
"""

from vlmplan.architecture.ops.base import Grads, cast_weight, copy, promoted, reduced, to
from vlmplan.architecture.ops.convolutions import convolution
from vlmplan.architecture.ops.elementwise import (
    ACTIVATIONS,
    ActivationTable,
    add,
    clamp,
    dropout,
    gelu,
    gelu_new,
    mul,
    power,
    quick_gelu,
    relu,
    scale,
    scale_in_place,
    shift,
    sigmoid,
    silu,
    subtract,
    tanh,
    unary,
    where,
)
from vlmplan.architecture.ops.layout import (
    concatenate,
    embedding,
    expand_weight,
    index_put,
    masked_scatter,
    part,
    resample,
    rotate,
    shift_weight,
    slice_last,
    split,
)
from vlmplan.architecture.ops.liger import liger_rms_norm, liger_rotate, liger_silu_mul
from vlmplan.architecture.ops.matmuls import linear, matmul
from vlmplan.architecture.ops.norms import layer_norm, maximum_last, mean, mean_last, softmax, total

__all__ = [
    "ACTIVATIONS",
    "ActivationTable",
    "Grads",
    "add",
    "cast_weight",
    "clamp",
    "concatenate",
    "convolution",
    "copy",
    "dropout",
    "embedding",
    "expand_weight",
    "gelu",
    "gelu_new",
    "index_put",
    "layer_norm",
    "liger_rms_norm",
    "liger_rotate",
    "liger_silu_mul",
    "linear",
    "masked_scatter",
    "matmul",
    "maximum_last",
    "mean",
    "mean_last",
    "mul",
    "part",
    "power",
    "promoted",
    "quick_gelu",
    "reduced",
    "relu",
    "resample",
    "rotate",
    "scale",
    "scale_in_place",
    "shift",
    "shift_weight",
    "sigmoid",
    "silu",
    "slice_last",
    "softmax",
    "split",
    "subtract",
    "tanh",
    "to",
    "total",
    "unary",
    "where",
]
