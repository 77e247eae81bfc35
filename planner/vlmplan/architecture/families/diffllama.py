"""DiffLlama: a Llama whose attention is the difference of two, each over half of the values, weighted by a learned
number, and normed.

Source: transformers 5.23 ``models/diffllama/modeling_diffllama.py``. Both calls share queries and keys; layers differ
in the number alone that the weight begins with.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, cached
from vlmplan.architecture.attention_kernels import repeat_kv
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    DecoderShape,
    RotaryContext,
    decoder_shape,
)
from vlmplan.architecture.modules import Stack
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType


class DiffLlamaAttention(Attention):
    """``DiffLlamaAttention``, which its layer calls with its input by name."""

    takes_keywords = True

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__(shape, None)
        self.lambda_q1 = Parameter(shape.head_dim)
        self.lambda_k1 = Parameter(shape.head_dim)
        self.lambda_q2 = Parameter(shape.head_dim)
        self.lambda_k2 = Parameter(shape.head_dim)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        shape, tape, (batch, num_tokens, _) = self.shape, x.tape, x.shape
        q, k, v = self.heads(x)
        q, k = self.positioned(q, k, context)
        k, v = cached(k, v)
        half = (batch, shape.num_kv_heads // 2, v.shape[2], shape.head_dim)
        values = [repeat_kv(part, shape.num_kv_heads) for part in ops.split(v, half, half)]
        mask, backend = context.masks.get(None), context.backend
        first = attend(backend, q, k, values[0], is_causal=True, mask=mask, is_cached=False)
        second = attend(backend, q, k, values[1], is_causal=True, mask=mask, is_cached=False)
        width, heads = shape.num_heads * shape.head_dim, (batch, num_tokens, shape.num_heads // 2, 2 * shape.head_dim)
        attended = ops.concatenate([first, second], (batch, num_tokens, 2 * width))
        first, second = ops.split(attended, heads, heads)
        weight = self._weight(q.dtype, tape)
        attended = ops.subtract(first, ops.mul(second, weight, y_is_first=True))
        attended = ops.scale(ops.called(ops.rms_norm, attended))
        out = self.o_proj(attended.view(batch, num_tokens, width))
        del q, k, v, values, mask, first, second, weight, attended
        return out

    def _weight(self, dtype: DType, tape: ForwardTape) -> Tensor:
        """``lambda_full``: a number."""
        parts: list[Tensor] = []
        for query, key in ((self.lambda_q1, self.lambda_k1), (self.lambda_q2, self.lambda_k2)):
            product = ops.mul(ops.expand_weight(query, query.shape, tape), key)
            parts.append(ops.to(chunks.exponential(ops.total(product, (1,), DType.FLOAT32)), dtype))
        return ops.shift(ops.subtract(*parts))


def decoder(config: Config) -> Decoder:
    """Raises InputError for what the class refuses: dropout of attention weights, an odd number of heads of values."""
    shape = decoder_shape(config)
    if config.number("attention_dropout"):
        raise not_allowed(CONFIG, "attention_dropout", config.get("attention_dropout"), "0.0")
    if shape.num_kv_heads % 2:
        raise not_allowed(CONFIG, "num_key_value_heads", shape.num_kv_heads, "an even number")
    layer = DecoderLayer(shape, attention=DiffLlamaAttention(shape))
    return Decoder(shape, Stack.of(layer, shape.num_layers, label="layers"))
