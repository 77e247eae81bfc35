"""Peak bytes and gradients of the chunked loss beside the plain one, on a vocabulary as large as Qwen2's.

PYTHONPATH=tests/trainer python tests/trainer/chunked_beside_plain.py [TOKENS]
"""

import sys

import torch
from loss_models import batch, distance_fraction, gradients, small_model

from vlmplan.recipe.choices import LossKind
from vlmplan.units import MIB
from vlmplan_trainer.losses.loss import language_loss
from vlmplan_trainer.measure import LiveStorages

VOCAB_SIZE = 151_936


def main(num_tokens: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = small_model(dtype=dtype, vocab_size=VOCAB_SIZE, max_position_embeddings=num_tokens)
        inputs = batch(num_samples=1, num_tokens=num_tokens, vocab_size=VOCAB_SIZE)
        found, peaks, losses = [], [], []
        for kind in (LossKind.FULL, LossKind.CHUNKED):
            storages = LiveStorages()
            with storages:
                loss = language_loss(model, inputs, kind=kind)
                found.append(gradients(model, loss))
            peaks.append(storages.peak_bytes / MIB)
            losses.append(float(loss.detach()))
        difference = distance_fraction(found[1], found[0])
        print(
            f"{dtype}, {num_tokens} tokens of {VOCAB_SIZE}: plain {peaks[0]:,.0f} MiB, chunked {peaks[1]:,.0f} MiB; "
            f"losses {losses[0]:.6f} and {losses[1]:.6f}; gradients differ by {difference:.1e}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
