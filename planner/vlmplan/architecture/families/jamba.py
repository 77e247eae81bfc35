"""Jamba: Mamba in most layers, attention without positions in the others, an MLP or experts behind both.

Source: transformers 5.23 ``models/jamba/modeling_jamba.py`` and ``configuration_jamba.py``.
"""

from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.bamba import BambaDecoder
from vlmplan.architecture.families.llama import DecoderShape, GatedMlp, decoder_shape, stack_of_kinds
from vlmplan.architecture.families.moe import Experts, TopKRouter
from vlmplan.architecture.families.residual_layers import PreNormLayer
from vlmplan.architecture.families.selective_mixer import SelectiveMixer, SelectiveShape, refuse_mambapy, step_rank
from vlmplan.architecture.families.smollm3 import PositionlessAttention
from vlmplan.architecture.modules import Module, RMSNorm
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed


class JambaMixer(SelectiveMixer):
    """``JambaMambaMixer``. Its layer calls it by keyword, and without a mask where nothing is padded."""

    takes_keywords = True
    takes_mask = False

    def read_modules(self) -> tuple[Module, ...]:
        return self.conv1d, self.dt_proj


class JambaExperts(Module):
    """``JambaSparseMoeBlock``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        num_experts, width = config.integer("num_experts"), shape.hidden_size
        num_per_token = config.integer("num_experts_per_tok")
        self.router = TopKRouter(num_experts, width, num_per_token, casts_scores=True, normalizes=False)
        self.experts = Experts(num_experts, width, shape.intermediate_size, activation=shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        batch_shape, width = x.shape, x.shape[-1]
        x = x.view(x.numel // width, width)
        _, scores, indices = self.router(x)
        return self.experts(x, indices, scores).view(*batch_shape)


class JambaLayer(PreNormLayer):
    """``JambaAttentionDecoderLayer``, ``JambaMambaDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, *, attends: bool, has_experts: bool) -> None:
        width = shape.hidden_size
        mixer = "self_attn" if attends else "mamba"
        self.MODULES = ("input_layernorm", mixer, "pre_ff_layernorm", "feed_forward")
        setattr(
            self, mixer, PositionlessAttention(shape, None) if attends else JambaMixer(selective_shape(config), RMSNorm)
        )
        self.feed_forward = (
            JambaExperts(config, shape)
            if has_experts
            else GatedMlp(width, shape.intermediate_size, activation=shape.activation)
        )
        self.input_layernorm = RMSNorm(width)
        self.pre_ff_layernorm = RMSNorm(width)


class JambaDecoder(BambaDecoder):
    """``JambaModel``."""

    ROTARY_MODULES = ()

    def positions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        nothing = x.tape.tensor((0,), x.dtype)
        return nothing, nothing


def selective_shape(config: Config) -> SelectiveShape:
    """The dimensions of the mixers."""
    refuse_mambapy(config)
    width = config.integer("hidden_size")
    return SelectiveShape(
        hidden_size=width,
        inner_width=config.integer("mamba_expand") * width,
        state_size=config.integer("mamba_d_state"),
        step_rank=step_rank(config, "mamba_dt_rank"),
        num_taps=config.integer("mamba_d_conv"),
        activation=config.text("hidden_act"),
        has_bias=config.boolean("mamba_proj_bias"),
        convolution_bias=config.boolean("mamba_conv_bias"),
    )


def periodic(config: Config, kind: str) -> tuple[int, int]:
    """Every how many layers there is one of this kind, and which is the first. Raises InputError."""
    period, key = config.integer(f"{kind}_layer_period"), f"{kind}_layer_offset"
    if config.count(key) >= period:
        raise not_allowed(CONFIG, key, config.get(key), f"less than {kind}_layer_period, {period}")
    return period, config.count(key)


def decoder(config: Config) -> JambaDecoder:
    shape = decoder_shape(config)
    attention_period, first_attention = periodic(config, "attn")
    expert_period, first_expert = periodic(config, "expert")
    has_experts = config.integer("num_experts") > 1
    kinds = [
        (index % attention_period == first_attention, has_experts and index % expert_period == first_expert)
        for index in range(shape.num_layers)
    ]
    return JambaDecoder(
        shape,
        stack_of_kinds(kinds, lambda kind: JambaLayer(config, shape, attends=kind[0], has_experts=kind[1])),
    )
