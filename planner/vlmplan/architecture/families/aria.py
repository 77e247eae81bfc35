"""Aria: the Idefics tower over images padded to squares, learned queries that see their patches, and ``aria_text``.

Source: transformers 5.23 ``models/aria/modeling_aria.py``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.idefics import (
    VisionContext,
    VisionEmbeddings,
    VisionLayer,
    padding_mask,
    picture_size,
)
from vlmplan.architecture.families.llava import Llava, LlavaModel
from vlmplan.architecture.families.qwen_visual import thirds
from vlmplan.architecture.families.vision_tower import Encoder, VisionOutput
from vlmplan.architecture.layer_calls import with_mask_by_position
from vlmplan.architecture.model import Batch, Input
from vlmplan.architecture.modules import DerivedLinear, LayerNorm, Linear, Module
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadingModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

DEFAULT_QUERIES: Mapping[int, int] = {1225: 128, 4900: 256}
"""``projector_patch_to_query_dict``: learned queries for each number of patches."""


class AriaVision(Module):
    """``Idefics3VisionTransformer``, of whose layers hidden states are handed out before the last norm."""

    def __init__(self, config: Config, feature_layers: Sequence[int]) -> None:
        self.embeddings = VisionEmbeddings(config)
        self.encoder = Encoder(lambda: VisionLayer(config), config.integer("num_hidden_layers"), feature_layers)
        self.post_layernorm = LayerNorm(config.integer("hidden_size"))

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> VisionOutput:
        image = batch.image
        assert image is not None
        with pixels.tape.section("vision.embedding"):
            embeddings = self.embeddings(pixels, image)
            num_patches = image.num_patches_per_sequence
            mask = padding_mask(embeddings, num_patches, num_patches, image, backend)
            call, beside = with_mask_by_position(VisionContext(backend, mask))
            del mask
        # The embeddings stay in a local variable of the original until it returns, as the mask does.
        last, held = self.encoder.run(embeddings, call, beside=beside)
        with pixels.tape.section("vision.norm"):
            last = self.post_layernorm(last)
        return VisionOutput(last, held)


class MultiheadAttention(ReadingModule):
    """``nn.MultiheadAttention`` with a mask, whose weights are returned beside its result. It reads those of
    ``out_proj`` and does not call it."""

    def __init__(self, width: int, num_heads: int) -> None:
        self.num_heads = num_heads
        self.in_proj_weight = Parameter(3 * width, width)
        self.in_proj_bias = Parameter(3 * width)
        self.out_proj: Any = DerivedLinear(width, width, bias=True)

    def read_modules(self) -> Sequence[Module]:
        return (self.out_proj,)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(samples, queries, width), which lies in memory with the queries outermost, as do all three in products."""
        num_samples, num_queries, width = query.shape
        num_keys, num_heads, tape = key.shape[1], num_samples * self.num_heads, query.tape
        weights = thirds(self.in_proj_weight, (width, width), tape)
        biases = thirds(self.in_proj_bias, (width,), tape)
        # A number for what each query of each head does not see.
        mask = tape.tensor((num_heads, num_queries, num_keys), query.dtype)
        q, k, v = (
            ops.linear(x, weight, bias, copies_input=True, view_of=self.in_proj_weight)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        del weights, biases
        head = (num_heads, num_queries, width // self.num_heads)
        q = q.view(*head)
        scaled = ops.scale(q)
        k, v = (x.view(num_heads, num_keys, head[-1]) for x in (k, v))
        scores = ops.matmul(scaled, k, mask.shape, head[-1])
        del scaled, k
        scores = ops.softmax(scores)
        out = ops.matmul(ops.to(scores, v.dtype), v, head, num_keys)
        del v
        out = ops.copy(out, num_queries * num_samples, width)
        # An adapter of it does nothing.
        projection = getattr(self.out_proj, "base_layer", self.out_proj)
        out = ops.linear(out, projection.weight, projection.bias)
        average = tape.tensor((num_samples, num_queries, num_keys), scores.dtype)
        del average, mask, q
        return out.view(*query.shape)


class CrossAttention(Module):
    """``AriaCrossAttention``."""

    def __init__(self, width: int, num_heads: int) -> None:
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.multihead_attn = MultiheadAttention(width, num_heads)
        self.linear = Linear(width, width, bias=True)
        self.linear.copies_input = True
        self.layer_norm = LayerNorm(width)
        self.layer_norm_kv = LayerNorm(width)

    def forward(self, states: Tensor, queries: Tensor) -> Tensor:
        query = self.q_proj(self.layer_norm(queries))
        states = self.layer_norm_kv(states)
        key = self.k_proj(states)
        value = self.v_proj(states)
        out = self.multihead_attn(query, key, value)
        return self.linear(out)


class ProjectorMlp(Module):
    """``AriaProjectorMLP``."""

    def __init__(self, in_width: int, inner: int, width: int) -> None:
        self.linear_in = Linear(in_width, inner)
        self.linear_out = Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        x = ops.gelu_new(self.linear_in(x))
        return self.linear_out(x)


class Projector(Module):
    """``AriaProjector``."""

    def __init__(self, config: Config, width: int) -> None:
        vision = config.section("vision_config")
        in_width = vision.integer("hidden_size")
        self.queries_of = queries_by_patches(config.get("projector_patch_to_query_dict"))
        self.query = Parameter(max(self.queries_of.values()), in_width)
        self.cross_attn = CrossAttention(in_width, vision.integer("num_attention_heads"))
        self.layer_norm = LayerNorm(in_width)
        self.feed_forward = ProjectorMlp(in_width, width, width)

    def forward(self, states: Tensor) -> Tensor:
        num_samples, num_patches, width = states.shape
        shape = (num_samples, self.queries_of[num_patches], width)
        queries = ops.copy(ops.expand_weight(self.query, shape, states.tape))
        attended = self.cross_attn(states, queries)
        return self.feed_forward(self.layer_norm(attended))


def queries_by_patches(value: object) -> Mapping[int, int]:
    """Raises InputError for what is no object of whole numbers."""
    if value is None:
        return DEFAULT_QUERIES
    try:
        made = {int(patches): int(queries) for patches, queries in dict(value).items()}  # type: ignore[call-overload]
    except (TypeError, ValueError):
        made = {}
    if not made or min(*made, *made.values()) < 1:
        raise not_allowed(
            CONFIG, "projector_patch_to_query_dict", value, "an object of numbers of patches and of their queries"
        )
    return made


class AriaModel(LlavaModel):
    """``AriaModel``."""

    def tower(self, config: Config) -> AriaVision:
        return AriaVision(config.section("vision_config"), self.feature_layers(config))

    def drops_first(self, config: Config) -> bool:
        return False

    def projector(self, config: Config, width: int) -> Projector:
        return Projector(config, width)

    def pieces(self, output: VisionOutput, batch: Batch) -> Sequence[Tensor]:
        return [self.multi_modal_projector(output.hidden_states[0])]

    def scattered(self, ids: Tensor, embeddings: Tensor, pieces: Sequence[Tensor]) -> Tensor:
        """``AriaForConditionalGeneration`` does not hand on the features that its model returns."""
        with ids.tape.section("scatter"):
            features = ops.to(pieces[0], embeddings.dtype)
            ids.tape.locals.append(features.detached())
            return ops.masked_scatter(embeddings, ids.tape.tensor(ids.shape, DType.BOOL), features)


class Aria(Llava):
    """``AriaForConditionalGeneration``."""

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        return (batch.num_images, self.model.vision_tower.embeddings.num_channels, *picture_size(batch))

    def more_inputs(self, batch: Batch) -> Sequence[Input]:
        """``pixel_mask``."""
        return [((batch.num_images, *picture_size(batch)), DType.BOOL)]


def build(config: Config) -> Aria:
    """The top level alone decides whether embedding and head are one weight."""
    return Aria(AriaModel(config), ties_weights=config.boolean("tie_word_embeddings"))
