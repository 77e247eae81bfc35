"""DeepSeek-V4: residual streams that are mixed anew around each block, compressed attention, clamped experts.

Source: transformers 5.23 ``models/deepseek_v4/modeling_deepseek_v4.py`` and ``configuration_deepseek_v4.py``. Attention
is eager: the class refuses every other. The layers of published checkpoints that predict more than one token are left
out by transformers (``_keys_to_ignore_on_load_unexpected``). peft knows no names of experts in it: names mean Linears
alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.compressed_layers import CHOOSING, HEAVY, SLIDING, attention_kinds
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.clamped_experts import HASH, MLP_KINDS, SPARSE, clamped_experts_block
from vlmplan.architecture.families.compressed_attention import CompressedAttention, CompressedContext, CompressedShape
from vlmplan.architecture.families.hyper_connections import (
    HyperConnection,
    HyperHead,
    StreamShape,
    mixed,
    stream_shape,
)
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderShape,
    causal_masks,
    stack_of_kinds,
)
from vlmplan.architecture.modules import Module, Stack, WideRMSNorm
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed

RATES = {CHOOSING: 4, HEAVY: 128}
"""``default_compress_rates``."""
NUM_HASH_LAYERS = 3
"""``default_num_hash_layers``."""
ATTENTION_LINEARS = ("q_a_proj", "self_attn.q_b_proj", "self_attn.kv_proj", "o_b_proj")
COMPRESSOR_LINEARS = ("compressor.kv_proj", "compressor.gate_proj")
"""What a gradient comes to, without the grouped projection, which takes no adapter."""
ROTARY_FRACTION = 64 / 512
"""``default_partial_rotary_factor``."""


class StreamLayer(Module):
    """``DeepseekV4DecoderLayer``."""

    def __init__(self, attention: CompressedAttention, block: Module, streams: StreamShape) -> None:
        self.self_attn = attention
        self.mlp = block
        self.input_layernorm = WideRMSNorm(streams.hidden_size)
        self.post_attention_layernorm = WideRMSNorm(streams.hidden_size)
        self.attn_hc = HyperConnection(streams)
        self.ffn_hc = HyperConnection(streams)

    def forward(self, x: Tensor, context: CompressedContext) -> Tensor:
        """x (batch, tokens, streams, width). The last operation that saves anything is in no module inside."""
        x.tape.enter_block()
        post, comb, collapsed = self.attn_hc(x)
        out, held = self.self_attn(self.input_layernorm(collapsed), context)
        x = mixed(x, post, comb, out)
        post, comb, collapsed = self.ffn_hc(x)
        result = self.mlp(self.post_attention_layernorm(collapsed))
        x = mixed(x, post, comb, result)
        x.tape.leave_block()
        del held, out
        return x


class StreamDecoder(Decoder):
    """``DeepseekV4Model``."""

    def __init__(
        self, shape: DecoderShape, rotary_widths: Mapping[str, int], streams: StreamShape, layers: Stack
    ) -> None:
        super().__init__(shape, layers, norm=WideRMSNorm)
        self.hc_head = HyperHead(streams)
        self.rotary_widths, self.num_streams = rotary_widths, streams.num_streams

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape, backend = x.tape, replace(backend, implementation="eager")
        with tape.section("positions"):
            mask = causal_masks(x, backend, (None,))[None]
            shape = (*x.shape[:2], self.num_streams, x.shape[2])
            # A single stream is a view. Only the first layer holds what it gets.
            streams = [chunks.repeat_heads(x, *shape) if self.num_streams > 1 else x.view(*shape)]
            context = CompressedContext(backend, mask, self._positions(x))
            del mask
        hidden = self.layers.run(streams.pop(), lambda layer, hidden: layer(hidden, context))
        with tape.section("norm"):
            return self.final_norm(self.hc_head(hidden))

    def _positions(self, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """cos and sin of uncompressed layers, and those that all others share."""
        positions: dict[str, tuple[Tensor, Tensor]] = {}
        for kind in (SLIDING, HEAVY):
            shape = (1, 1, x.shape[1], self.rotary_widths[kind] // 2)
            positions[kind] = (x.tape.tensor(shape, x.dtype), x.tape.tensor(shape, x.dtype))
        return {**positions, CHOOSING: positions[HEAVY]}


def mlp_kinds(config: Config) -> Sequence[str]:
    """The kind of MLP of each layer: by ``mlp_layer_types``, else the first ``num_hash_layers`` look experts up."""
    names = config.names_by_layer("mlp_layer_types")
    if names is None:
        num_hashed = config.count("num_hash_layers") if config.has_own("num_hash_layers") else NUM_HASH_LAYERS
        return [HASH if index < num_hashed else SPARSE for index in range(config.integer("num_hidden_layers"))]
    if not set(names) <= set(MLP_KINDS):
        raise not_allowed(CONFIG, "mlp_layer_types", sorted(set(names)), f"names out of {' and '.join(MLP_KINDS)}")
    return names


def attention_shape(config: Config) -> CompressedShape:
    """The dimensions of attention of a text configuration."""
    rates, head_dim = config.mapping("compress_rates"), config.integer("head_dim")
    num_heads, num_groups = config.integer("num_attention_heads"), config.integer("o_groups")
    if num_heads * head_dim % num_groups:
        allowed = f"a divisor of {num_heads * head_dim}, num_attention_heads times head_dim"
        raise not_allowed(CONFIG, "o_groups", num_groups, allowed)
    widths, index_head_dim = rotary_widths(config, head_dim), config.integer("index_head_dim")
    if index_head_dim < widths[CHOOSING]:
        allowed = f"at least {widths[CHOOSING]}, the elements of a head that are rotated"
        raise not_allowed(CONFIG, "index_head_dim", index_head_dim, allowed)
    older = {CHOOSING: "compress_rate_csa", HEAVY: "compress_rate_hca"}
    return CompressedShape(
        dropout=config.number("attention_dropout"),
        hidden_size=config.integer("hidden_size"),
        num_heads=num_heads,
        head_dim=head_dim,
        q_rank=config.integer("q_lora_rank"),
        num_groups=num_groups,
        group_rank=config.integer("o_lora_rank"),
        rates={kind: config.integer(key, rates.integer(kind, RATES[kind])) for kind, key in older.items()},
        index_heads=config.integer("index_n_heads"),
        index_head_dim=index_head_dim,
        index_top=config.integer("index_topk"),
        rotary_widths=widths,
    )


def rotary_widths(config: Config, head_dim: int) -> dict[str, int]:
    """Elements of a head that are rotated by kind of layer: of ``main`` and ``compress`` in ``rope_parameters``, else
    ``partial_rotary_factor``, else ``qk_rope_head_dim``."""
    fraction = ROTARY_FRACTION
    if "qk_rope_head_dim" in config:
        fraction = config.integer("qk_rope_head_dim") / head_dim
    fraction = config.positive_number("partial_rotary_factor", fraction)
    nested = config.mapping("rope_parameters")
    widths: dict[str, int] = {}
    for kind, label in ((SLIDING, "main"), (CHOOSING, "compress"), (HEAVY, "compress")):
        own = fraction
        if isinstance(nested.get("main"), Mapping) and isinstance(nested.get("compress"), Mapping):
            own = nested.mapping(label).positive_number("partial_rotary_factor", 1.0)
        if own > 1:
            raise not_allowed(CONFIG, "partial_rotary_factor", own, "a fraction of a head")
        widths[kind] = 2 * -(-int(head_dim * own) // 2)
    return widths


def decoder(config: Config) -> StreamDecoder:
    attention, streams = attention_shape(config), stream_shape(config)
    shape = DecoderShape(
        hidden_size=attention.hidden_size,
        intermediate_size=config.integer("moe_intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=attention.num_heads,
        num_kv_heads=1,
        head_dim=attention.head_dim,
        vocab_size=config.integer("vocab_size"),
        activation=config.text("hidden_act"),
    )

    def layer(kind: tuple[str, str]) -> StreamLayer:
        name, mlp_name = kind
        return StreamLayer(CompressedAttention(attention, name), clamped_experts_block(config, mlp_name), streams)

    kinds = list(zip(attention_kinds(config), mlp_kinds(config), strict=True))
    return StreamDecoder(shape, attention.rotary_widths, streams, stack_of_kinds(kinds, layer))


def causal_lm(decoder: Module, config: Config) -> CausalLM:
    """``DeepseekV4ForCausalLM``."""
    causal = CausalLM(decoder, config)
    kinds = set(attention_kinds(config))
    causal.attention_linears = (*ATTENTION_LINEARS, *(() if kinds == {SLIDING} else COMPRESSOR_LINEARS))
    return causal
