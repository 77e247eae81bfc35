"""Attention kernels: what each saves and allocates, and which one a GPU really runs.

Shapes: q (batch, heads, tokens, head_dim); k and v (batch, kv_heads, keys, head_dim). Sources: transformers 5.23
``integrations/sdpa_attention.py`` and the ``eager_attention_forward`` of the models; torch 2.13
``aten/src/ATen/native/transformers/cuda/{sdp_utils.cpp,attention.cu,attention_backward.cu}``.
"""

from dataclasses import dataclass, field, replace

from vlmplan.architecture import ops
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.packed_lengths import PackedLengths
from vlmplan.architecture.sequence_parallel import heads_gathered, tokens_gathered
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.errors import InputError
from vlmplan.units import Choice, DType


class Kernel(Choice):
    """The kernels behind ``attn_implementation``."""

    FLASH = "flash"  # torch's flash kernel or the flash-attn library
    EFFICIENT = "efficient"  # torch's memory-efficient kernel: takes masks, but no grouped heads
    MATH = "math"  # torch's fallback: scores in float32
    EAGER = "eager"  # transformers' own, scores in the model's type with an fp32 softmax


LARGE_HEAD_DIM = 256
"""Widest head of the flash kernel."""
PADDED_ROWS = 128
"""Rows more for each sample of a row in the workspaces of flash-attn's backward (``mha_varlen_bwd`` in
``csrc/flash_attn/flash_api.cpp``)."""
SMALL_HEAD_DIM = 224
"""Widest head that it can train where shared memory is small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackend:
    """How attention runs on one GPU.

    ``implementation`` is transformers' ``attn_implementation``; ``compute_capability`` decides which kernel ``sdpa``
    reaches. ``sequence_parallel`` ranks share each sample. ``sequences`` are the lengths of the samples in the one row
    of a micro batch, in each of which causal attention is by itself. ``has_workspaces`` is False only to compare with
    runs on CPU, whose kernel has none.
    """

    implementation: str = "sdpa"
    compute_capability: tuple[int, int] = (8, 0)
    has_workspaces: bool = True
    sequence_parallel: int = 1
    sequences: PackedLengths | None = None

    @property
    def is_packed(self) -> bool:
        """Whether a row has more than one sample."""
        return self.sequences is not None and self.sequences.count > 1

    @property
    def has_small_shared_memory(self) -> bool:
        return self.compute_capability in ((8, 6), (8, 9)) or self.compute_capability[0] == 12

    def kernel(self, *, head_dim: int, is_grouped: bool, has_mask: bool, dtype: DType) -> Kernel:
        """The kernel for one attention call.

        Source: ``sdp_utils.cpp``: flash needs compute capability 8.0, a 16-bit type, no mask, a head of at most 256,
        and for training a head of at most 224 where shared memory is small (8.6, 8.9, 12.x). The memory-efficient
        kernel takes no grouped heads, so sdpa with ``enable_gqa`` falls through to math where flash cannot run.
        """
        if self.implementation == "eager":
            return Kernel.EAGER
        if self.implementation == "flash_attention_2":
            return Kernel.FLASH
        runs_flash = (
            self.compute_capability >= (8, 0)
            and dtype is not DType.FLOAT32
            and not has_mask
            and head_dim <= (SMALL_HEAD_DIM if self.has_small_shared_memory else LARGE_HEAD_DIM)
        )
        if runs_flash:
            return Kernel.FLASH
        return Kernel.MATH if is_grouped and not has_mask else Kernel.EFFICIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a model does with its attention scores besides scaling and masking them.

    ``caps`` them through ``tanh`` (Gemma 2); drops weights out with probability ``dropout``; ``upcasts`` is False where
    the eager softmax stays in the model's type (GPT-2).
    """

    caps: bool = False
    dropout: float = 0.0
    upcasts: bool = True


PLAIN_SCORES = Scores()


@dataclass(slots=True)
class KeyCache:
    """Keys and values that transformers' ``DynamicCache`` keeps of every layer while text is generated: copies, as it
    joins them to what it has. ``num_bytes`` of a section's layer, ``layer_bytes`` the most of one.

    A layer with a sliding window lets go of older ones when the first token is generated, which is left out.
    """

    num_bytes: dict[str, int] = field(default_factory=dict[str, int])
    tensors: list[Tensor] = field(default_factory=list[Tensor])

    @property
    def layer_bytes(self) -> int:
        return max(self.num_bytes.values(), default=0)

    def kept(self, x: Tensor) -> Tensor:
        """The copy that is kept of keys or values, which attention reads."""
        copy, section = x.tape.tensor(x.shape, x.dtype), x.tape.running_section
        x.tape.move(2 * copy.num_bytes)
        self.num_bytes[section] = self.num_bytes.get(section, 0) + copy.num_bytes
        self.tensors.append(copy)
        return copy


def attend(
    backend: AttentionBackend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool,
    mask: Tensor | None = None,
    scores: Scores = PLAIN_SCORES,
    lengths: PackedLengths | None = None,
    calls: PackedLengths | None = None,
    is_cached: bool | None = None,
) -> Tensor:
    """Attention of q over k and v; the result has shape (batch, tokens, heads * head_dim).

    ``mask`` is the boolean mask (batch or 1, 1, tokens, keys) that transformers builds where plain causality is not
    enough: sliding windows shorter than the sequence, prefix or image blocks that see each other. The fused kernels
    cap and drop without keeping anything more than the state of a random generator.
    ``lengths`` are those of the sequences that are packed into the tokens (flash_attention_2's ``cu_seqlens``).
    ``calls``: the same where each sequence is a call of the kernel of its own, see ``joins_calls``.
    ``is_cached``: whether k and v are kept while text is generated; None: where attention is causal.
    """
    if backend.sequence_parallel > 1:
        return _attend_to_all_ranks(backend, q, k, v, is_causal=is_causal, scores=scores)
    if q.tape.key_cache is not None and (is_causal if is_cached is None else is_cached):
        k, v = q.tape.key_cache.kept(k), q.tape.key_cache.kept(v)
    batch, num_heads, num_tokens, head_dim = q.shape
    _check_head_width(backend, num_heads, head_dim)
    tape, is_grouped = q.tape, k.shape[1] != num_heads
    tape.widest_head = max(tape.widest_head, head_dim)
    dtype = tape.autocast or q.dtype
    # ``use_gqa_in_sdpa``: a mask or a wide head keeps transformers from leaving grouped heads to the kernel.
    is_left_grouped = is_grouped and mask is None and head_dim <= LARGE_HEAD_DIM
    kernel = backend.kernel(head_dim=head_dim, is_grouped=is_left_grouped, has_mask=mask is not None, dtype=dtype)
    if kernel is Kernel.EAGER or (is_grouped and not is_left_grouped and kernel is not Kernel.FLASH):
        # A single head is expanded without a copy, but eager attention's product copies it then.
        copies = kernel is Kernel.EAGER or k.shape[1] > 1
        k, v = repeat_kv(k, num_heads, copies=copies), repeat_kv(v, num_heads, copies=copies)
    if kernel is Kernel.EAGER:
        return _eager(q, k, v, mask=mask is not None or is_causal, rules=scores, is_written_out=is_grouped)
    if tape.autocast is not None:
        q, k, v = ops.to(q, dtype), ops.to(k, dtype), ops.to(v, dtype)
    if kernel is Kernel.MATH:
        return _math(q, k, v, is_causal=is_causal, dropout=scores.dropout)
    own = backend.sequences if is_causal and mask is None and backend.is_packed else None
    packed = lengths or calls or own
    num_pairs = batch * num_tokens * k.shape[2] if packed is None else packed.num_pairs
    is_causal = is_causal and mask is None  # a kernel with a mask skips nothing
    rows = {"num_pairs": num_pairs, "num_padded_rows": 0 if own is None else PADDED_ROWS * own.count}
    out = _fused(backend, kernel, q, k, v, is_causal=is_causal, mask=mask, calls=calls, **rows)
    return out.view(batch, num_tokens, num_heads * head_dim)


def _check_head_width(backend: AttentionBackend, num_heads: int, head_dim: int) -> None:
    if head_dim == 0:
        raise InputError(f"config.json: {num_heads:,} attention heads are more than their layer is wide")
    if backend.implementation == "flash_attention_2" and head_dim > LARGE_HEAD_DIM:
        raise InputError(
            f"--attention flash_attention_2 takes attention heads of at most {LARGE_HEAD_DIM}; "
            f"those of this model are {head_dim} wide: give --attention sdpa"
        )


def _attend_to_all_ranks(
    backend: AttentionBackend, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scores: Scores
) -> Tensor:
    """Attention of this rank's heads over the tokens of all ranks of a sample. A mask of this rank's tokens is thrown
    away (``uattn_wrapper``)."""
    num_ranks, batch = backend.sequence_parallel, q.shape[0]
    q, k, v = heads_gathered(q, k, v, num_ranks)
    alone = replace(backend, sequence_parallel=1)
    context = attend(alone, q, k, v, is_causal=is_causal, scores=scores)
    if batch * q.shape[1] > 1:
        context = heads_together(alone, q, k, context, has_mask=False)
    return tokens_gathered(context, num_ranks)


def joins_calls(backend: AttentionBackend, q: Tensor, lengths: PackedLengths) -> bool:
    """Whether one ``attend`` with ``calls`` leaves the trace that one call for each of the ``lengths`` leaves.

    It does where a fused kernel allocates nothing but what it saves and one workspace at a time. Backward runs the
    first call last, when the gradients of all others are there: that is the peak, if no other call is larger. A tape
    that logs storages needs every call.
    """
    tape, head_dim = q.tape, q.shape[-1]
    kernel = backend.kernel(head_dim=head_dim, is_grouped=False, has_mask=False, dtype=tape.autocast or q.dtype)
    is_fused = kernel in (Kernel.FLASH, Kernel.EFFICIENT) and tape.autocast in (None, q.dtype)
    return is_fused and not tape.runs_every_call and lengths.first == lengths.longest


def heads_together(backend: AttentionBackend, q: Tensor, k: Tensor, out: Tensor, *, has_mask: bool) -> Tensor:
    """The result of ``attend`` where q lies in memory head after head, as a concatenation leaves it.

    Flash kernels lay out their result like q (``empty_like``), so that transformers' ``contiguous()`` has to copy it.
    """
    dtype = q.tape.autocast or q.dtype
    is_grouped = k.shape[1] != q.shape[1]
    kernel = backend.kernel(head_dim=q.shape[-1], is_grouped=is_grouped, has_mask=has_mask, dtype=dtype)
    # On CPU (no workspaces) it is the flash kernel that takes masks.
    copies = kernel is Kernel.FLASH or (kernel is Kernel.EFFICIENT and not backend.has_workspaces)
    return ops.copy(out) if copies else out


def repeat_kv(x: Tensor, num_heads: int, *, copies: bool = True) -> Tensor:
    """Grouped keys or values written out for every query head (transformers' ``repeat_kv``: expand and copy)."""
    batch, num_kv_heads, num_keys, head_dim = x.shape
    if num_kv_heads == num_heads:
        return x
    tape = x.tape
    node = tape.node((x,), _repeat_kv_backward, meta=x.shape)
    if not copies:
        return Tensor(x.storage, (batch, num_heads, num_keys, head_dim), x.dtype, node)
    out = tape.tensor((batch, num_heads, num_keys, head_dim), x.dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _repeat_kv_backward(node: GraphNode, grads: Grads) -> Grads:
    (g,) = grads
    assert g is not None
    return [ops.reduced(g, node.meta, g.dtype)]


def _fused(
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
    if mask is not None and mask.dtype.is_floating:
        bias = ops.to(mask, q.dtype)
    elif mask is not None and kernel is Kernel.EFFICIENT:
        # convert_boolean_attn_mask: the boolean mask becomes an additive bias of q's type.
        bias = tape.tensor(mask.shape, q.dtype)
        tape.move(mask.num_bytes + bias.num_bytes)
    if bias is not None and kernel is Kernel.EFFICIENT and backend.has_workspaces:
        bias = _aligned(bias)
    flops = 2 * 2 * num_pairs * num_heads * head_dim
    num_calls, first = (1, num_tokens) if calls is None else (calls.count, calls.first)
    num_padded = num_padded_rows if backend.has_workspaces else None
    meta = (q.shape, k.shape, v.shape, q.dtype, kernel, flops, is_causal, num_padded, num_calls, first)
    node = tape.node((q, k, v), _fused_backward, (q.detached(), k.detached(), v.detached(), bias), meta)
    out = tape.tensor(q.shape, q.dtype, node)
    log_sum_exp = tape.tensor((batch, num_heads, num_tokens), DType.FLOAT32)
    tape.save(node, out, log_sum_exp)
    hbm_bytes = 2 * q.num_bytes + k.num_bytes + v.num_bytes
    tape.attend(flops, hbm_bytes, is_causal=is_causal, num_kernels=num_calls)
    return out


def _aligned(bias: Tensor) -> Tensor:
    """A bias as the memory-efficient kernel takes it: rows of a multiple of 8, else a padded copy for this one call.

    Source: ``preprocess_mask`` and ``pad_bias`` in ``aten/src/ATen/native/transformers/attention.cpp``.
    """
    *rows, num_keys = bias.shape
    if num_keys % 8 == 0:
        return bias
    padded = bias.tape.tensor((*rows, num_keys + 8 - num_keys % 8), bias.dtype)
    bias.tape.move(bias.num_bytes + padded.num_bytes)
    return padded


def _fused_backward(node: GraphNode, grads: Grads) -> Grads:
    """dq, dk, dv. On CUDA also, while it runs, dq accumulated in fp32, a dot product per row, and for grouped heads dk
    and dv of every query head (``mha_bwd`` in ``flash_api.cpp``; the efficient kernel's fp32 workspace alike). Where a
    row has several samples the first two have ``PADDED_ROWS`` more for each."""
    (g,) = grads
    assert g is not None
    q_shape, k_shape, v_shape, dtype, kernel, flops, is_causal, num_padded, num_calls, first = node.meta
    tape = g.tape
    batch, num_heads, num_tokens, head_dim = q_shape
    if first < num_tokens:
        # The first call's backward runs last: what the others saved is gone, and the workspaces are its own.
        _free_all_but(node, first, num_tokens)
        num_tokens = first
    result = [tape.tensor(shape, dtype) for shape in (q_shape, k_shape, v_shape)]
    workspaces: list[Tensor] = []
    if num_padded is not None:
        num_rows = num_tokens + num_padded
        with tape.charged_to(Kind.TEMPORARY):
            workspaces.append(tape.tensor((batch, num_heads, num_rows), DType.FLOAT32))
            workspaces.append(tape.tensor((batch, num_heads, num_rows, head_dim), DType.FLOAT32))
            if kernel is Kernel.FLASH and k_shape[1] != num_heads:
                expanded = (batch, num_heads, *k_shape[2:])
                workspaces += [tape.tensor(expanded, dtype), tape.tensor(expanded, dtype)]
    # Five products of the forward's size where the forward has two: the scores are computed again.
    tape.attend(flops * 5 // 2, 4 * g.num_bytes, is_causal=is_causal, num_kernels=num_calls)
    del workspaces
    return list(result)


def _free_all_but(node: GraphNode, num_kept: int, num_tokens: int) -> None:
    """Free the result and the log-sum-exps of all tokens but ``num_kept``."""
    for saved in node.saved[-2:]:
        assert isinstance(saved, Tensor)
        saved.storage.shrink(saved.storage.num_bytes * num_kept // num_tokens)


def _eager(q: Tensor, k: Tensor, v: Tensor, *, mask: bool, rules: Scores, is_written_out: bool) -> Tensor:
    """transformers' eager attention: scores scaled and masked in the model's type, softmax in float32, cast back.

    ``at::matmul`` folds batch and heads into one dimension and copies what a transposition left out of order for that:
    everything where there is more than one sample, but keys and values that were written out for grouped heads.
    """
    batch, num_heads, num_tokens, head_dim = q.shape
    num_keys = k.shape[2]
    scores = (batch, num_heads, num_tokens, num_keys)
    copies = batch > 1 and not is_written_out
    weights = ops.scale(ops.matmul(_folded(q, copies=batch > 1), _folded(k, copies=copies), scores, head_dim))
    if rules.caps:
        weights = ops.scale(weights)
        weights = ops.tanh(weights)
        weights = ops.scale(weights)
    if mask:
        weights = ops.shift(weights)
    weights = ops.to(ops.softmax(weights, DType.FLOAT32 if rules.upcasts else None), q.dtype)
    weights = ops.dropout(weights, rules.dropout)
    out = ops.matmul(weights, _folded(v, copies=copies), q.shape, num_keys)
    del weights
    return ops.copy(out, batch, num_tokens, num_heads * head_dim)


def _folded(x: Tensor, *, copies: bool) -> Tensor:
    """x as the batched product takes it; cut out of a fused projection, it is copied and the projection released.

    The heads of a single sample are the batch of the product as they lie.
    """
    is_cut_out = x.shape[0] > 1 and x.storage.num_bytes > x.num_bytes
    return ops.copy(x) if copies or is_cut_out else x


def _math(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, dropout: float) -> Tensor:
    """torch's fallback: q, k, v cast to float32 and scaled, scores and softmax in float32.

    Causality is a mask of numbers that is added to the scores in place. The softmax finds out which scores are masked:
    a byte for each. Source: ``_scaled_dot_product_attention_math`` and ``_safe_softmax`` in ``attention.cpp`` (16-bit
    inputs are upcast unless ``allow_fp16_bf16_reduction_math_sdp`` is set).
    """
    batch, num_heads, num_tokens, head_dim = q.shape
    dtype, num_keys, tape = q.dtype, k.shape[2], q.tape
    q, k, v = (ops.to(x, DType.FLOAT32) for x in (q, k, v))
    scaled = ops.scale(q)
    mask = _causal_mask(tape, num_tokens, num_keys) if is_causal else None
    k, v = repeat_kv(k, num_heads), repeat_kv(v, num_heads)
    scores = ops.matmul(scaled, ops.scale(k), (batch, num_heads, num_tokens, num_keys), head_dim)
    if mask is not None:
        tape.move(2 * scores.num_bytes)
    weights = ops.softmax(scores)
    with tape.charged_to(Kind.TEMPORARY):
        is_masked = tape.tensor(scores.shape, DType.BOOL)
    tape.move(scores.num_bytes + is_masked.num_bytes)
    del is_masked, scores
    weights = ops.dropout(weights, dropout)
    out = ops.to(ops.matmul(weights, v, q.shape, num_keys), dtype)
    del weights, mask
    return ops.copy(out, batch, num_tokens, num_heads * head_dim)


def _causal_mask(tape: ForwardTape, num_tokens: int, num_keys: int) -> Tensor:
    """Zero or minus infinity by query and key, out of a boolean mask."""
    with tape.charged_to(Kind.TEMPORARY):
        mask = tape.tensor((num_tokens, num_keys), DType.FLOAT32)
        tape.move(mask.num_bytes + mask.numel)
        return mask
