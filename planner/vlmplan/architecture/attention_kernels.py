"""Attention kernels: what each saves and allocates.

Shapes: q (batch, heads, tokens, head_dim); k and v (batch, kv_heads, keys, head_dim). Sources: transformers 5.23
``integrations/sdpa_attention.py`` and the ``eager_attention_forward`` of the models; torch 2.13
``aten/src/ATen/native/transformers/cuda/{attention.cu,attention_backward.cu}``.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import PADDED_ROWS, AttentionBackend, Kernel, Scores
from vlmplan.architecture.ops import Grads, chunks
from vlmplan.architecture.ops.contractions import with_copied_gradient
from vlmplan.architecture.ops.layout import JoinedTensor
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType

BIAS_ALIGNMENT = 8
"""The memory-efficient kernel takes rows of a bias in a multiple of this (``aligned_tensor`` in ``attention.cpp``)."""
BIAS_GRADIENT_ALIGNMENT = 16
"""... and makes those of its gradient in a multiple of this (``attention_backward.cu``)."""


def repeat_kv(x: Tensor, num_heads: int, *, copies: bool = True) -> Tensor:
    """Grouped keys or values written out for every query head (transformers' ``repeat_kv``: expand and copy)."""
    batch, num_kv_heads, num_keys, head_dim = x.shape
    if num_kv_heads == num_heads:
        return x
    tape = x.tape
    node = tape.node((x,), ops.summed_backward, meta=x.shape)
    if not copies:
        return Tensor(x.storage, (batch, num_heads, num_keys, head_dim), x.dtype, node)
    out = tape.tensor((batch, num_heads, num_keys, head_dim), x.dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def fused_attention(
    backend: AttentionBackend,
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    num_pairs: int,
    is_causal: bool,
    mask: Tensor | None,
    calls: PackedLengths | None = None,
    num_padded_rows: int = 0,
) -> Tensor:
    """One kernel: saves q, k, v, the result and a log-sum-exp per row; a mask is saved as a bias in q's type."""
    tape = q.tape
    batch, num_heads, num_tokens, head_dim = q.shape
    bias: Tensor | None = None
    if mask is not None and (mask.dtype.is_floating or kernel is Kernel.EFFICIENT):
        bias = bias_of(mask, q.dtype)
    if bias is not None and kernel is Kernel.EFFICIENT and backend.has_workspaces:
        bias = _aligned(bias)
    bias_shape = None if bias is None else bias.shape
    value_shape = (*q.shape[:-1], v.shape[-1])
    flops = 2 * num_pairs * num_heads * (head_dim + v.shape[-1])  # scores, and their product with the values
    num_calls, first = (1, num_tokens) if calls is None else (calls.count, calls.first)
    num_padded = num_padded_rows if backend.has_workspaces else None
    meta = (q.shape, k.shape, v.shape, q.dtype, kernel, flops, is_causal, num_padded, num_calls, first, bias_shape)
    saved = (q.detached(), k.detached(), v.detached(), None if bias is None else bias.detached())
    node = tape.node((q, k, v, bias), _fused_backward, saved, meta)
    out = tape.tensor(value_shape, q.dtype, node)
    log_sum_exp = tape.tensor((batch, num_heads, num_tokens), DType.FLOAT32)
    tape.save(node, out, log_sum_exp)
    hbm_bytes = q.num_bytes + out.num_bytes + k.num_bytes + v.num_bytes
    tape.attend(flops, hbm_bytes, q.dtype, is_causal=is_causal, num_kernels=num_calls)
    return out


def bias_of(mask: Tensor, dtype: DType) -> Tensor:
    """A mask as it is added to scores, in the queries' type, which a boolean one becomes (``convert_boolean_attn_mask``
    in ``attention.cpp``)."""
    if mask.dtype.is_floating:
        return ops.to(mask, dtype)
    bias = mask.tape.tensor(mask.shape, dtype)
    mask.tape.move(mask.num_bytes + bias.num_bytes)
    return bias


def _aligned(bias: Tensor) -> Tensor:
    """A bias as the memory-efficient kernel takes it: rows of a multiple of 8, else cut out of a padded copy for this
    one call.

    Source: ``preprocess_mask`` and ``pad_bias`` in ``aten/src/ATen/native/transformers/attention.cpp``.
    """
    *rows, num_keys = bias.shape
    if num_keys % BIAS_ALIGNMENT == 0:
        return bias
    padded = chunks.pad(bias, *rows, _rounded_up(num_keys, BIAS_ALIGNMENT))
    return ops.slice_last(padded, num_keys)


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _fused_backward(node: GraphNode, grads: Grads) -> Grads:
    """dq, dk, dv, and of a learned bias its own.

    On CUDA also, while it runs, dq accumulated in fp32, a dot product per row, and for grouped heads dk and dv of every
    query head (``mha_bwd`` in ``flash_api.cpp``; ``_efficient_attention_backward`` in ``attention_backward.cu``).
    """
    g = ops.only(grads)
    q_shape, k_shape, v_shape, dtype, kernel, flops, is_causal, num_padded, num_calls, first, bias_shape = node.meta
    tape = g.tape
    batch, num_heads, num_tokens, head_dim = q_shape
    if first < num_tokens:
        # The first call's backward runs last: what the others saved is gone, and the workspaces are its own.
        _free_all_but(node, first, num_tokens)
        num_tokens = first
    result: list[Tensor | None] = [tape.tensor(shape, dtype) for shape in (q_shape, k_shape, v_shape)]
    result.append(_bias_gradient(tape, bias_shape, q_shape, dtype) if node.needs[3] else None)
    workspaces: list[Tensor] = []
    if num_padded is not None:
        sums = _efficient_sums if kernel is Kernel.EFFICIENT else _flash_sums
        with tape.charged_to(Kind.TEMPORARY):
            for num_numbers in sums(num_tokens, num_padded, head_dim):
                workspaces.append(tape.tensor((batch, num_heads, num_numbers), DType.FLOAT32))
            if kernel is Kernel.FLASH and k_shape[1] != num_heads:
                expanded = (batch, num_heads, *k_shape[2:])
                workspaces += [tape.tensor(expanded, dtype), tape.tensor(expanded, dtype)]
    # Scores again and the gradients of q and k, head_dim wide; the gradients of the scores' softmax and of v, of v's.
    value_dim = v_shape[-1]
    backward_flops = flops // (head_dim + value_dim) * (3 * head_dim + 2 * value_dim)
    tape.attend(backward_flops, 4 * g.num_bytes, dtype, is_causal=is_causal, num_kernels=num_calls)
    del workspaces
    return result


def _flash_sums(num_tokens: int, num_padded: int, head_dim: int) -> tuple[int, int]:
    """Numbers of a head: the dot products, and dq. Rows are a multiple of ``PADDED_ROWS``, or so many more for each
    sample of a row; heads are as wide as a multiple of 32, above 128 of 64 (``seqlen_q_rounded``,
    ``head_size_rounded`` in ``flash_api.cpp``)."""
    num_rows = num_tokens + num_padded if num_padded else _rounded_up(num_tokens, PADDED_ROWS)
    return num_rows, num_rows * _rounded_up(head_dim, 32 if head_dim <= 128 else 64)


def _efficient_sums(num_tokens: int, num_padded: int, head_dim: int) -> tuple[int, int]:
    """Numbers of a head: the dot products of its own rows, and dq in tiles of 64 rows, above a width of 64 of 128, by
    64 columns, each behind four numbers of its own (``delta`` in ``attention_backward.cu``; ``workspace_elements_gq``
    and ``GradQTempStorage`` in ``mem_eff_attention/kernel_backward.h``)."""
    rows, columns = (64 if head_dim <= 64 else 128), 64
    num_tiles = -(-num_tokens // rows) * -(-head_dim // columns)
    return num_tokens, num_tiles * (4 + rows * columns)


def _bias_gradient(tape: ForwardTape, shape: tuple[int, ...], q_shape: tuple[int, ...], dtype: DType) -> Tensor:
    """The gradient of a bias: the kernel makes one for each sample, head and row, in rows of a multiple of 16
    (``_efficient_attention_backward``), which is summed over those that share a bias."""
    whole = (*q_shape[:-1], shape[-1])
    gradient = tape.tensor((*whole[:-1], _rounded_up(shape[-1], BIAS_GRADIENT_ALIGNMENT)), dtype)
    return gradient.view(*whole) if shape == whole else ops.reduced(gradient, shape, dtype)


def _free_all_but(node: GraphNode, num_kept: int, num_tokens: int) -> None:
    """Free the result and the log-sum-exps of all tokens but ``num_kept``."""
    for saved in node.saved[-2:]:
        assert isinstance(saved, Tensor)
        saved.storage.shrink(saved.storage.num_bytes * num_kept // num_tokens)


def eager_attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_masked: bool, rules: Scores, num_kv_heads: int
) -> Tensor:
    """transformers' eager attention: scores scaled and masked, softmax in float32, cast to the queries' type.

    ``at::matmul`` folds batch and heads into one dimension and copies what a transposition left out of order for that:
    everything where there is more than one sample, but what was put together of parts (partly rotated heads), and keys
    and values that were written out for grouped heads. A single head of them, ``num_kv_heads``, is expanded without a
    copy before, and a cast writes it out too.
    autocast casts what both products take, the weights among it, and lets the softmax run in float32. ``mask`` is added
    in its own type; ``is_masked``: one is, whether it is there or not.
    The layer has the weights until it ends.
    """
    batch, num_heads, num_tokens, head_dim = q.shape
    num_keys, tape = k.shape[2], q.tape
    scores = (batch, num_heads, num_tokens, num_keys)
    copies = batch > 1 and not rules.are_in_order
    copies_queries, copies_keys = (copies and not isinstance(x, JoinedTensor) for x in (q, k))
    if num_kv_heads == 1 < num_heads:
        copies = copies_keys = batch > 1 and tape.autocast in (None, q.dtype)
    elif num_kv_heads < num_heads:
        copies = copies_keys = False
    weights = product(q, k, scores, head_dim, copies=(copies_queries, copies_keys))
    weights = ops.scale(weights)
    if rules.caps:
        weights = ops.scale(weights)
        weights = ops.tanh(weights)
        weights = ops.scale(weights)
    if mask is not None and mask.dtype.is_floating:
        weights = ops.add(weights, mask)
    elif is_masked:
        weights = ops.shift(weights)
    dtype = DType.FLOAT32 if rules.upcasts else None
    # In one expression: the scores have their name until the cast is there.
    weights = ops.to(ops.softmax(weights, dtype), q.dtype) if rules.casts_back else ops.softmax(weights, dtype)
    weights = ops.dropout(weights, rules.dropout, is_module=False)
    tape.layer_locals.append(weights.detached())
    value_shape = (batch, num_heads, num_tokens, v.shape[-1])
    out = unfolded(product(weights, v, value_shape, num_keys, copies=(False, copies)))
    del weights
    return ops.copy(out, batch, num_tokens, num_heads * v.shape[-1])


def attention_with_sinks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    sinks: Parameter | None,
    *,
    dropout: float = 0.0,
    holds_scores: bool = True,
) -> tuple[Tensor, Tensor]:
    """``eager_attention_forward`` of GPT-OSS and its copies: (result, weights). The softmax runs over the scores and
    the sink of each head, where there are some, in the scores' type; ``mask`` is added.

    ``holds_scores``: whether what the softmax is made of has a name of its own; in MiMo the weights get that.
    A single head of keys for all queries is written out by the products, where there is more than one sample.
    """
    batch, num_heads, num_tokens, head_dim = q.shape
    num_keys, tape = k.shape[2], q.tape
    scores = (batch, num_heads, num_tokens, num_keys)
    is_shared = k.shape[1] == 1 < num_heads
    keys, values = (repeat_kv(x, num_heads, copies=not is_shared) for x in (k, v))
    combined = ops.matmul(cast(q), _operand(keys, copies=is_shared), scores, head_dim)
    combined = ops.scale(combined)
    combined = ops.add(combined, mask)
    held = combined if holds_scores else None
    if sinks is not None:
        widest = ops.promoted(combined.dtype, sinks.dtype)
        sink_scores = ops.expand_weight(sinks, (*scores[:-1], 1), tape)
        combined = ops.concatenate([ops.to(combined, widest), sink_scores], (*scores[:-1], num_keys + 1))
    combined = ops.subtract(combined, ops.maximum_last(combined))
    probabilities = ops.softmax(combined, combined.dtype)
    kept = probabilities if sinks is None else ops.slice_last(probabilities, num_keys)
    weights = ops.dropout(kept, dropout, is_module=False)
    weights = ops.to(weights, v.dtype)
    del held
    if not holds_scores:
        del combined
    copies = is_shared or v.shape[1] == num_heads
    value_shape = (*q.shape[:-1], v.shape[-1])
    out = unfolded(ops.matmul(cast(weights), _operand(values, copies=copies), value_shape, num_keys))
    out = ops.copy(out, batch, num_tokens, num_heads * v.shape[-1])
    return out, weights


def cast(x: Tensor) -> Tensor:
    """x in the type that autocast computes products in."""
    return x if x.tape.autocast is None else ops.to(x, x.tape.autocast)


def product(
    x: Tensor, y: Tensor, shape: tuple[int, ...], inner: int, *, copies: tuple[bool, bool] = (False, False)
) -> Tensor:
    """``torch.matmul`` of several heads: what autocast casts is there until it returns, beside the ``copies`` that it
    takes of either (``cached_cast`` in ``aten/src/ATen/autocast_mode.h`` makes arguments of the call)."""
    second = cast(y)  # the last argument first (``ops.matmuls``)
    first = cast(x)
    return ops.matmul(folded(first, copies=copies[0]), folded(second, copies=copies[1]), shape, inner)


def _operand(x: Tensor, *, copies: bool) -> Tensor:
    """x as autocast has it for a product; where nothing is cast, the product of several samples ``copies`` what is not
    written out or lies out of order."""
    wanted = cast(x)
    return ops.copy(x) if copies and wanted is x and x.shape[0] > 1 else wanted


def folded(x: Tensor, *, copies: bool) -> Tensor:
    """x as the batched product takes it; cut out of a fused projection, it is copied and the projection released.

    The heads of a single sample are the batch of the product as they lie.
    """
    is_cut_out = x.shape[0] > 1 and x.storage.num_bytes > x.num_bytes
    return ops.copy(x) if copies or is_cut_out else x


def unfolded(x: Tensor) -> Tensor:
    """The result of a batched product by sample and head, whose tokens are put together next: its gradient lies token
    after token then, and is copied where samples and heads are not one dimension of it."""
    return with_copied_gradient(x) if x.shape[0] > 1 < x.shape[1] else x


def math_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool,
    dropout: float,
    mask: Tensor | None = None,
    are_in_order: tuple[bool, bool] = (False, False),
) -> Tensor:
    """torch's fallback: q, k, v cast to float32 and scaled, scores and softmax in float32; a ``mask`` of floats is
    added to the scores.

    ``are_in_order``: whether q, and k with v, lie head after head. Of several samples the products copy what does not,
    beside it (``at::matmul`` folds samples and heads into one dimension by ``reshape``; cast and scaled tensors lie as
    what they are made of), but for grouped keys and values, which are written out in order.

    Causality is a mask of numbers that is added to the scores in place. The softmax finds out which scores are masked:
    a byte for each. Source: ``_scaled_dot_product_attention_math`` and ``_safe_softmax`` in ``attention.cpp`` (16-bit
    inputs are upcast unless ``allow_fp16_bf16_reduction_math_sdp`` is set).
    """
    batch, num_heads, num_tokens, head_dim = q.shape
    dtype, num_keys, tape = q.dtype, k.shape[2], q.tape
    q, k, v = (ops.to(x, DType.FLOAT32) for x in (q, k, v))
    scaled = ops.scale(q)
    mask = _causal_mask(tape, num_tokens, num_keys) if is_causal else mask
    wide = k, v  # which have names of their own there, to the end
    k, v = repeat_kv(k, num_heads), repeat_kv(v, num_heads)
    copies_q, copies_kv = (batch > 1 < num_heads and not is_in_order for is_in_order in are_in_order)
    keys = folded(ops.scale(k), copies=copies_kv)
    scores = ops.matmul(folded(scaled, copies=copies_q), keys, (batch, num_heads, num_tokens, num_keys), head_dim)
    del keys
    if mask is not None and mask.requires_grad:
        scores = ops.add(scores, mask)
    elif mask is not None:
        tape.move(2 * scores.num_bytes)
    weights = ops.softmax(scores, scores.dtype)
    with tape.charged_to(Kind.TEMPORARY):
        is_masked = tape.tensor(scores.shape, DType.BOOL)
    tape.move(scores.num_bytes + is_masked.num_bytes)
    del is_masked, scores
    weights = ops.dropout(weights, dropout, is_module=False)
    values, value_dim = folded(v, copies=copies_kv), v.shape[-1]
    out = ops.to(ops.matmul(weights, values, (*q.shape[:-1], value_dim), num_keys), dtype)
    del weights, mask, values, wide, scaled, q, k, v  # all that torch's function has names for
    return ops.copy(out, batch, num_tokens, num_heads * value_dim)


def shared_head_attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None) -> Tensor:
    """torch's fallback where a single head of keys and values is not declared as grouped (Falcon): the products write
    it out for all heads, where there is more than one sample, and q, whose heads lie apart. A boolean mask is a bias
    of q's type while this runs (``scaled_dot_product_attention`` in ``attention.cpp``), in which there are also the
    casts that autocast calls it with."""
    batch, num_heads, num_tokens, head_dim = q.shape
    v, k, q = called_with = [cast(x) for x in (v, k, q)]  # the last argument first (``ops.matmuls``)
    dtype, num_keys, tape = q.dtype, k.shape[2], q.tape
    bias = None if mask is None else tape.tensor(mask.shape, dtype)
    q, k, v = (ops.to(x, DType.FLOAT32) for x in (q, k, v))
    scaled = ops.scale(q)
    scaled_keys = ops.scale(k)
    keys = repeat_kv(scaled_keys, num_heads, copies=batch > 1)
    scores = ops.matmul(folded(scaled, copies=batch > 1), keys, (batch, num_heads, num_tokens, num_keys), head_dim)
    del keys, scaled_keys
    tape.move(2 * scores.num_bytes)
    weights = ops.softmax(scores, scores.dtype)
    with tape.charged_to(Kind.TEMPORARY):
        is_masked = tape.tensor(scores.shape, DType.BOOL)
    tape.move(scores.num_bytes + is_masked.num_bytes)
    del is_masked, scores
    values = repeat_kv(v, num_heads, copies=batch > 1)
    out = ops.to(ops.matmul(weights, values, q.shape, num_keys), dtype)
    del weights, bias, values, scaled, called_with
    return ops.copy(out, batch, num_tokens, num_heads * head_dim)


def _causal_mask(tape: ForwardTape, num_tokens: int, num_keys: int) -> Tensor:
    """Zero or minus infinity by query and key, out of a boolean mask."""
    with tape.charged_to(Kind.TEMPORARY):
        ones, is_seen = (tape.tensor((num_tokens, num_keys), DType.BOOL) for _ in ("ones", "tril"))
        del ones
        mask = tape.tensor((num_tokens, num_keys), DType.FLOAT32)
        del is_seen
        tape.move(mask.num_bytes + mask.numel)
        return mask
