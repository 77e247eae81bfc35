"""Operations on symbolic tensors: what each allocates, saves for backward, and computes.

Each function mirrors one torch operation (or one fused kernel) as eager PyTorch runs it on CUDA. The rules for saved
tensors are those of ``tools/autograd/derivatives.yaml`` in torch 2.13; the docstrings give them in one line, because
they are the memory model. ``g`` is the incoming gradient.
"""

# pyright: reportUnusedImport=false
from vlmplan.architecture.ops.base import (
    Grads,
    cast_weight,
    copy,
    only,
    pass_through,
    promoted,
    reduced,
    rewritten_backward,
    shared,
    summed_backward,
    to,
    viewed,
)
from vlmplan.architecture.ops.convolutions import convolution
from vlmplan.architecture.ops.elementwise import (
    ACTIVATIONS,
    ActivationModule,
    ActivationTable,
    activation_module,
    add,
    add_in_place,
    clamp,
    clamp_in_place,
    dropout,
    gelu,
    gelu_new,
    maximum,
    mul,
    power,
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
from vlmplan.architecture.ops.empty import called
from vlmplan.architecture.ops.fused_adapters import AdaptedWeight, adapted_swiglu, add_adapter
from vlmplan.architecture.ops.layout import (
    concatenate,
    embedding,
    expand,
    expand_weight,
    in_rows,
    index_put,
    interpolate,
    masked_scatter,
    part,
    resample,
    rotate,
    rotate_half,
    shift_weight,
    slice_last,
    split,
)
from vlmplan.architecture.ops.liger import liger_rms_norm, liger_rotate, liger_silu_mul
from vlmplan.architecture.ops.matmuls import linear, matmul, weight_product
from vlmplan.architecture.ops.norms import (
    grouped_norm,
    layer_norm,
    maximum_last,
    mean,
    mean_last,
    rms_norm,
    softmax,
    total,
    weightless_rms_norm,
)
