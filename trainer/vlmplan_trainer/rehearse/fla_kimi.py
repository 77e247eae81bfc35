"""The kernel of Kimi delta attention of flash-linear-attention, which is compiled for a card: what its autograd
function keeps and allocates, without what is computed.

Source: fla-core 0.6.0 ``ops/kda/chunk.py`` and what it calls. Names are theirs. tests/tools/fla_kernels.py runs fla's
own code beside this.
"""

from typing import Any

import torch
from torch import Tensor

from vlmplan_trainer.rehearse.fla_products import CHUNK, called_as_fla_does, count, states, unit

WIDE = torch.float32
BLOCK, SLICE = 16, 32
"""``BC``, and at most ``BK`` of ``chunk_kda_bwd_intra``."""


class _KimiRule(torch.autograd.Function):
    """``ChunkKDAFunction``. ``input_guard`` makes every input contiguous."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        given = [x.contiguous() for x in inputs]
        q, k, v, g, beta = given
        q, q_rstd = unit(q)
        k, k_rstd = unit(k)
        sums = torch.empty_like(g, dtype=torch.float32)
        rows = v.shape[:3]
        scores, solved = k.new_empty((*rows, CHUNK)), k.new_zeros((*rows, CHUNK))
        blocks = k.new_empty((*rows, BLOCK), dtype=torch.float32)
        w, u, kg = torch.empty_like(k), torch.empty_like(v), torch.empty_like(k)
        del blocks
        h, v_new = states(k, v)
        count(k, v, passes=1)
        o = torch.zeros_like(v_new)
        ctx.save_for_backward(q, q_rstd, k, k_rstd, v, sums, g, beta, scores, solved)
        del w, u, kg, h
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, ...]:
        q, _q_rstd, k, _k_rstd, v, sums, g, beta, _scores, _solved = ctx.saved_tensors
        dq, dk, dv, db, dg = _gradients(q, k, v, sums, beta, do.contiguous())
        dq = torch.empty_like(q)
        dk = torch.empty_like(k)
        return dq, dk, dv, dg.to(g), db.to(beta)


chunk_kda = called_as_fla_does(_KimiRule)


def _gradients(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, do: Tensor) -> tuple[Tensor, ...]:
    """``chunk_kda_bwd``."""
    w, u, qg, kg = torch.empty_like(k), torch.empty_like(v), torch.empty_like(q), torch.empty_like(k)
    h, v_new = states(k, v)
    dscores, dv = v.new_empty((*v.shape[:3], CHUNK), dtype=WIDE), torch.empty_like(do)
    dh = torch.empty_like(h)
    dv = torch.empty_like(dv)
    dq, dk, dv2 = torch.empty_like(q, dtype=WIDE), torch.empty_like(k, dtype=WIDE), torch.empty_like(v)
    dg, db = torch.empty_like(g, dtype=WIDE), torch.empty_like(beta, dtype=WIDE)
    dsolved = torch.empty_like(dscores)
    dv = dv2
    del dv2
    dq2, dk2 = torch.empty_like(dq), torch.empty_like(dk)
    db2 = beta.new_empty((-(-k.shape[-1] // SLICE), *beta.shape), dtype=WIDE)
    dg2 = torch.empty_like(dg)
    db = db2.sum(0).add_(db)
    del db2
    dq, dk, dg = dq2, dk2, dg2
    del dq2, dk2, dg2
    dg = torch.empty_like(dg)
    count(k, v, passes=3)
    del w, u, qg, kg, h, v_new, dscores, dh, dsolved
    return dq, dk, dv, db, dg
