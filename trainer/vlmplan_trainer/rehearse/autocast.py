"""torch's autocast for the GPU that is not there, with CUDA's lists.

The lists and what they mean are those of ``aten/src/ATen/autocast_mode.{h,cpp}`` (torch 2.13): matrix products run in
the lower precision, what sums many numbers in float32, and the rest in the widest of its inputs. torch keeps one list
for every device type, and none for those of others.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import library as operators
from torch.utils._pytree import tree_map

from vlmplan_trainer.rehearse.device import NAME

KEY = "AutocastPrivateUse1"
LOWER_PRECISION = (
    "_convolution _convolution.deprecated addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d "
    "conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution einsum linalg_multi_dot "
    "linalg_vecdot linear matmul mm mv prelu scaled_dot_product_attention"
).split()
FLOAT32 = (
    "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss "
    "cosine_similarity dist erfinv exp expm1 frobenius_norm.dim group_norm hinge_embedding_loss huber_loss kl_div "
    "l1_loss layer_norm log log10 log1p log2 logsumexp margin_ranking_loss mse_loss multi_margin_loss "
    "multilabel_margin_loss native_layer_norm nll_loss nll_loss2d nuclear_norm nuclear_norm.dim pdist poisson_nll_loss "
    "pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal renorm rms_norm rsqrt sinh smooth_l1_loss "
    "soft_margin_loss softplus tan triplet_margin_loss upsample_bicubic2d upsample_bilinear2d upsample_linear1d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d"
).split()
FLOAT32_RESULT = (
    "cumprod cumsum linalg_matrix_norm linalg_matrix_norm.str_ord linalg_vector_norm log_softmax.int prod "
    "prod.dim_int softmax.int sum sum.dim_IntList"
).split()
"""These take the type of their result as ``dtype``."""
WIDEST = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot".split()

_cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
_fallbacks: list[Any] = []
"""They last as long as these; torch keeps all other registrations itself."""


def forget_casts() -> None:
    """The end of the outermost autocast: copies of weights go."""
    _cache.clear()


def register() -> None:
    """Give the device its lists, once in a process."""
    everything = torch._C._dispatch_library("IMPL", "_", KEY, __file__, 0)
    everything.fallback(KEY, operators.fallthrough_kernel, False)
    _fallbacks.append(everything)
    policies: tuple[tuple[Sequence[str], Callable[[Any], Callable[..., Any]]], ...] = (
        (LOWER_PRECISION, _lower_precision),
        (FLOAT32, _float32),
        (FLOAT32_RESULT, _float32_result),
        (WIDEST, _widest),
    )
    for names, policy in policies:
        for name in names:
            packet, _, overload = name.partition(".")
            kernel = policy(getattr(getattr(torch.ops.aten, packet), overload or "default"))
            operators.impl(f"aten::{name}", KEY, kernel)


def _below(op: Any, args: Any, kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))):
        return op(*args, **kwargs)


def _is_eligible(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.device.type == NAME and item.is_floating_point()


def _cast(item: Any, dtype: torch.dtype) -> Any:
    if not _is_eligible(item) or item.dtype == dtype or item.dtype == torch.float64:
        return item
    if dtype == torch.float32 or not torch.is_autocast_cache_enabled():
        return item.to(dtype)
    if not (item.dtype == torch.float32 and item.requires_grad and item.is_leaf and not item._is_view()):
        return item.to(dtype)
    found = _cache.get(id(item))
    if found is None:
        found = _cache[id(item)] = (item, item.to(dtype))
    return found[1]


def _all_cast(args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    """The last argument is cast first, as GCC, which torch is built with, takes the arguments of
    ``(*F)(cached_cast(...)...)``: backward comes to the cast of the first argument first. Lists are cast in order."""
    cast = lambda one: tree_map(lambda item: _cast(item, dtype), one)  # noqa: E731
    named = {name: cast(kwargs[name]) for name in reversed(kwargs)}
    return tuple([cast(arg) for arg in reversed(args)][::-1]), named


def _lower_precision(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))):
            args, kwargs = _all_cast(args, kwargs, torch.get_autocast_dtype(NAME))
            return op(*args, **kwargs)

    return kernel


def _float32(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))):
            args, kwargs = _all_cast(args, kwargs, torch.float32)
            return op(*args, **kwargs)

    return kernel


def _float32_result(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if _is_eligible(args[0]) and kwargs.get("dtype") is None:
            names = [argument.name for argument in op._schema.arguments]
            place = names.index("dtype")
            if len(args) <= place:
                kwargs = {**kwargs, "dtype": torch.float32}
            elif args[place] is None:
                args = (*args[:place], torch.float32, *args[place + 1 :])
        return _below(op, args, kwargs)

    return kernel


def _widest(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        found: list[torch.dtype] = []
        tree_map(lambda item: found.append(item.dtype) if _is_eligible(item) else None, (args, kwargs))
        widest = torch.float32 if torch.float32 in found else torch.get_autocast_dtype(NAME)
        args, kwargs = _all_cast(args, kwargs, widest)
        return _below(op, args, kwargs)

    return kernel
