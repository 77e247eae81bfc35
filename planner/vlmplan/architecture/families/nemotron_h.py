"""Nemotron-H (Nemotron Nano 2 and 3): layers of one mixer each, which is Mamba-2, attention, an MLP or experts.

Source: transformers 5.23 ``models/nemotron_h/modeling_nemotron_h.py`` and ``configuration_nemotron_h.py``. Attention
has no positions, MLPs and experts have no gate, and the experts' router is DeepSeek-V3's. What predicts more than one
token is left out by transformers (``_keys_to_ignore_on_load_unexpected``).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.group_router import GroupRouter
from vlmplan.architecture.families.llama import DecoderShape, RotaryContext, causal_masks, stack_of_kinds
from vlmplan.architecture.families.moe import Experts
from vlmplan.architecture.families.smollm3 import PositionlessAttention
from vlmplan.architecture.families.state_space import StateSpaceKeys, StateSpaceMixer, state_space_shape
from vlmplan.architecture.layer_calls import Calls
from vlmplan.architecture.modules import Embedding, Linear, Module, RMSNorm, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
"""Mixers by their letters in ``hybrid_override_pattern``."""
OLD_NAMES = {"mamba": "linear_attention", "attention": "full_attention"}
"""What layer types were called before (``remap_legacy_layer_types`` in ``configuration_utils.py``)."""
DEFAULT_TYPES = ("linear_attention", "moe", "full_attention", "mlp")
"""Of a file that says nothing of its layers."""
MIXER_KEYS = StateSpaceKeys(
    num_heads="mamba_num_heads",
    head_dim="mamba_head_dim",
    num_groups="n_groups",
    state_size="ssm_state_size",
    num_taps="conv_kernel",
    chunk_size="chunk_size",
    activation="mamba_hidden_act",
    has_bias="use_bias",
    convolution_bias="use_conv_bias",
)


class CastRMSNorm(RMSNorm):
    """``NemotronHRMSNorm``: everything in float32, the weight too."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = ops.to(x, DType.FLOAT32)
        variance = ops.mean_last(ops.power(hidden))
        hidden = ops.mul(hidden, ops.unary(ops.shift(variance), saves_output=True))
        weight = ops.cast_weight(self.weight, DType.FLOAT32, x.tape)
        return ops.to(ops.mul(hidden, weight, y_is_first=True), x.dtype)


class PlainMlp(Module):
    """``NemotronHMLP``."""

    def __init__(self, shape: DecoderShape, intermediate_size: int) -> None:
        self.up_proj = Linear(shape.hidden_size, intermediate_size, bias=shape.mlp_bias)
        self.down_proj = Linear(intermediate_size, shape.hidden_size, bias=shape.mlp_bias)
        self.act_fn = ops.activation_module(shape.activation)

    def forward(self, x: Tensor, context: RotaryContext | None = None) -> Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)))


class ExpertsBlock(Module):
    """``NemotronHMoE``: experts, of a narrower copy of x where there is one, and an MLP that sees every token."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        width, narrow = shape.hidden_size, config.optional_integer("moe_latent_size")
        num_experts = config.integer("n_routed_experts")
        inner = config.integer("moe_intermediate_size")
        self.experts = Experts(num_experts, narrow or width, inner, activation=shape.activation, has_gate=False)
        self.gate = GroupRouter(
            num_experts,
            width,
            config.integer("num_experts_per_tok"),
            num_groups=config.integer("n_group"),
            normalizes=config.boolean("norm_topk_prob"),
        )
        self.shared_experts = PlainMlp(shape, config.integer("moe_shared_expert_intermediate_size"))
        self.is_narrowed = narrow is not None
        if narrow is not None:
            self.fc1_latent_proj = Linear(width, narrow, bias=shape.mlp_bias)
            self.fc2_latent_proj = Linear(narrow, width, bias=shape.mlp_bias)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        shape = x.shape
        residuals = x
        _, scores, indices = self.gate(x.view(x.numel // shape[-1], shape[-1]))
        x = x.view(x.numel // shape[-1], shape[-1])
        if self.is_narrowed:
            x = self.fc1_latent_proj(x)
        x = self.experts(x, indices, scores)
        if self.is_narrowed:
            x = self.fc2_latent_proj(x)
        return ops.add(x.view(*shape), self.shared_experts(residuals))


class NemotronBlock(Module):
    """``NemotronHBlock``."""

    def __init__(self, width: int, mixer: Module) -> None:
        self.norm = CastRMSNorm(width)
        self.mixer = mixer

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.norm(ops.to(x, self.norm.weight.dtype))
        x = self.mixer(x, context)
        return ops.add(residual, x)


class UnpositionedDecoder(Module):
    """``NemotronHModel``, ``Mamba2Model``: layers that are told of no positions. ``attends``: some of them do, and are
    given masks."""

    def __init__(self, vocab_size: int, layers: Stack, norm: RMSNorm, *, attends: bool) -> None:
        self.windows = (None,) if attends else ()
        self.embeddings = Embedding(vocab_size, norm.weight.numel)
        self.layers = layers
        self.norm_f = norm

    def embed(self, ids: Tensor) -> Tensor:
        with ids.tape.section("embedding"):
            return self.embeddings(ids)

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        tape = x.tape
        with tape.section("positions"):
            nothing = tape.tensor((0,), x.dtype)
            context = RotaryContext(backend, nothing, nothing, causal_masks(x, backend, self.windows))
        hidden = self.layers.run(x, Calls(lambda layer: context.with_masks_of(windows_of(layer))))
        with tape.section("norm"):
            return self.norm_f(hidden)


def windows_of(layer: Any) -> tuple[int | None, ...]:
    """The windows of the masks that a layer is given: none but attention's (``causal_mask_mapping.get``)."""
    return (layer.mixer.window,) if hasattr(layer.mixer, "window") else ()


class NemotronH(CausalLM):
    """``NemotronHForCausalLM``, whose head is always its own (``_tied_weights_keys`` is empty)."""

    EMBEDDINGS = "model.embeddings"
    widens_logits = True


def _mixer(kind: str, config: Config, shape: DecoderShape) -> Module:
    if kind == "linear_attention":
        return StateSpaceMixer(state_space_shape(config, MIXER_KEYS))
    if kind == "full_attention":
        return PositionlessAttention(shape, None)
    return ExpertsBlock(config, shape) if kind == "moe" else PlainMlp(shape, shape.intermediate_size)


def layer_types(config: Config) -> Sequence[str]:
    """The mixer of each layer: by ``layers_block_type``, else by the letters of ``hybrid_override_pattern``."""
    names: object = config.get("layers_block_type")
    if names is None:
        pattern = config.text("hybrid_override_pattern")
        if not set(pattern) <= set(KINDS):
            raise not_allowed(CONFIG, "hybrid_override_pattern", pattern, f"letters out of {' '.join(KINDS)}")
        return [KINDS[letter] for letter in pattern] or DEFAULT_TYPES
    allowed = f"names out of {', '.join(KINDS.values())}"
    listed = cast(list[object], names) if isinstance(names, list) else []
    types = [OLD_NAMES.get(str(name), str(name)) for name in listed]
    if not types:
        raise not_allowed(CONFIG, "layers_block_type", config.get("layers_block_type"), allowed)
    if not set(types) <= set(KINDS.values()):
        raise not_allowed(CONFIG, "layers_block_type", sorted(set(types)), allowed)
    return types


def nemotron_shape(config: Config) -> DecoderShape:
    """The dimensions of all but the Mamba-2 mixers."""
    num_heads = config.integer("num_attention_heads")
    return DecoderShape(
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_layers=len(layer_types(config)),
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=config.integer("head_dim"),
        vocab_size=config.integer("vocab_size"),
        mlp_bias=config.boolean("mlp_bias"),
        activation=config.text("mlp_hidden_act"),
        scores=Scores(dropout=config.number("attention_dropout")),
    )


def decoder(config: Config) -> UnpositionedDecoder:
    shape = nemotron_shape(config)
    layers = stack_of_kinds(
        layer_types(config), lambda kind: NemotronBlock(shape.hidden_size, _mixer(kind, config, shape))
    )
    return UnpositionedDecoder(shape.vocab_size, layers, CastRMSNorm(shape.hidden_size), attends=True)


causal_lm = partial(NemotronH, ties_weights=False)
