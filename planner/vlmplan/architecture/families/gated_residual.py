"""Gated residual streams: what a block gets is a gated mean of several streams, each of which gets its result back.

Source: transformers 5.23 ``models/qwen4_exp/modeling_qwen4_exp.py`` (``Qwen4ExpTextGatedResidual``, the norm
``Qwen4ExpTextRMSNorm`` over groups, and the sums in ``Qwen4ExpTextDecoderLayer``). Streams lie side by side in one
tensor (batch, tokens, streams * width); each is normed by itself, and what is normed is all that the gates see.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.modules import GemmaRMSNorm, Linear, Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class GroupedRMSNorm(GemmaRMSNorm):
    """``Qwen4ExpTextRMSNorm`` with a ``group_size``: each of ``num_groups`` parts of a row is normed by itself."""

    def __init__(self, width: int, num_groups: int) -> None:
        super().__init__(width)
        self.num_groups = num_groups

    def forward(self, x: Tensor) -> Tensor:
        *rows, width = x.shape
        groups = (*rows, self.num_groups, width // self.num_groups)
        output = ops.weightless_rms_norm(ops.to(x, DType.FLOAT32).view(*groups)).view(*x.shape)
        output = ops.mul(output, ops.shift_weight(self.weight, DType.FLOAT32, x.tape))
        return ops.to(output, x.dtype)


class GatedResidual(Module):
    """``Qwen4ExpTextGatedResidual``: what a block gets of the streams, (batch, tokens, width), and where its result
    comes back to them, how much each stream takes of it (batch, tokens, streams)."""

    def __init__(self, width: int, num_streams: int, rank: int, *, gives_back: bool = True) -> None:
        self.num_streams = num_streams
        all_width = num_streams * width
        self.hc_norm = GroupedRMSNorm(all_width, num_streams)
        self.input_mix_weight_down = Linear(all_width, rank)
        self.input_mix_weight_up = Linear(rank, all_width)
        if gives_back:
            self.block_inject_weight = Linear(all_width, num_streams)

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.hc_norm(streams)
        mixed = self._mean(normed)
        return mixed, ops.scale(ops.sigmoid(ops.scale(self.block_inject_weight(normed))))

    def mean(self, streams: Tensor) -> Tensor:
        """The gated mean alone."""
        return self._mean(self.hc_norm(streams))

    def _mean(self, normed: Tensor) -> Tensor:
        *rows, width = normed.shape
        split = (*rows, self.num_streams, width // self.num_streams)
        gates = ops.silu(ops.scale(self.input_mix_weight_down(normed)))
        gates = ops.sigmoid(self.input_mix_weight_up(gates))
        return ops.mean(ops.mul(gates.view(*split), normed.view(*split)), (*rows, split[-1]))


def given_back(result: Tensor, shares: Tensor) -> Tensor:
    """A block's ``result`` (batch, tokens, width) times the ``shares`` of the streams, side by side as these."""
    *rows, width = result.shape
    num_streams = shares.shape[-1]
    wide = chunks.outer(result.view(*rows, 1, width), shares.view(*shares.shape, 1), (*rows, num_streams, width))
    return wide.view(*rows, num_streams * width)
