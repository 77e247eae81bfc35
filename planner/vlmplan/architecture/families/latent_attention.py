"""Multi-head latent attention: keys and values of all heads out of one narrow tensor, and one rotated key for all.

Source: transformers 5.23 ``models/deepseek_v3/modeling_deepseek_v3.py``, ``DeepseekV3Attention`` and its copies.
Queries and keys have a part without positions (``qk_nope_head_dim``) and a rotated one (``qk_rope_head_dim``); values
have a width of their own (``v_head_dim``). A cache for generation has the narrow tensor and the rotated key alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, by_head, heads_together
from vlmplan.architecture.attention_backend import PLAIN_SCORES, Scores
from vlmplan.architecture.attention_kernels import repeat_kv
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import RotaryContext
from vlmplan.architecture.modules import Linear, Module, RMSNorm
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

INTERLEAVED_TYPES = ("axk2", "deepseek_v32", "glm_moe_dsa", "longcat_flash")
"""Types that rotate pairs of elements whatever the file says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """The dimensions of latent attention. ``q_rank`` is None where queries come from one Linear."""

    hidden_size: int
    num_heads: int
    q_rank: int | None
    kv_rank: int
    plain_width: int
    rotary_width: int
    value_width: int
    has_bias: bool
    is_interleaved: bool
    scales_queries: bool = False
    """By the position of each token (Mistral 4)."""
    scales_latents: bool = False
    """Whether queries and the norm of keys' and values' narrow tensor are times numbers (LongCat-Flash)."""
    scores: Scores = PLAIN_SCORES
    rotates_complex: bool = False
    """Whether positions are complex numbers in float32 (DeepSeek-V2)."""

    @property
    def head_dim(self) -> int:
        """Width of a head of the queries and keys."""
        return self.plain_width + self.rotary_width

    @property
    def linears(self) -> tuple[str, ...]:
        """What the layer is made of, by name."""
        queries = ("q_proj",) if self.q_rank is None else ("q_a_proj", "q_b_proj")
        return (*queries, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")


def latent_shape(config: Config) -> LatentShape:
    """The dimensions of a text configuration. Raises InputError for grouped heads, which the classes cannot run."""
    num_heads = config.integer("num_attention_heads")
    if config.integer("num_key_value_heads", num_heads) != num_heads:
        value = config.get("num_key_value_heads")
        raise not_allowed(CONFIG, "num_key_value_heads", value, f"{num_heads}, as num_attention_heads has,")
    return LatentShape(
        hidden_size=config.integer("hidden_size"),
        num_heads=num_heads,
        scores=Scores(dropout=config.number("attention_dropout")),
        q_rank=config.optional_integer("q_lora_rank"),
        kv_rank=config.integer("kv_lora_rank"),
        plain_width=config.integer("qk_nope_head_dim"),
        rotary_width=config.integer("qk_rope_head_dim"),
        value_width=config.integer("v_head_dim", config.integer("hidden_size") // num_heads),
        has_bias=config.boolean("attention_bias"),
        is_interleaved=config.model_type in INTERLEAVED_TYPES or config.boolean("rope_interleave"),
        scales_queries=config.model_type == "mistral4",
        rotates_complex=config.model_type == "deepseek_v2",
    )


class LatentAttention(Module):
    """``DeepseekV3Attention``."""

    def __init__(self, shape: LatentShape) -> None:
        self.shape, width = shape, shape.hidden_size
        self.make_query_projections(shape)
        self.kv_a_proj_with_mqa = Linear(width, shape.kv_rank + shape.rotary_width, bias=shape.has_bias)
        self.kv_a_layernorm = RMSNorm(shape.kv_rank)
        self.kv_b_proj = Linear(shape.kv_rank, shape.num_heads * (shape.plain_width + shape.value_width))
        self.o_proj = Linear(shape.num_heads * shape.value_width, width, bias=shape.has_bias)

    def make_query_projections(self, shape: LatentShape) -> None:
        """What makes queries, which comes first in the order of parameters."""
        width, query_width = shape.hidden_size, shape.num_heads * shape.head_dim
        if shape.q_rank is None:
            self.q_proj = Linear(width, query_width)
        else:
            self.q_a_proj = Linear(width, shape.q_rank, bias=shape.has_bias)
            self.q_a_layernorm = RMSNorm(shape.q_rank)
            self.q_b_proj = Linear(shape.q_rank, query_width)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        heads = (batch, shape.num_heads, num_tokens)
        q, q_latent, gates = self.queries(x)
        q_pass, q_rotated = ops.split(q, (*heads, shape.plain_width), (*heads, shape.rotary_width))
        compressed = self.kv_a_proj_with_mqa(x)
        one = (batch, 1, num_tokens)
        latent, k_rotated = ops.split(compressed, (*one, shape.kv_rank), (*one, shape.rotary_width))
        latent = self.kv_a_layernorm(latent)
        if shape.scales_latents:
            q_pass, q_rotated, latent = ops.scale(q_pass), ops.scale(q_rotated), ops.scale(latent)
        q_rotated, k_rotated = self._rotated(q_rotated, k_rotated, context)
        if x.tape.key_cache is not None:
            latent, k_rotated = x.tape.key_cache.kept_pair(latent, k_rotated)
        queries = ops.concatenate((q_pass, q_rotated), (*heads, shape.head_dim))
        if shape.scales_queries:
            queries = ops.mul(queries, x.tape.tensor((1, 1, num_tokens, 1), queries.dtype))
        k, v = self.expanded(latent, k_rotated)
        mask, held = self.mask(x, q_latent, context)
        out = attend(context.backend, queries, k, v, is_causal=True, mask=mask, scores=shape.scores, is_cached=False)
        out = heads_together(context.backend, queries, k, out, has_mask=mask is not None, value_dim=shape.value_width)
        out = self.output(out, gates)
        del held
        return out

    def output(self, x: Tensor, gates: Sequence[Tensor]) -> Tensor:
        """What becomes of what attention has found."""
        return self.o_proj(x)

    def queries(self, x: Tensor) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
        """The queries, seen by head, the narrow tensor of which they are made, where something else reads that, and
        what ``output`` is given, too. ``split`` writes the gradient of their parts head after head."""
        return by_head(self.projected_queries(x), self.shape.num_heads), None, ()

    def projected_queries(self, x: Tensor) -> Tensor:
        """Queries (batch, tokens, heads * head_dim)."""
        if self.shape.q_rank is None:
            return self.q_proj(x)
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))

    def mask(
        self, x: Tensor, q_latent: Tensor | None, context: RotaryContext
    ) -> tuple[Tensor | None, Sequence[Tensor]]:
        """What the attention of x is masked with, and what it was made of that is there until ``forward`` returns."""
        return context.masks.get(None), ()

    def _rotated(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        if self.shape.rotates_complex:
            return rotated_as_complex(q, k, context.cos)
        if self.shape.is_interleaved:
            half = (*context.cos.shape[:-1], self.shape.rotary_width // 2)
            cos, sin = context.cos.view(*half), context.sin.view(*half)
            return rotated_in_pairs(q, cos, sin), rotated_in_pairs(k, cos, sin)
        return ops.rotate(q, context.cos, context.sin), ops.rotate(k, context.cos, context.sin)

    def expanded(self, latent: Tensor, k_rotated: Tensor) -> tuple[Tensor, Tensor]:
        """``expand_kv``: keys and values of all heads; both parts of the keys are written into a new tensor."""
        shape, tape = self.shape, latent.tape
        batch, _, num_tokens, _ = latent.shape
        heads = (batch, shape.num_heads, num_tokens)
        both = self.kv_b_proj(latent)
        both = by_head(both.view(batch, num_tokens, both.shape[-1]), shape.num_heads)
        k_pass, v = ops.split(both, (*heads, shape.plain_width), (*heads, shape.value_width))
        rotated = repeat_kv(k_rotated, shape.num_heads, copies=False)
        k = tape.tensor((*heads, shape.head_dim), both.dtype)
        k = chunks.put_slice(k, k_pass)
        return chunks.put_slice(k, rotated), v


def rotated_in_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``apply_rotary_pos_emb_interleave`` of one tensor: every other element with the one behind it."""
    half = x.shape[-1] // 2
    even, odd = ops.slice_last(x, half), ops.slice_last(x, half)
    turned = [
        ops.subtract(ops.mul(even, cos), ops.mul(odd, sin)),
        ops.add(ops.mul(odd, cos), ops.mul(even, sin)),
    ]
    return ops.concatenate(turned, x.shape)


def rotated_as_complex(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """``apply_rotary_emb`` of DeepSeek-V2: pairs of elements times a complex number, in float32."""
    wide_q, wide_k = ops.to(q, DType.FLOAT32), ops.to(k, DType.FLOAT32)
    q = ops.to(ops.mul(wide_q, positions), q.dtype)
    k = ops.to(ops.mul(wide_k, positions), k.dtype)
    return q, k


def complex_positions(x: Tensor, width: int) -> Tensor:
    """A complex number for each pair of the ``width`` elements that are rotated, the same for all samples."""
    return x.tape.tensor((1, 1, x.shape[1], width), DType.FLOAT32)
