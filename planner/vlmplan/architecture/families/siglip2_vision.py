"""The vision tower of SigLIP 2 for images of any proportions: SigLIP's layers over patches that are filled up.

Source: transformers 5.23 and 5.24 ``models/siglip2/modeling_siglip2.py``, ``Siglip2VisionModel``. Patches come cut
out, all images with as many; learned positions are resized for each image.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.idefics import VisionAttention, VisionContext, padding_mask
from vlmplan.architecture.families.siglip_vision import PoolingHead, SiglipLayer
from vlmplan.architecture.families.vision_tower import EqualLayers
from vlmplan.architecture.images.shape import ImageShape
from vlmplan.architecture.layer_calls import with_mask_by_position
from vlmplan.architecture.modules import Embedding, LayerNorm, Linear, Module
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadWeight
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType


class Siglip2Layer(SiglipLayer):
    """``Siglip2EncoderLayer``: takes a ``VisionContext`` in the place of the backend."""

    attention = VisionAttention


class Siglip2Embeddings(Module):
    """``Siglip2VisionEmbeddings``: reads the weight of the positions without calling their module."""

    INPUT_EMBEDDING = "patch_embedding"

    def __init__(self, config: Config) -> None:
        width = config.integer("hidden_size")
        self.patch_numel = config.integer("num_channels") * config.integer("patch_size") ** 2
        self.patch_embedding = Linear(self.patch_numel, width, bias=True)
        self.position_embedding = Embedding(config.integer("num_patches"), width)
        self._read = [ReadWeight(self.position_embedding)]
        self.resized = weighted_positions if config.release.projects_images_together else copied_positions

    def forward(self, pixels: Tensor, image: ImageShape) -> Tensor:
        tape, (read,) = pixels.tape, self._read
        if tape.follows_weights:
            tape.fetch(read)
        patches = self.patch_embedding(ops.to(pixels, self.patch_embedding.weight.dtype))
        positions = self.resized(read.weight, pixels, image)
        result = ops.add(patches, positions)
        if tape.follows_weights:
            tape.release(read)
        return result


def copied_positions(weight: Parameter, pixels: Tensor, image: ImageShape) -> Tensor:
    """``resize_positional_embeddings``: the table resized for each image and copied into one tensor, in place."""
    tape, width = pixels.tape, weight.shape[1]
    node = tape.node((weight,), _copied_backward, meta=(weight.shape, weight.dtype))
    out = tape.tensor((*pixels.shape[:-1], width), weight.dtype, node)
    resized = tape.tensor((image.num_patches_per_sequence, width), weight.dtype)
    tape.move(2 * out.num_bytes + weight.num_bytes)
    del resized
    return out


def _copied_backward(node: GraphNode, grads: Grads) -> Grads:
    """Each copy in place makes one of the whole gradient, without its own part."""
    g = ops.only(grads)
    tape = g.tape
    with tape.charged_to(Kind.TEMPORARY):
        rest = tape.tensor(g.shape, g.dtype)
    tape.move(2 * rest.num_bytes * g.shape[0])
    del rest
    return [tape.gradient(*node.meta)]


def weighted_positions(weight: Parameter, pixels: Tensor, image: ImageShape) -> Tensor:
    """The same of 5.24: a product in float32 of the table and of its rows' shares in each position of all images."""
    tape, (num_images, num_patches, _) = pixels.tape, pixels.shape
    num_learned, width = weight.shape
    shares = tape.tensor((num_images, num_patches, num_learned), DType.FLOAT32)
    dtype = tape.autocast or DType.FLOAT32
    node = tape.node((weight,), ops.pass_through)
    view = Tensor(tape.tensor((0,), weight.dtype).storage, weight.shape, weight.dtype, node)
    table = ops.to(ops.to(view, DType.FLOAT32), dtype)
    out = ops.matmul(ops.to(shares, dtype), table, (num_images, num_patches, width), num_learned)
    del table
    return ops.to(out, weight.dtype)


class Siglip2Vision(Module):
    """``Siglip2VisionModel``: pixels (sequences, patches, values) to hidden states (sequences, patches, width)."""

    def __init__(self, config: Config) -> None:
        self.embeddings = Siglip2Embeddings(config)
        self.encoder = EqualLayers(Siglip2Layer(config), config)
        self.post_layernorm = LayerNorm(config.integer("hidden_size"))
        self.head = PoolingHead(config) if config.boolean("vision_use_head") else None

    def forward(self, pixels: Tensor, image: ImageShape, backend: AttentionBackend) -> Tensor:
        tape = pixels.tape
        with tape.section("vision.embedding"):
            embedded = self.embeddings(pixels, image)
            num_patches = embedded.shape[1]
            mask = padding_mask(embedded, num_patches, num_patches, image, backend)
            call, beside = with_mask_by_position(VisionContext(backend, mask))
            del mask
        # The embeddings stay in a local variable of the original until it returns, as the mask does.
        last = self.encoder.layers.run(embedded, call, beside=beside)
        with tape.section("vision.pooling"):
            last = self.post_layernorm(last)
            if self.head is not None:
                self.head(last)
            return last
