"""Granite for Docling: a SigLIP-like tower over square tiles, a connector that also takes hidden states from inside the
tower (DeepStack), and a Granite decoder to whose first layers' results these are added.

Source: transformers 5.23 ``models/granite_docling/modeling_granite_docling.py``. The connector has two paths, of which
the processor's ``fine_route`` chooses one; the other's weights get no gradient.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.clip_vision import EncoderLayer, VisionEmbeddings
from vlmplan.architecture.families.granite import GraniteDecoder, GraniteLayer
from vlmplan.architecture.families.idefics import joined_by_sample
from vlmplan.architecture.families.llama import DecoderShape, decoder_shape
from vlmplan.architecture.families.packed_patches import Sequential
from vlmplan.architecture.families.qwen3_vl import added_to_rows, with_first_kinds_apart
from vlmplan.architecture.families.vision_tower import Encoder
from vlmplan.architecture.images.shape import ImageShape
from vlmplan.architecture.layer_calls import Calls
from vlmplan.architecture.model import Batch, Model, Part
from vlmplan.architecture.modules import LayerNorm, Linear, Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

DEPTHS = (3, 7, 10)
"""Of DeepStack, where the file has none (``GraniteDoclingVisionConfig.__post_init__``)."""


class DeepstackMerger(Module):
    """``GraniteDoclingDeepStackMerger``."""

    def __init__(self, merged_width: int, width: int) -> None:
        self.layer_norm = LayerNorm(merged_width)
        self.linear_1 = Linear(merged_width, width, bias=True)
        self.linear_2 = Linear(width, width, bias=True)
        self.act = ops.activation_module("gelu")

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.layer_norm(features)
        hidden = self.linear_1(hidden)
        hidden = self.act(hidden)
        return self.linear_2(hidden)


class ConnectorPath(Module):
    """``GraniteDoclingConnectorPath``: squares of ``scale_factor`` patches a side become a token."""

    def __init__(self, config: Config, scale_factor: int, num_depths: int) -> None:
        width = config.integer("out_hidden_size")
        self.scale_factor = scale_factor
        num_patches = config.integer("image_size") // config.integer("patch_size")
        if num_patches % scale_factor:
            allowed = f"a number of which {num_patches}, the patches a side of a tile, is a multiple"
            raise not_allowed(CONFIG, f"{config.path}.scale_factor", config.integer("scale_factor"), allowed)
        self.computed_numel = (num_patches // scale_factor) ** 2 * width  # of ``pos_embed``
        self.merged_width = config.integer("hidden_size") * scale_factor**2
        self.projection = Linear(self.merged_width, width)
        self.deepstack_mergers = Sequential(
            {str(index): DeepstackMerger(self.merged_width, width) for index in range(num_depths)}
        )

    def forward(self, x: Tensor, inner: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        hidden = self.pixel_shuffle(x)
        hidden = self.projection(hidden)
        hidden = self.positioned(hidden)
        features: list[Tensor] = []
        # A loop's variable keeps the last of what was shuffled until the end.
        for merger, deep in zip(self.deepstack_mergers.modules_by_name.values(), inner, strict=False):
            deep = self.pixel_shuffle(ops.copy(deep))
            features.append(merger(deep))
        return hidden, features

    def positioned(self, hidden: Tensor) -> Tensor:
        """``GraniteDoclingPositionEmbedding``: with a buffer in float32, cast to the type of what it is added to."""
        _, num_tokens, width = hidden.shape
        return ops.add(hidden, hidden.tape.tensor((1, num_tokens, width), hidden.dtype))

    def pixel_shuffle(self, x: Tensor) -> Tensor:
        """Columns are merged, then rows; each time the axes are swapped, which makes a copy both ways."""
        num_tiles, num_patches, width = x.shape
        x = ops.resample(x, num_tiles, num_patches, width)
        return ops.resample(x, num_tiles, num_patches // self.scale_factor**2, self.merged_width)


class Connector(Module):
    """``GraniteDoclingConnector``."""

    def __init__(self, config: Config, num_depths: int) -> None:
        width, factor = config.integer("out_hidden_size"), config.integer("scale_factor")
        self.ln_in = LayerNorm(config.integer("hidden_size"))
        self.coarse = ConnectorPath(config, factor, num_depths)
        if config.boolean("use_fine_route"):
            if factor < 2:
                raise not_allowed(
                    CONFIG, f"{config.path}.scale_factor", factor, "2 or more where use_fine_route is true"
                )
            self.fine = ConnectorPath(config, factor // 2, num_depths)
        self.ln_mid = LayerNorm(width)
        self.mlp_fc2 = Linear(width, width)
        self.ln_out = LayerNorm(width)

    def is_fine(self, image: ImageShape) -> bool:
        """Whether an image's tiles become more tokens than the coarse path makes."""
        return image.num_placeholder_tokens > image.num_patches // self.coarse.scale_factor**2

    def forward(self, x: Tensor, inner: Sequence[Tensor], image: ImageShape) -> tuple[Tensor, list[Tensor]]:
        """Features of all tiles, and those of each inner depth."""
        path = self.fine if self.is_fine(image) else self.coarse
        hidden, features = path(self.ln_in(x), inner)
        hidden = ops.gelu(self.ln_mid(hidden))
        return self.ln_out(self.mlp_fc2(hidden)), features


class VisionModel(Module):
    """``GraniteDoclingVisionModel``."""

    INPUT_EMBEDDING = "embeddings"

    def __init__(self, config: Config) -> None:
        num_layers = config.integer("num_hidden_layers")
        key = "deepstack_visual_indexes"
        depths = DEPTHS if config.get(key) is None else config.integers(key)
        ends = [depth + 1 for depth in range(num_layers) if depth in depths]
        self.embeddings = VisionEmbeddings(config, has_class_token=False)
        self.encoder = Encoder(lambda: EncoderLayer(config), num_layers, [*ends, num_layers])
        self.post_layernorm = LayerNorm(config.integer("hidden_size"))
        self.connector = Connector(config, len(depths))

    def forward(self, pixels: Tensor, batch: Batch, backend: AttentionBackend) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The tower's last hidden state, features in the decoder's width, and those of each inner depth."""
        tape, image = pixels.tape, batch.image
        assert image is not None
        with tape.section("vision.embedding"):
            embeddings = [self.embeddings(pixels, batch)]
        # The layers are called one by one, the encoder itself is not.
        hidden, held = self.encoder.forward(embeddings.pop(), lambda layer, x: layer(x, backend))
        inner = held[:-1]
        del held
        with tape.section("vision.norm"):
            last = self.post_layernorm(hidden)
        del hidden
        with tape.section("connector"):
            features, deep = self.connector(last, inner, image)
        return last, features, deep


class DensityRouter(Module):
    """``GraniteDoclingDensityRouter``: no loss of a plan has a use for its result, which the output object holds."""

    def __init__(self, width: int, inner: int) -> None:
        self.att = Linear(width, 1, bias=True)
        self.norm = LayerNorm(width)
        self.fc1 = Linear(width, inner, bias=True)
        self.fc2 = Linear(inner, 1, bias=True)
        self.act = ops.activation_module("gelu")

    def forward(self, x: Tensor, num_samples: int) -> Tensor:
        num_tiles, _, width = x.shape
        weights = ops.softmax(self.att(x))
        tiles = ops.total(ops.mul(x, weights), (num_tiles, width))
        samples = ops.scale(ops.total(tiles, (num_samples, width)))
        hidden = self.norm(samples)
        hidden = self.fc1(hidden)
        hidden = self.act(hidden)
        return self.fc2(hidden)


class DeepstackGranite(GraniteDecoder):
    """``GraniteDoclingTextModel``: behind each of the first layers, features are added to the image tokens."""

    def __init__(self, shape: DecoderShape, num_features: int) -> None:
        layers = Stack.of(GraniteLayer(shape), shape.num_layers, label="layers")
        self.num_features = min(num_features, shape.num_layers)
        super().__init__(shape, with_first_kinds_apart(layers, self.num_features))

    def embed(self, ids: Tensor) -> Tensor:
        """They are scaled when those of images are among them."""
        with ids.tape.section("embedding"):
            return self.embed_tokens(ids)

    def forward(
        self, x: Tensor, backend: AttentionBackend, mask: Tensor | None = None, features: Sequence[Tensor] = ()
    ) -> Tensor:
        """``mask`` marks the image tokens that ``features`` belong to."""
        tape = x.tape
        with tape.section("scaled embeddings"):
            x = self.scaled(x)
        with tape.section("positions"):
            tape.prefetch()  # for the module of the positions
            calls = Calls(self.contexts(x, backend))
        hidden = [x]
        for index, feature in enumerate(features[: self.num_features]):
            out = self.layers.run(hidden.pop(), calls, start=index, stop=index + 1)
            with tape.section(f"deepstack.{index}"):
                assert mask is not None
                hidden.append(added_to_rows(out, mask, feature))
            del out
        last = self.layers.run(hidden.pop(), calls, start=min(len(features), self.num_features))
        with tape.section("norm"):
            return self.final_norm(last)


class GraniteDoclingModel(Module):
    """``GraniteDoclingModel``: ``vision_model``, ``text_model`` and perhaps ``density_router``."""

    def __init__(self, config: Config) -> None:
        vision, text = config.section("vision_config"), config.section("text_config")
        width = text.integer("hidden_size")
        if vision.integer("out_hidden_size") != width:
            allowed = f"text_config.hidden_size, {width}"
            raise not_allowed(CONFIG, "vision_config.out_hidden_size", vision.integer("out_hidden_size"), allowed)
        inner = config.optional_integer("density_router_hidden_size")
        self.vision_model = VisionModel(vision)
        self.text_model = DeepstackGranite(decoder_shape(text), len(self.vision_model.encoder.feature_layers) - 1)
        self.density_router = None if inner is None else DensityRouter(vision.integer("hidden_size"), inner)

    def forward(self, ids: Tensor, pixels: Tensor | None, batch: Batch, backend: AttentionBackend) -> Tensor:
        embeddings = self.text_model.embed(ids)
        if pixels is None:
            return self.text_model(embeddings, backend)
        tape = ids.tape
        with tape.section("vision.input"):
            pixels = ops.copy(pixels)  # the tiles that are no padding
            pixels = ops.to(pixels, self.vision_model.embeddings.patch_embedding.weight.dtype)
        # What lives until this function returns: the joined features, and what the encoder made.
        encoded = tape.outputs.of_encoder()
        encoded += self.vision_model(pixels, batch, backend)
        last, image_features, deep = encoded
        del pixels
        if self.density_router is not None:
            with tape.section("router"):
                tape.outputs.tensors.append(self.density_router(last, batch.micro_batch))
        with tape.section("scatter"):
            joined = ops.to(joined_by_sample(image_features, batch), embeddings.dtype)
            tape.outputs.keep_features(joined)
            features = [ops.to(joined_by_sample(one, batch), embeddings.dtype) for one in deep]
            mask = tape.tensor(ids.shape, DType.BOOL)
            embeddings = ops.masked_scatter(embeddings, mask, joined)
        hidden = self.text_model(embeddings, backend, mask, features)
        del encoded, last, image_features, deep, joined
        return hidden


class GraniteDocling(Model):
    """``GraniteDoclingForConditionalGeneration``."""

    scales_logits = True
    EMBEDDINGS = "model.text_model.embed_tokens"
    PARTS = {
        "model.vision_model": Part.VISION,
        "model.vision_model.connector": Part.PROJECTOR,
        "model.density_router": Part.PROJECTOR,
    }

    def __init__(self, model: GraniteDoclingModel, *, ties_weights: bool) -> None:
        self.model = model
        shape = model.text_model.shape
        self.lm_head = Linear(shape.hidden_size, shape.vocab_size)
        if ties_weights:
            self.tie_weights()

    def pixel_shape(self, batch: Batch) -> tuple[int, ...]:
        assert batch.image is not None
        return (batch.num_images * batch.image.num_patches, self.model.vision_model.embeddings.patch_numel)

    def more_inputs(self, batch: Batch) -> Sequence[tuple[tuple[int, ...], DType]]:
        """``pixel_attention_mask``, one value a tile, and ``tile_fine_mask`` of pages on the fine route."""
        assert batch.image is not None
        masks = [((batch.num_vision_sequences,), DType.BOOL)]
        is_fine = self.model.vision_model.connector.is_fine(batch.image)
        return [*masks, ((batch.micro_batch,), DType.BOOL)] if is_fine else masks

    def last_hidden_state(self, batch: Batch, ids: Tensor, pixels: Tensor | None, backend: AttentionBackend) -> Tensor:
        return self.model.forward(ids, pixels, batch, backend)


def build(config: Config) -> GraniteDocling:
    """``GraniteDoclingForConditionalGeneration``; the top level alone decides whether embedding and head are one
    weight."""
    return GraniteDocling(GraniteDoclingModel(config), ties_weights=config.boolean("tie_word_embeddings"))
