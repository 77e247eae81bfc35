"""LongCat-Flash: two blocks of DeepSeek-V3's latent attention and an MLP in each layer, and experts beside them.

Source: transformers 5.23 ``models/longcat_flash/modeling_longcat_flash.py``. The experts see what the first MLP sees,
and their result is added behind the second. Some of them are the identity (``zero_expert_num``), of which
``gate_up_proj`` has weights nevertheless that nothing reads. The class loops over the experts that tokens were routed
to; which those are nothing knows, so that all get as many. peft takes the names of Linears in the MLPs for those that
experts had in transformers 4.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, repeat
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.deepseek_v3 import latent_decoder_shape
from vlmplan.architecture.families.group_router import NamedExpertsLM
from vlmplan.architecture.families.latent_attention import LatentAttention, LatentShape, latent_shape
from vlmplan.architecture.families.llama import Decoder, DecoderShape, GatedMlp, RotaryContext
from vlmplan.architecture.families.moe import Experts, chosen_by, top
from vlmplan.architecture.families.packed_patches import Sequential
from vlmplan.architecture.indexing import add_rows, take_rows
from vlmplan.architecture.modules import DerivedLinear, Module, RMSNorm, Stack
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Operand, Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

PAIR = ("0", "1")


class RouterLinear(DerivedLinear):
    """``classifier``, whose weight stays in 16 bit (``lora_targets.CLASSIFIER``)."""


class LongcatRouter(ReadingModule):
    """``LongcatFlashTopkRouter``, which reads the weight of its Linear without calling that."""

    def __init__(self, num_experts: int, hidden_size: int, num_per_token: int, *, bias: bool) -> None:
        self.num_per_token = num_per_token
        self.classifier: Any = RouterLinear(hidden_size, num_experts, bias=bias)

    def read_modules(self) -> Sequence[Any]:
        return (self.classifier,)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, scores, indices) of x (N, width), in float32."""
        weight = getattr(self.classifier, "base_layer", self.classifier).weight
        wide = ops.to(x, DType.FLOAT32)
        logits = ops.linear(wide, ops.cast_weight(weight, DType.FLOAT32, x.tape))
        del wide
        probabilities = ops.softmax(logits, DType.FLOAT32)
        _, largest = chosen_by(probabilities, self.num_per_token)
        del _, largest
        scores, indices = top(probabilities, self.num_per_token, gathers=True)
        return logits, ops.scale(scores), indices


class LoopedExperts(Experts):
    """``LongcatFlashExperts``: one expert after the other, each with the tokens that were routed to it."""

    def __init__(self, num_experts: int, num_identities: int, shape: DecoderShape, intermediate_size: int) -> None:
        super().__init__(num_experts, shape.hidden_size, intermediate_size, activation=shape.activation)
        self.num_experts, self.num_identities = num_experts, num_identities
        up = self.gate_up_proj.shape
        self.gate_up_proj = Parameter(num_experts + num_identities, *up[1:])
        self.gate_up_proj.meets_autocast = True
        self.down_proj.meets_autocast = True

    def forward(self, x: Tensor, indices: Tensor, scores: Tensor) -> Tensor:
        tape, num_all = x.tape, self.num_experts + self.num_identities
        result = tape.tensor(x.shape, x.dtype)
        mask = tape.tensor((*indices.shape, num_all), DType.INT64)
        hit = tape.tensor((min(num_all, indices.numel), 1), DType.INT64)
        up, down = self.weight_of("gate_up_proj"), self.weight_of("down_proj")
        names: list[Tensor] = []
        for num_rows, is_identity in self._turns(x, indices.numel):
            places = tape.tensor((num_rows, 2), DType.INT64)
            rows = take_rows(x, places, (num_rows, x.shape[1]))
            if is_identity:
                found = rows
            else:
                gate, more = ops.split(ops.linear(rows, _expert(up, tape)), *[(num_rows, up.shape[1] // 2)] * 2)
                found = ops.linear(ops.mul(self.activation(gate), more), _expert(down, tape))
                names = [gate, more]
            found = ops.mul(found, take_rows(scores, places, (num_rows, 1)))
            result = add_rows(result, places, ops.to(found, x.dtype), is_in_place=True)
        del mask, hit, names
        return result

    def _turns(self, x: Tensor, num_pairs: int) -> Iterator[tuple[int, bool]]:
        """How many rows each expert gets that is hit, and whether it is the identity."""
        each, more = divmod(num_pairs, self.num_experts + self.num_identities)
        kinds = chain(repeat(False, self.num_experts), repeat(True, self.num_identities))
        rows = ((each + (index < more), kind) for index, kind in enumerate(kinds))
        for turn, equal in groupby(turn for turn in rows if turn[0]):
            yield from (turn for _ in x.tape.turns(len(list(equal))))


def _expert(weight: Operand, tape: Any) -> Tensor:
    """``weight[expert]``: a view, whose gradient has the size of all."""
    if isinstance(weight, Parameter):
        return ops.expand_weight(weight, weight.shape[1:], tape)
    return chunks.select(weight, *weight.shape[1:])


class LongcatExpertsBlock(Module):
    """``LongcatFlashMoE``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        num_experts, num_identities = config.integer("n_routed_experts"), config.count("zero_expert_num")
        self.experts = LoopedExperts(num_experts, num_identities, shape, config.integer("expert_ffn_hidden_size"))
        self.router = LongcatRouter(
            num_experts + num_identities,
            shape.hidden_size,
            config.integer("moe_topk"),
            bias=config.boolean("router_bias"),
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(x.numel // x.shape[-1], x.shape[-1])
        _logits, scores, indices = self.router(flat)
        return self.experts(flat, indices, scores).view(*x.shape)


class LongcatLayer(Module):
    """``LongcatFlashDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, latent: LatentShape) -> None:
        self.mlp = LongcatExpertsBlock(config, shape)
        self.self_attn: Any = Sequential({name: LatentAttention(latent) for name in PAIR})
        self.mlps = Sequential(
            {name: GatedMlp(shape.hidden_size, shape.intermediate_size, activation=shape.activation) for name in PAIR}
        )
        self.input_layernorm = Sequential({name: RMSNorm(shape.hidden_size) for name in PAIR})
        self.post_attention_layernorm = Sequential({name: RMSNorm(shape.hidden_size) for name in PAIR})

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        shortcut = x
        for name in PAIR:
            residual = x
            x = self.input_layernorm[name](x)
            x = self.self_attn[name](x, context)
            x = ops.add(residual, x)
            residual = x
            x = self.post_attention_layernorm[name](x)
            if name == PAIR[0]:
                shortcut = self.mlp(x)
            x = self.mlps[name](x)
            x = ops.add(residual, x)
        return ops.add(x, shortcut)


class LongcatDecoder(Decoder):
    """``LongcatFlashModel``."""

    def windows_of(self, layer: Any) -> Sequence[int | None]:
        return (None,)


def decoder(config: Config) -> LongcatDecoder:
    """Raises InputError for heads of another width than that of their parts."""
    latent = replace(latent_shape(config), scales_latents=True)
    widths = {
        "qk_head_dim": (latent.head_dim, "qk_nope_head_dim and qk_rope_head_dim have together"),
        "head_dim": (latent.rotary_width, "qk_rope_head_dim has"),
    }
    for key, (width, others) in widths.items():
        if config.integer(key, width) != width:
            raise not_allowed(CONFIG, key, config.get(key), f"{width}, as {others},")
    num_layers = config.integer("num_layers")
    shape = latent_decoder_shape(config.changed({"num_hidden_layers": 2 * num_layers}), latent)
    shape = replace(shape, num_layers=num_layers)
    layers = Stack.of(LongcatLayer(config, shape, latent), num_layers, label="layers")
    return LongcatDecoder(shape, layers, rotary_width=latent.rotary_width)


def causal_lm(decoder: Module, config: Config) -> CausalLM:
    """``LongcatFlashForCausalLM``."""
    causal = NamedExpertsLM(decoder, config)
    causal.attention_linears = latent_shape(config).linears
    return causal
